"""Commands inside the caller's own database transaction, and the outbox with its relay."""
