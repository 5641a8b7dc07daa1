"""The parts there are."""

from __future__ import annotations

from .on_postgres import POSTGRES
from .on_redis import REDIS
from .scenarios import SQLITE

PARTS = (SQLITE, REDIS, POSTGRES)
