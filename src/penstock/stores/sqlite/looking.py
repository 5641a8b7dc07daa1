"""A file that is only read, because no more is allowed or wanted (`?mode=ro`).

While its log is there, with the index that belongs to it, another process may be writing: SQLite then reads both beside
it. Neither is ever created here: it would belong to whoever looks, and keep out whoever works. Without a log everything
is in the file, and nobody is writing: it is read as it is, and each read is thrown away if that has not remained so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import apsw

from ...core.errors import StoreError, StoreUnavailable
from .connection import FORMAT, Patience, recognise, translate
from .writer import Work

State = tuple[int, int, int, bool]  # of a file: which it is, its size, when it was written, whether it has a log


class Onlooker:
    """Stands where the writer does, and writes nothing."""

    def __init__(self, path: str) -> None:
        self.path = path

    def start(self) -> None:
        """Raises what is wrong with the file."""
        connect_to_read(self.path).close()

    async def run(self, work: Work[Any], _: Callable[[], None] | None = None, *, small: bool = False) -> NoReturn:  # noqa: ARG002
        self.run_blocking(work)

    def run_blocking(self, _: Work[Any]) -> NoReturn:
        raise StoreError(
            f"{self.path} is opened to be read only, so nothing can be changed in it: take ?mode=ro off the URL; if it "
            "was not in yours, you may not write the file or its folder: work as its owner, or change the permissions"
        )

    def close(self) -> None:
        pass


class Unwritten(apsw.Connection):
    """A connection to a file without a log; it says so when one appears."""

    def watch(self, path: str, state: State) -> None:
        self._path, self._seen = path, state

    @property
    def outdated(self) -> bool:
        return _state(self._path) != self._seen


def connect_to_read(path: str) -> apsw.Connection:
    """A connection that cannot change the file, nor leave another beside it."""
    if not Path(path).is_file():
        raise StoreUnavailable(f"there is no file {path} to be read")
    try:
        connection = _with_log(path) if _has(path, "-wal") else _without_log(path)
        format_ = recognise(connection, path)
    except apsw.Error as problem:
        raise translate(problem, path) from problem
    if format_ < FORMAT:
        raise StoreError(
            f"{path} has format {format_}, this Penstock reads {FORMAT}: open it once where it may be written, which "
            "brings it up to date"
        )
    return connection


def outdated(connection: apsw.Connection) -> bool:
    """Whether somebody has written since it was opened, which it cannot see."""
    return isinstance(connection, Unwritten) and connection.outdated


def check(connection: apsw.Connection, path: str) -> None:
    """Raises if what was just read may be of two moments."""
    if outdated(connection):
        raise StoreUnavailable(f"{path} was written while it was read: ask again")


def _with_log(path: str) -> apsw.Connection:
    if not _has(path, "-shm"):
        raise StoreUnavailable(
            f"{path} cannot be only read: it was not closed, and its log {path}-wal needs a file beside it to be read. "
            f"Copy {path} and {path}-wal to a folder of your own, and give that as the URL"
        )
    connection = apsw.Connection(_uri(path, "mode=ro"), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    connection.set_busy_handler(Patience())
    return connection


def _without_log(path: str) -> Unwritten:
    state = _state(path)  # as it is before anything is read
    connection = Unwritten(_uri(path, "immutable=1"), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    connection.watch(path, state)
    return connection


def _has(path: str, ending: str) -> bool:
    return Path(f"{path}{ending}").exists()


def _state(path: str) -> State:
    file = Path(path).stat()
    return file.st_ino, file.st_size, file.st_mtime_ns, _has(path, "-wal")


def _uri(path: str, options: str) -> str:
    return f"file:{quote(str(Path(path).resolve()))}?{options}"
