"""The table, as statements."""

from __future__ import annotations

from ..stores.queries import Queries

SQL = Queries(__package__, "outbox.sql")


def creation(dialect: str) -> str:
    """The statement that creates the table, if it is not there."""
    return str(getattr(SQL, f"create_{dialect}"))


def presence(dialect: str) -> str:
    """The statement that gives a row if the table is there."""
    return str(getattr(SQL, f"there_{dialect}"))
