"""The server a part is measured on: started for the run, the same one for every contender, emptied before each.

The programs are found as the tests find them: on PATH or of the system, else those in a wheel.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).parent.parent


class ServerMissing(Exception):
    """The part cannot be measured here; says why."""


class Place(Protocol):
    """Where contenders put their data."""

    about: str

    def fresh(self) -> str:
        """The URL of an empty place; what was there is gone."""


class Folder:
    """A contender's own folder is all it needs."""

    about = "a file in an empty folder each"

    def fresh(self) -> str:
        return ""


class OnRedis:
    def __init__(self, server: object, about: str) -> None:
        self.about = about
        self._server = server

    def fresh(self) -> str:
        self._server.command("FLUSHALL")  # type: ignore[attr-defined]
        self._server.command("CONFIG", "RESETSTAT")  # type: ignore[attr-defined]
        return f"redis://127.0.0.1:{self._server.port}/0"  # type: ignore[attr-defined]


class OnPostgres:
    def __init__(self, server: object, about: str) -> None:
        self.about = about
        self._server = server
        self._names = itertools.count()
        self._last: str | None = None

    def fresh(self) -> str:
        do = self._server.do  # type: ignore[attr-defined]
        if self._last is not None:
            do(f"DROP DATABASE {self._last} WITH (FORCE)")
        self._last = f"bench{next(self._names)}"
        do(f"CREATE DATABASE {self._last}")
        do("CHECKPOINT")  # so that no contender pays for the one before it
        return f"postgresql://postgres@127.0.0.1:{self._server.port}/{self._last}"  # type: ignore[attr-defined]


@contextmanager
def place(part: str, folder: Path) -> Iterator[Place]:
    """The server of a part, until the block ends; its data in a folder of its own inside `folder`."""
    if part == "sqlite":
        yield Folder()
        return
    folder.mkdir(parents=True, exist_ok=True)
    here = Path(tempfile.mkdtemp(prefix=f"{part}-", dir=_reachable(folder)))
    try:
        with _redis(here) if part == "redis" else _postgres(here) as found:
            yield found
    finally:
        shutil.rmtree(here, ignore_errors=True)


@contextmanager
def _redis(here: Path) -> Iterator[Place]:
    sys.path.append(str(ROOT / "tests"))
    try:
        from redis_server import Server

        server = Server(here)
    except (ImportError, AssertionError, OSError) as problem:
        raise ServerMissing(str(problem)) from None
    try:
        version = server.command("INFO", "server").decode().partition("redis_version:")[2].split()[0]
        yield OnRedis(server, f"Redis {version} on this machine, without persistence, emptied before each")
    finally:
        server.stop()


@contextmanager
def _postgres(here: Path) -> Iterator[Place]:
    sys.path.append(str(ROOT / "tests"))
    try:
        from postgres_server import Server

        server = Server(here, "shared_buffers=512MB", "max_wal_size=4GB", durable=True)
    except (ImportError, AssertionError, OSError) as problem:
        raise ServerMissing(str(problem)) from None
    try:
        version = server.do("SHOW server_version")[0][0].split()[0]
        settings = "shared_buffers=512MB, max_wal_size=4GB, the rest as installed"
        yield OnPostgres(server, f"Postgres {version} on this machine, fsync on, {settings}, a new database for each")
    finally:
        server.stop()


def _reachable(folder: Path) -> Path:
    """Postgres does not run as root: its folder must be one that others may walk to."""
    return (
        folder
        if all(parent.stat().st_mode & 0o005 == 0o005 for parent in folder.resolve().parents)
        else Path(tempfile.gettempdir())
    )
