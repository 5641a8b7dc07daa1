"""The schema of a file and its version: create it, migrate it, or refuse it.

A file carries `APPLICATION_ID` and the version of its schema. `schema.sql` creates the newest version. To change the
schema, edit it and append a file to `MIGRATIONS` that upgrades a file of the version before.
"""

from __future__ import annotations

from pathlib import Path

import apsw

from ...core.errors import StoreCorrupt, StoreError
from ..sql_files import read_sql

APPLICATION_ID = 0x50454E53  # "PENS", in PRAGMA application_id: many programs count their versions from 1
FIRST_VERSION = 13  # in PRAGMA user_version; earlier versions were never released
MIGRATIONS: tuple[str, ...] = ()  # the first upgrades FIRST_VERSION by one
SCHEMA_VERSION = FIRST_VERSION + len(MIGRATIONS)


def check_version(connection: apsw.Connection, path: str) -> int:
    """Return the schema version of a Penstock file, 0 for an empty file. Refuse any other file."""
    connection.execute("BEGIN")  # one snapshot: another process may be creating the schema
    try:
        application, version = _pragma(connection, "application_id"), _pragma(connection, "user_version")
        is_empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
    finally:
        connection.execute("ROLLBACK")
    _check_size(path)
    if application != APPLICATION_ID:
        if is_empty:
            return 0
        raise StoreCorrupt(f"{path} is a SQLite file of another program; use another path")
    _check_supported(version, path)
    return version


def _check_size(path: str) -> None:
    """Raise if the end of a file is missing: SQLite would find out when it needs that page, perhaps never."""
    file = Path(path)
    log = Path(f"{path}-wal")
    if path == ":memory:" or (log.exists() and log.stat().st_size):  # the log may contain the missing pages
        return
    with file.open("rb") as content:
        header = content.read(100)
    changes, pages, valid_for = (int.from_bytes(header[n : n + 4], "big") for n in (24, 28, 92))
    page_size = int.from_bytes(header[16:18], "big")
    needed = pages * (65536 if page_size == 1 else page_size)
    if len(header) == 100 and changes == valid_for and file.stat().st_size < needed:
        raise StoreCorrupt(
            f"{path} is truncated: it has {file.stat().st_size:,} bytes instead of {needed:,}; restore it from a "
            "backup or use another path"
        )


def check_current(version: int, path: str) -> None:
    """Raise unless a file that cannot be migrated, because it is opened read-only, has the current schema."""
    if version < SCHEMA_VERSION:
        found = (
            f"schema version {version}, but this version of Penstock reads {SCHEMA_VERSION}"
            if version
            else "no schema yet"
        )
        raise StoreError(f"{path} has {found}; open it once without ?mode=ro to migrate it")


def create_or_migrate(connection: apsw.Connection, path: str, version: int) -> None:
    """Create the schema in an empty file, or apply the migrations that a file lacks, in one transaction."""
    if version == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Read again inside the transaction: another process may have been faster.
        is_ours = _pragma(connection, "application_id") == APPLICATION_ID
        version = _pragma(connection, "user_version") if is_ours else 0
        if version:
            _check_supported(version, path)
        files = MIGRATIONS[version - FIRST_VERSION :] if version else ("schema.sql",)
        for file in files:
            connection.execute(_read(file))
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _check_supported(version: int, path: str) -> None:
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by a newer version of Penstock: its schema version is {version}, and the installed "
            f"Penstock supports up to {SCHEMA_VERSION}. Upgrade Penstock"
        )
    if version < FIRST_VERSION:
        raise StoreError(
            f"{path} was written by an older version of Penstock and cannot be migrated: its schema version is "
            f"{version}, and the installed Penstock supports {FIRST_VERSION} to {SCHEMA_VERSION}. Finish its runs with "
            "the older version, then use a new file"
        )


def _read(file: str) -> str:
    return read_sql(__package__, file)


def _pragma(connection: apsw.Connection, name: str) -> int:
    row = connection.execute(f"PRAGMA {name}").fetchone()
    assert row is not None
    return int(row[0])
