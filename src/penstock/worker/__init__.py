"""The worker: claims jobs, runs attempts, commits their outcomes, renews leases."""
