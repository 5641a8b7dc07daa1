"""Runs handlers in a pool of Python child processes."""
