"""Queued work: workers, leases, attempts, dead letters, schedules. Knows nothing of flows."""
