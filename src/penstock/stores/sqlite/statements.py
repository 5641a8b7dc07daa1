"""The SQL statements of the store, by name, and the numbers of job states."""

from __future__ import annotations

from ..sql_files import Queries

WAITING_CHILDREN, HELD, WAITING, DELAYED, ACTIVE, SUSPENDED, COMPLETED, FAILED, CANCELLED = range(-2, 7)

COMMIT = Queries(__package__, "commit.sql")
CHILDREN = Queries(__package__, "children.sql")
ADMIN = Queries(__package__, "admin.sql")
