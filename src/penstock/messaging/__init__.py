"""Bridges to the queues of other systems."""
