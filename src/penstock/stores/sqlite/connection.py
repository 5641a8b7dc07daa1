"""Opening the file, and SQLite's errors in our words."""

from __future__ import annotations

import itertools
import os
import time
from importlib import resources
from pathlib import Path

import apsw

from ...core.errors import StoreCorrupt, StoreError, StoreFull, StoreUnavailable

MEMORY = ":memory:"
FORMAT = 3  # kept in the file's user_version
_STEPS = ("schema.sql", "children.sql", "keys.sql")  # what each format brought
OURS = 0x50454E53  # "PENS", kept in the file's application_id: many programs count their formats from 1
_BUSY_SECONDS = 30.0
_MAY_NOT = "check the path and its permissions, and those of its folder; to only look at it, add ?mode=ro to the URL"


class Patience:
    """Waits for another process's write in short naps: SQLite's own handler backs off to 100 ms and starves."""

    __slots__ = ("gone", "since")

    def __init__(self) -> None:
        self.gone = False  # the caller has better to do than to wait
        self.since = 0.0

    def __call__(self, count: int) -> bool:
        if self.gone:
            return False
        if count == 0:
            self.since = time.monotonic()
        time.sleep(0.0003 if count < 50 else 0.002)
        return time.monotonic() - self.since < _BUSY_SECONDS


def connect(path: str, patience: Patience | None = None) -> apsw.Connection:
    """A connection with our settings, the schema in place."""
    if path != MEMORY:
        _prepare(Path(path))
    try:
        connection = apsw.Connection(path, statementcachesize=200)
        if connection.readonly("main"):  # SQLite opens what it may not write all the same, and fails later
            raise StoreUnavailable(f"cannot write {path}: {_MAY_NOT}")
        connection.set_busy_handler(patience or Patience())
        # Without this, statements that use a partial index are prepared anew each time they are given values.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        # Before any setting is made: those below would change a file that is another program's.
        format_ = recognise(connection, path)
        _write_ahead(connection)
        # FULL: an acknowledged commit survives power loss. Group commit pays for the fsync.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 4000").fetchall()
        connection.execute("PRAGMA cache_size = -32000")
        connection.execute("PRAGMA temp_store = MEMORY")
        if format_ < FORMAT:
            _bring_up(connection)
    except apsw.Error as problem:
        raise translate(problem, path) from problem
    return connection


def _prepare(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            # Payloads can be private: the file is the owner's alone from the first byte on.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as problem:
        raise StoreUnavailable(f"cannot open {path}: {problem.strerror}; give a path you may write to") from None


def _write_ahead(connection: apsw.Connection) -> None:
    """Switches to the write-ahead log. SQLite asks no busy handler for this: who comes second is refused at once."""
    patient = Patience()
    for count in itertools.count():
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except apsw.BusyError:
            if not patient(count):
                raise


def recognise(connection: apsw.Connection, path: str) -> int:
    """The format of a file of ours, 0 for an empty one; anything else is refused."""
    connection.execute("BEGIN")  # one look: another process may be creating the schema
    try:
        owner, format_ = _pragma(connection, "application_id"), _pragma(connection, "user_version")
        empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
    finally:
        connection.execute("ROLLBACK")
    if owner == OURS and format_ > FORMAT:
        raise StoreError(f"{path} was written by a newer Penstock (format {format_}, this one knows {FORMAT}): upgrade")
    if owner != OURS and not empty:
        raise StoreCorrupt(f"{path} is a SQLite file of something else: give another path")
    return format_ if owner == OURS else 0


def _bring_up(connection: apsw.Connection) -> None:
    """Creates what is missing: each file of statements is a format."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Asked once more: another process may have been faster.
        has = _pragma(connection, "user_version") if _pragma(connection, "application_id") == OURS else 0
        for file in _STEPS[has:]:
            connection.execute(resources.files(__package__).joinpath(file).read_text("utf-8"))
        if has < FORMAT:
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute(f"PRAGMA application_id = {OURS}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _pragma(connection: apsw.Connection, name: str) -> int:
    row = connection.execute(f"PRAGMA {name}").fetchone()
    assert row is not None
    return int(row[0])


def translate(problem: BaseException, path: str) -> StoreError:
    """Our error for one of SQLite's."""
    if isinstance(problem, StoreError):
        return problem
    if isinstance(problem, apsw.FullError):
        return StoreFull(f"no room left to write {path}: free some disk space, work goes on by itself")
    if isinstance(problem, apsw.NotADBError | apsw.CorruptError):
        return StoreCorrupt(
            f"{path} is not a readable SQLite file ({problem}): restore it from a backup or use another path"
        )
    if isinstance(problem, apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError):
        return StoreUnavailable(f"cannot write {path} ({problem}): {_MAY_NOT}")
    if isinstance(problem, apsw.BusyError | apsw.LockedError):
        return StoreUnavailable(
            f"{path} stayed locked by another process for {_BUSY_SECONDS:.0f} s: is one stopped inside a write?"
        )
    if isinstance(problem, apsw.IOError):
        return StoreUnavailable(f"cannot read or write {path} ({problem}): check the disk")
    return StoreError(f"{path}: {type(problem).__name__}: {problem}")
