"""The embedded store: one SQLite file, or memory."""

from .store import SqliteStore

__all__ = ["SqliteStore"]
