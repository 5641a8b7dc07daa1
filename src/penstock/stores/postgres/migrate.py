"""Create and update the schema, one process at a time.

Tables and types change by numbered files in `migrations`. Functions are files in `functions`, and every migration
creates all of them again: to change a function, edit its file and add a numbered migration, if only `SELECT 1`. That
migration drops functions and types whose parameters change.
"""

from __future__ import annotations

from hashlib import blake2b

from ...core.errors import StoreError
from ...core.near_match import near_matches
from ..namespace_owner import check_owner
from .address import Address
from .connection import Connection
from .statements import Statements, functions, migrations


async def prepare(connection: Connection, sql: Statements, address: Address) -> list[int]:
    """Apply the missing migrations when a store is opened, unless the URL forbids it."""
    applied = await _applied(connection, sql)
    if len(applied) < len(migrations()) and not address.migrate:
        raise await _not_set_up(connection, sql, address, is_older=bool(applied))
    return await migrate(connection, sql, address)


async def check_namespace(connection: Connection, sql: Statements, address: Address, namespace: str) -> None:
    """Set the namespace of a new schema, or raise if it belongs to another one."""
    owner = await connection.fetchval(sql.namespace)
    if owner is None and address.migrate:
        await connection.execute(sql.set_namespace, namespace)
        owner = await connection.fetchval(sql.namespace)
    check_owner(owner, namespace, address.shown, "add ?schema={namespace} to the URL")


async def _not_set_up(connection: Connection, sql: Statements, address: Address, *, is_older: bool) -> StoreError:
    """Return the error for a schema without our tables, with the schemas of this database that have them."""
    if is_older:
        return StoreError(f"{address.shown} has tables of an older Penstock; run `penstock migrate`")
    others = [row[0] for row in await connection.fetch(sql.schemas_in_use) if row[0] != sql.schema]
    if near := near_matches(sql.schema, others):
        hint = f"did you mean schema={near[0]}? Or"
    else:
        hint = f"Penstock's tables are in {', '.join(others)}; or" if others else ""
    return StoreError(f"{address.shown} has no Penstock tables yet; {f'{hint} run `penstock migrate`'.strip()}")


async def migrate(connection: Connection, sql: Statements, address: Address) -> list[int]:
    """Apply the missing migrations in one transaction. Return their numbers."""
    applied, known = await _applied(connection, sql), migrations()
    if applied and applied[0] < known[0][0]:
        raise StoreError(
            f"{address.shown} was set up by an older version of Penstock and cannot be migrated: it is at migration "
            f"{applied[-1]}, and the installed Penstock supports {known[0][0]} to {known[-1][0]}. Finish its runs with "
            "the older version, then use a new Postgres schema"
        )
    if applied and applied[-1] > known[-1][0]:
        raise StoreError(
            f"{address.shown} was set up by a newer version of Penstock: it is at migration {applied[-1]}, and the "
            f"installed Penstock supports up to {known[-1][0]}. Upgrade Penstock"
        )
    if len(applied) == len(known):
        return []
    async with connection.transaction():
        await connection.execute(sql.lock, lock_key(f"{sql.schema} migrations"))
        return await _apply_missing(connection, sql)


async def _apply_missing(connection: Connection, sql: Statements) -> list[int]:
    applied = await _applied(connection, sql)  # another process may have been faster
    found = await connection.fetchval(sql.find_versions, sql.schema)
    if found is None:
        await connection.execute(sql.create_schema.format(schema=f'"{sql.schema}"'))
    if not found:
        await connection.execute(sql.create_versions)
    missing = [(number, text) for number, text in migrations() if number not in applied]
    for number, text in missing:
        await connection.execute(sql.in_schema(text))
        await connection.execute(sql.add_version, number)
    if missing:
        for text in functions():
            await connection.execute(sql.in_schema(text))
    return [number for number, _ in missing]


async def _applied(connection: Connection, sql: Statements) -> list[int]:
    if not await connection.fetchval(sql.find_versions, sql.schema):
        return []
    return [row[0] for row in await connection.fetch(sql.versions)]


def lock_key(name: str) -> int:
    """Return the number of an advisory lock, the same in every process."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)
