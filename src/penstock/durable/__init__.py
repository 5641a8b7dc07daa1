"""Durable calls and waits: what a handler does once, however often it runs again."""
