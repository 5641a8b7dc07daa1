"""Which pg-boss a schema is of, and whether it is one we know how to join."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

import asyncpg

from ...core.errors import ConfigError
from ...stores.postgres.connection import Connection
from ...stores.sql_files import Queries

log = logging.getLogger("penstock.pgboss")

OLDEST, TESTED = 34, 43  # versions of its schema: pg-boss 12 brings them
ORIGIN = 43  # since then a dead letter keeps what went wrong
_TEXT = Queries(__package__, "statements.sql")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
# What our statements name of its tables.
_NEEDED = {
    "job": "id name priority data state retry_limit retry_count retry_delay retry_backoff retry_delay_max "
    "expire_seconds deletion_seconds singleton_key group_id group_tier start_after created_on started_on completed_on "
    "keep_until output dead_letter policy heartbeat_on heartbeat_seconds blocked source_name source_id "
    "source_created_on source_retry_count",
    "queue": "name policy retry_limit retry_delay retry_backoff retry_delay_max expire_seconds retention_seconds "
    "deletion_seconds dead_letter heartbeat_seconds notify",
    "schedule": "name key cron timezone data",
}


class PgBossSchema(ConfigError):
    """A schema is not one of pg-boss', or of a version that cannot be joined."""

    code = "pgboss_schema"


class Statements:
    """statements.sql for one schema."""

    def __init__(self, schema: str) -> None:
        if not _NAME.fullmatch(schema):
            raise PgBossSchema(f"{schema!r} is not the name of a pg-boss schema: use letters, digits and '_'")
        self.schema = schema
        placed = {name: re.sub(r"\bpgboss\.", f'"{schema}".', text) for name, text in vars(_TEXT).items()}
        self.__dict__.update(placed)

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"no statement named {name}")


async def check(connection: Connection, sql: Statements, where: str) -> int:
    """The version of the schema, or PgBossSchema with what to do."""
    try:
        version = await connection.fetchval(sql.version)
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        version = None
    if version is None:
        raise PgBossSchema(
            f"{where} has no pg-boss in schema {sql.schema!r}: give schema= its name, or start pg-boss once so that "
            "it makes its tables"
        )
    if version < OLDEST:
        raise PgBossSchema(
            f"the pg-boss in schema {sql.schema!r} of {where} has version {version}; {OLDEST} to {TESTED} are known: "
            "upgrade the npm package pg-boss to the newest 12 and start it once"
        )
    await _check_columns(connection, sql, version, where)
    return int(version)


async def _check_columns(connection: Connection, sql: Statements, version: int, where: str) -> None:
    """A newer version is taken if it still has all we name."""
    there = {row[0] for row in await connection.fetch(sql.columns, sql.schema)}
    missing = sorted(name for name in _names() if name not in there)
    if missing:
        raise PgBossSchema(
            f"the pg-boss in schema {sql.schema!r} of {where} has version {version} and lacks {', '.join(missing)}; "
            f"{OLDEST} to {TESTED} are known: use a Penstock that knows {version}, or that pg-boss"
        )
    if version > TESTED:
        log.warning("pg-boss schema %r has version %s, newer than those tested (%s)", sql.schema, version, TESTED)


def _names() -> Iterable[str]:
    return (f"{table}.{column}" for table, columns in _NEEDED.items() for column in columns.split())
