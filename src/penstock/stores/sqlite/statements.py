"""The SQL statements of the store, by name."""

from __future__ import annotations

from ..sql_files import Queries

COMMIT = Queries(__package__, "commit.sql")
CHILDREN = Queries(__package__, "children.sql")
ADMIN = Queries(__package__, "admin.sql")
