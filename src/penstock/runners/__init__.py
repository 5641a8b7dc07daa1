"""Runners: on the event loop, on a thread, and the shared half of those in another process."""
