"""The Postgres store: its own small schema, one function call for each batch."""

from .store import PostgresStore

__all__ = ["PostgresStore"]
