"""Schedules: their specification, those declared in code, and the service that fires them."""
