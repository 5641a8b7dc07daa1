"""The SQLite store: one file, or memory."""

from .store import SqliteStore

__all__ = ["SqliteStore"]
