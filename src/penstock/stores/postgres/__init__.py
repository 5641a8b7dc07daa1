"""The Postgres store: our own small schema, one function call a batch."""

from .store import PostgresStore

__all__ = ["PostgresStore"]
