"""Start the server for a part. All contenders use the same one; it is emptied before each.

The server programs are found as in the tests: on PATH, in the system's folders, or in a wheel.
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
    """The server of a part cannot be started on this machine."""


class Target(Protocol):
    """Where contenders store their data."""

    about: str

    def reset(self) -> str:
        """Remove all data and return the URL of the empty database."""


class FolderTarget:
    """SQLite: each contender uses a file in its own folder."""

    about = "each contender in an empty folder"

    def reset(self) -> str:
        return ""


class RedisTarget:
    def __init__(self, server: object, about: str) -> None:
        self.about = about
        self._server = server

    def reset(self) -> str:
        self._server.command("FLUSHALL")  # type: ignore[attr-defined]
        self._server.command("CONFIG", "RESETSTAT")  # type: ignore[attr-defined]
        return f"redis://127.0.0.1:{self._server.port}/0"  # type: ignore[attr-defined]


class PostgresTarget:
    def __init__(self, server: object, about: str) -> None:
        self.about = about
        self._server = server
        self._names = itertools.count()
        self._last: str | None = None

    def reset(self) -> str:
        do = self._server.do  # type: ignore[attr-defined]
        if self._last is not None:
            do(f"DROP DATABASE {self._last} WITH (FORCE)")
        self._last = f"bench{next(self._names)}"
        do(f"CREATE DATABASE {self._last}")
        do("CHECKPOINT")  # so that no contender pays for the writes of the one before
        return f"postgresql://postgres@127.0.0.1:{self._server.port}/{self._last}"  # type: ignore[attr-defined]


@contextmanager
def open_target(part: str, folder: Path) -> Iterator[Target]:
    """Start the server of a part and stop it when the block ends. Its data is in a new folder inside `folder`."""
    if part == "sqlite":
        yield FolderTarget()
        return
    folder.mkdir(parents=True, exist_ok=True)
    here = Path(tempfile.mkdtemp(prefix=f"{part}-", dir=_find_traversable(folder)))
    try:
        with _redis(here) if part == "redis" else _postgres(here) as target:
            yield target
    finally:
        shutil.rmtree(here, ignore_errors=True)


@contextmanager
def _redis(here: Path) -> Iterator[Target]:
    sys.path.append(str(ROOT / "tests"))
    try:
        from redis_server import Server

        server = Server(here)
    except (ImportError, AssertionError, OSError) as problem:
        raise ServerMissing(str(problem)) from None
    try:
        version = server.command("INFO", "server").decode().partition("redis_version:")[2].split()[0]
        yield RedisTarget(server, f"Redis {version} on this machine, without persistence, emptied before each")
    finally:
        server.stop()


@contextmanager
def _postgres(here: Path) -> Iterator[Target]:
    sys.path.append(str(ROOT / "tests"))
    try:
        from postgres_server import Server

        server = Server(here, "shared_buffers=512MB", "max_wal_size=4GB", durable=True)
    except (ImportError, AssertionError, OSError) as problem:
        raise ServerMissing(str(problem)) from None
    try:
        version = server.do("SHOW server_version")[0][0].split()[0]
        settings = "shared_buffers=512MB, max_wal_size=4GB, the rest as installed"
        about = f"Postgres {version} on this machine, fsync on, {settings}, a new database for each"
        yield PostgresTarget(server, about)
    finally:
        server.stop()


def _find_traversable(folder: Path) -> Path:
    """Return `folder`, or the temporary folder if other users cannot enter it: Postgres does not run as root."""
    return (
        folder
        if all(parent.stat().st_mode & 0o005 == 0o005 for parent in folder.resolve().parents)
        else Path(tempfile.gettempdir())
    )
