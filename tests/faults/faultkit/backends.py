"""The stores under test. A new backend is one entry here; every suite then runs on it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # also in a process that a test starts here

import postgres_server
from penstock.app.store_urls import open_store
from penstock.core.clock import Clock
from penstock.ports.store import Store


@dataclass(frozen=True)
class Backend:
    """How to make one, and what it can be put through."""

    name: str
    url: Callable[[Path], str]  # a store of its own for each folder
    processes: bool  # several processes can share it
    our_clock: bool  # leases go by the clock it is given, so time can be virtual

    def open(self, folder: Path, clock: Clock) -> Store:
        return open_store(self.url(folder), clock=clock, namespace="nq")


@cache
def _redis(_folder: Path) -> str:
    """A database of the server that the tests share; worker processes are given its URL."""
    import redis_server

    return redis_server.url()


REDIS = Backend("redis", _redis, True, False)
SQLITE_FILE = Backend("sqlite-file", lambda folder: f"sqlite:///{folder / 'penstock.db'}", True, True)
POSTGRES = Backend("postgres", postgres_server.url_of, True, False)  # what waits for a network waits in real time
SQLITE_MEMORY = Backend("sqlite-memory", lambda _: ":memory:", False, True)

ALL = (SQLITE_FILE, SQLITE_MEMORY, POSTGRES, REDIS)
SHARED = tuple(backend for backend in ALL if backend.processes)
