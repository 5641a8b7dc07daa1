"""All benchmarks, one part per store."""

from __future__ import annotations

from .on_postgres import POSTGRES
from .on_redis import REDIS
from .scenarios import SQLITE

PARTS = (SQLITE, REDIS, POSTGRES)
