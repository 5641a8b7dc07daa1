"""Creating and updating the schema, one process at a time."""

from __future__ import annotations

from hashlib import blake2b

from ...core.errors import StoreError
from .address import Address
from .connection import Connection
from .statements import Statements, migrations


async def prepare(connection: Connection, sql: Statements, address: Address) -> list[int]:
    """What opening does: applies what is missing, unless the URL says that another role is to."""
    done = await _done(connection, sql)
    if len(done) < len(migrations()) and not address.migrate:
        raise StoreError(f"{address.shown} is not set up for this version of Penstock: run `penstock migrate`")
    return await migrate(connection, sql, address)


async def migrate(connection: Connection, sql: Statements, address: Address) -> list[int]:
    """Applies what is missing in one transaction; gives the numbers applied."""
    done, known = await _done(connection, sql), migrations()
    if done and done[-1] > known[-1][0]:
        raise StoreError(
            f"{address.shown} was set up by a newer Penstock (migration {done[-1]}, this one knows {known[-1][0]}): "
            "upgrade"
        )
    if len(done) == len(known):
        return []
    async with connection.transaction():
        await connection.execute(sql.alone, lock_key(f"{sql.schema} migrations"))
        return await _apply(connection, sql)


async def _apply(connection: Connection, sql: Statements) -> list[int]:
    done = await _done(connection, sql)  # another process may have been faster
    there = await connection.fetchval(sql.find_versions, sql.schema)
    if there is None:
        await connection.execute(sql.create_schema.format(schema=f'"{sql.schema}"'))
    if not there:
        await connection.execute(sql.create_versions)
    missing = [(number, text) for number, text in migrations() if number not in done]
    for number, text in missing:
        await connection.execute(sql.placed(text))
        await connection.execute(sql.note_version, number)
    return [number for number, _ in missing]


async def _done(connection: Connection, sql: Statements) -> list[int]:
    if not await connection.fetchval(sql.find_versions, sql.schema):
        return []
    return [row[0] for row in await connection.fetch(sql.versions)]


def lock_key(name: str) -> int:
    """A number for an advisory lock; the same in every process."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)
