"""Check the version of a pg-boss schema, and adapt the statements to its name."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

import asyncpg

from ...core.errors import PgBossSchema
from ...stores.postgres.connection import Connection
from ...stores.sql_files import Queries

log = logging.getLogger("penstock.pgboss")

OLDEST_VERSION, NEWEST_VERSION = 34, 43  # tested schema versions, all of pg-boss 12
DEAD_LETTER_SOURCE_VERSION = 43  # the first version in which a dead letter has the error
_STATEMENTS = Queries(__package__, "statements.sql")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
# The columns that the statements use.
_COLUMNS = {
    "job": "id name priority data state retry_limit retry_count retry_delay retry_backoff retry_delay_max "
    "expire_seconds deletion_seconds singleton_key group_id group_tier start_after created_on started_on completed_on "
    "keep_until output dead_letter policy heartbeat_on heartbeat_seconds blocked source_name source_id "
    "source_created_on source_retry_count",
    "queue": "name policy retry_limit retry_delay retry_backoff retry_delay_max expire_seconds retention_seconds "
    "deletion_seconds dead_letter heartbeat_seconds notify",
    "schedule": "name key cron timezone data",
}


class Statements:
    """The statements of statements.sql, for one schema."""

    def __init__(self, schema: str) -> None:
        if not _NAME.fullmatch(schema):
            raise PgBossSchema(f"invalid pg-boss schema name {schema!r}; use letters, digits and '_'")
        self.schema = schema
        adapted = {name: re.sub(r"\bpgboss\.", f'"{schema}".', text) for name, text in vars(_STATEMENTS).items()}
        self.__dict__.update(adapted)

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"no statement named {name!r}")


async def check_schema(connection: Connection, sql: Statements, where: str) -> int:
    """Return the version of the schema, or raise PgBossSchema with what to do."""
    try:
        version = await connection.fetchval(sql.version)
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.InvalidSchemaNameError):
        version = None
    if version is None or not isinstance(version, int):
        raise PgBossSchema(
            f"{where} has no pg-boss in schema {sql.schema!r}; pass its name as schema=, or start pg-boss once "
            "to create its tables"
        )
    if version < OLDEST_VERSION:
        raise PgBossSchema(
            f"the pg-boss in schema {sql.schema!r} of {where} has version {version}; {OLDEST_VERSION} to "
            f"{NEWEST_VERSION} are supported. Upgrade the npm package pg-boss to the newest 12 and start it once"
        )
    await _check_columns(connection, sql, version, where)
    return int(version)


async def _check_columns(connection: Connection, sql: Statements, version: int, where: str) -> None:
    """Accept a newer version if it still has all columns that the statements use."""
    found = {row[0] for row in await connection.fetch(sql.columns, sql.schema)}
    missing = sorted(name for name in _column_names() if name not in found)
    if missing:
        raise PgBossSchema(
            f"the pg-boss in schema {sql.schema!r} of {where} has version {version} and lacks "
            f"{', '.join(missing)}; {OLDEST_VERSION} to {NEWEST_VERSION} are supported. Upgrade Penstock, or use "
            "a supported pg-boss"
        )
    if version > NEWEST_VERSION:
        log.warning(
            "pg-boss schema %r has version %s, which is newer than the tested versions (%s)",
            sql.schema,
            version,
            NEWEST_VERSION,
        )


def _column_names() -> Iterable[str]:
    return (f"{table}.{column}" for table, columns in _COLUMNS.items() for column in columns.split())
