"""A process that orders in a transaction and kills itself: `python killed_process.py MOMENT STORE CUSTOMER`.

MOMENT: `before` or `after` the commit, or `deleting`: in a relay, when a row is delivered and not yet deleted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys

import asyncpg
from small_shop import ADD, HANDLERS

from penstock import App
from penstock.transactions.relay import Relay


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def order_in_postgres(moment: str, app: App, location: str) -> None:
    connection = await asyncpg.connect(location)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(ADD)
    await app.start("shop", {"id": 7}, key=f"killed-{moment}", tx=connection)
    await app.enqueue("mail", {"id": 8}, key=f"mail-{moment}", tx=connection)
    if moment == "after":
        await transaction.commit()
    die()


async def order_in_sqlite(moment: str, app: App, location: str) -> None:
    connection = sqlite3.connect(location)
    connection.execute(ADD)
    await app.start("shop", {"id": 7}, key=f"killed-{moment}", tx=connection)
    await app.enqueue("mail", {"id": 8}, key=f"mail-{moment}", tx=connection)
    if moment == "after":
        connection.commit()
    die()


async def relay(app: App, location: str) -> None:
    async def delete(_self: Relay, _ids: list[str]) -> None:
        die()

    Relay._delete = delete  # type: ignore[method-assign]
    await app.outbox.drain(location)


async def main(moment: str, store: str, customer: str) -> None:
    async with App(store, handlers=HANDLERS) as app:
        if moment == "deleting":
            await relay(app, customer)
        elif customer.startswith("postgresql:"):
            await order_in_postgres(moment, app, customer)
        else:
            await order_in_sqlite(moment, app, customer)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
