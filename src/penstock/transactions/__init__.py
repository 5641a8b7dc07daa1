"""Commands inside the user's own database transaction, and the outbox with its relay."""
