"""The stores under test. Add a new backend here, and every suite runs on it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # also for processes that the tests start

import postgres_server
from penstock.app.store_urls import open_store
from penstock.core.clock import Clock
from penstock.ports.store import Store


@dataclass(frozen=True)
class Backend:
    """How to open a store, and what it supports."""

    name: str
    url: Callable[[Path], str]  # a separate store for each folder
    is_shared: bool  # several processes can use it
    has_virtual_time: bool  # leases follow the injected clock, so time can be virtual

    def open(self, folder: Path, clock: Clock) -> Store:
        return open_store(self.url(folder), clock=clock, namespace="nq")


@cache
def _redis(_folder: Path) -> str:
    """Return the URL of a database on the tests' Redis server; worker processes get the same URL."""
    import redis_server

    return redis_server.url()


REDIS = Backend("redis", _redis, True, False)
SQLITE_FILE = Backend("sqlite-file", lambda folder: f"sqlite:///{folder / 'penstock.db'}", True, True)
POSTGRES = Backend("postgres", postgres_server.url_of, True, False)  # network calls take real time
SQLITE_MEMORY = Backend("sqlite-memory", lambda _: ":memory:", False, True)

ALL = (SQLITE_FILE, SQLITE_MEMORY, POSTGRES, REDIS)
SHARED = tuple(backend for backend in ALL if backend.is_shared)
