"""Writing inside a transaction of the user's: his connections, the outbox table, and the relay that empties it."""
