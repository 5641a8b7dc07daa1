"""Open a file read-only, because the caller may not or does not want to write it (`?mode=ro`).

If the file has a write-ahead log and the log's index, another process may be writing, and SQLite reads both. This
module never creates either of them: they would belong to the reader and keep the writer out. Without a log, everything
is in the file and nobody is writing. The file is then read as it is, and a read is discarded if the file has changed
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import apsw

from ...core.errors import StoreError, StoreUnavailable
from .connection import BusyHandler, check_not_folder, translate_error
from .schema import check_current, check_version
from .stream_heads import StreamHeads
from .writer import Work

FileState = tuple[int, int, int, bool]  # inode, size, time of the last write, whether there is a log


class ReadOnlyWriter:
    """Replaces the writer and refuses every write."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.heads = StreamHeads()

    def start(self) -> None:
        """Open the file once, to raise what is wrong with it."""
        connect_read_only(self.path).close()

    async def run(self, work: Work[Any], _: Callable[[], None] | None = None, *, is_small: bool = False) -> NoReturn:  # noqa: ARG002
        self.run_blocking(work)

    def run_blocking(self, _: Work[Any]) -> NoReturn:
        raise StoreError(
            f"{self.path} is open read-only, so nothing can be changed; remove ?mode=ro from the URL. If the URL "
            "does not have it, you have no permission to write the file or its folder: run as their owner, or "
            "change the permissions"
        )

    def close(self) -> None:
        pass


class ImmutableConnection(apsw.Connection):
    """A connection to a file without a log. It does not see later writes, but detects them."""

    def watch(self, path: str, state: FileState) -> None:
        self._path, self._state = path, state

    @property
    def is_outdated(self) -> bool:
        return _file_state(self._path) != self._state


def connect_read_only(path: str) -> apsw.Connection:
    """Open a file so that neither it nor its folder is changed."""
    check_not_folder(Path(path))
    if not Path(path).is_file():
        raise StoreUnavailable(f"file {path} not found")
    try:
        connection = _connect_with_log(path) if _has_file(path, "-wal") else _connect_without_log(path)
        version = check_version(connection, path)
    except apsw.Error as problem:
        raise translate_error(problem, path) from problem
    check_current(version, path)
    return connection


def is_outdated(connection: apsw.Connection) -> bool:
    """Return whether another process has written since the connection was opened, and it cannot see that."""
    return isinstance(connection, ImmutableConnection) and connection.is_outdated


def check_unchanged(connection: apsw.Connection, path: str) -> None:
    """Raise if the file was written during the last read, which may then mix two states."""
    if is_outdated(connection):
        raise StoreUnavailable(f"{path} was changed while it was being read; read it again")


def _connect_with_log(path: str) -> apsw.Connection:
    if not _has_file(path, "-shm"):
        raise StoreUnavailable(
            f"cannot open {path} read-only. The file was not closed properly, so SQLite must read the log {path}-wal, "
            f"and it cannot create the file {path}-shm that it needs for that. Copy {path} and {path}-wal to a folder "
            "that you can write to, and open the copy"
        )
    connection = apsw.Connection(_uri(path, "mode=ro"), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    connection.set_busy_handler(BusyHandler())
    return connection


def _connect_without_log(path: str) -> ImmutableConnection:
    state = _file_state(path)  # before anything is read
    connection = ImmutableConnection(_uri(path, "immutable=1"), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    connection.watch(path, state)
    return connection


def _has_file(path: str, suffix: str) -> bool:
    return Path(f"{path}{suffix}").exists()


def _file_state(path: str) -> FileState:
    file = Path(path).stat()
    return file.st_ino, file.st_size, file.st_mtime_ns, _has_file(path, "-wal")


def _uri(path: str, options: str) -> str:
    return f"file:{quote(str(Path(path).resolve()))}?{options}"
