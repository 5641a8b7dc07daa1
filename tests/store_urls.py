"""Build the URL of an empty store of each kind. Add a new store here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import postgres_server
import redis_server

STORE_URLS: dict[str, Callable[[Path], str]] = {
    "memory": lambda _tmp: ":memory:",
    "file": lambda tmp: f"sqlite:///{tmp}/penstock.db",
    "postgres": lambda _tmp: postgres_server.prepared_url(),
    "redis": lambda _tmp: redis_server.url(),
}
# Those that several Apps can open.
SHARED = ("file", "postgres", "redis")
