"""Open a file with the store's settings, and translate SQLite's errors."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import apsw

from ...core.errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from .schema import check_version, create_or_migrate

MEMORY = ":memory:"
BUSY_TIMEOUT_S = 30.0
_CHECK_PERMISSIONS = (
    "check the path and the permissions of the file and its folder; for read-only access, add ?mode=ro to the URL"
)


class BusyHandler:
    """Waits in short sleeps while another process writes: SQLite's own handler backs off to 100 ms and starves."""

    __slots__ = ("is_disabled", "since")

    def __init__(self) -> None:
        self.is_disabled = False  # set while the caller must not wait
        self.since = 0.0

    def __call__(self, count: int) -> bool:
        if self.is_disabled:
            return False
        if count == 0:
            self.since = time.monotonic()
        time.sleep(0.0003 if count < 50 else 0.002)
        return time.monotonic() - self.since < BUSY_TIMEOUT_S


def connect(path: str, busy_handler: BusyHandler | None = None) -> apsw.Connection:
    """Open a file for writing, with its schema created or migrated."""
    if path != MEMORY:
        _create_file(Path(path))
    try:
        connection = apsw.Connection(path, statementcachesize=200)
        if connection.readonly("main"):  # SQLite opens a file it may not write, and would fail later
            raise StoreUnavailable(f"cannot write {path}; {_CHECK_PERMISSIONS}")
        connection.set_busy_handler(busy_handler or BusyHandler())
        # Without this, SQLite prepares statements that use a partial index again for each execution.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        # Before the settings below: they would change a file of another program.
        version = check_version(connection, path)
        _enable_wal(connection)
        # FULL: an acknowledged commit survives power loss. Group commit pays for the fsync.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 4000").fetchall()
        connection.execute("PRAGMA cache_size = -32000")
        connection.execute("PRAGMA temp_store = MEMORY")
        create_or_migrate(connection, path, version)
    except apsw.Error as problem:
        raise translate_error(problem, path) from problem
    return connection


def _create_file(path: Path) -> None:
    check_not_folder(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            # Inputs can be private: only the owner may read the file, from the first byte on.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as problem:
        raise StoreUnavailable(f"cannot open {path}: {problem.strerror}; use a path that you can write to") from None


def check_not_folder(path: Path) -> None:
    """Raise if the path of a store is a folder."""
    if path.is_dir():
        raise StoreUnavailable(f"{path} is a folder, not a file; name a file in it, such as {path / 'penstock.db'}")


def _enable_wal(connection: apsw.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not call the busy handler for this, so wait here."""
    wait = BusyHandler()
    for count in itertools.count():
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except apsw.BusyError:
            if not wait(count):
                raise


def translate_error(problem: BaseException, path: str) -> StoreError:
    """Return the StoreError for an error of SQLite."""
    if isinstance(problem, StoreError):
        return problem
    if isinstance(problem, apsw.FullError):
        return StoreFull(f"no space left to write {path}; free some disk space. Work then continues automatically")
    if isinstance(problem, apsw.NotADBError | apsw.CorruptError):
        return StoreCorrupt(
            f"{path} is not a readable SQLite file ({problem}); restore it from a backup or use another path"
        )
    if isinstance(problem, apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError):
        return StoreUnavailable(f"cannot write {path} ({problem}); {_CHECK_PERMISSIONS}")
    if isinstance(problem, apsw.BusyError | apsw.LockedError):
        return StoreUnavailable(
            f"another process has locked {path} for {BUSY_TIMEOUT_S:.0f} s; look for a process that is paused or stuck "
            "in a write"
        )
    if isinstance(problem, apsw.IOError):
        return StoreUnavailable(f"cannot read or write {path} ({problem}); check the disk")
    return StoreError(f"{path}: {type(problem).__name__}: {problem}")
