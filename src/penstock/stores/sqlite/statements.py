"""The statements of commit and claim, by name, and the numbers of the states they write."""

from __future__ import annotations

from ..queries import Queries

SQL = Queries(__package__, "hot.sql")
VERBS = Queries(__package__, "verbs.sql")  # those that a tape is made of

HELD, WAITING, DELAYED, ACTIVE, SUSPENDED, COMPLETED, FAILED, CANCELLED = range(-1, 7)
