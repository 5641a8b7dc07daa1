"""A process that buys something in a transaction and is killed at a given moment: `python buyer.py MOMENT STORE CUSTOMER`.

MOMENT: `before` or `after` the commit, or `marking`: as a relay, when a row is handed over and not yet taken out.
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


async def buy_in_postgres(moment: str, app: App, place: str) -> None:
    connection = await asyncpg.connect(place)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(ADD)
    await app.start("shop", {"id": 7}, key=f"killed-{moment}", tx=connection)
    await app.enqueue("mail", {"id": 8}, id=f"mail-{moment}", tx=connection)
    if moment == "after":
        await transaction.commit()
    die()


async def buy_in_sqlite(moment: str, app: App, place: str) -> None:
    connection = sqlite3.connect(place)
    connection.execute(ADD)
    await app.start("shop", {"id": 7}, key=f"killed-{moment}", tx=connection)
    await app.enqueue("mail", {"id": 8}, id=f"mail-{moment}", tx=connection)
    if moment == "after":
        connection.commit()
    die()


async def relay(app: App, place: str) -> None:
    async def never(_self: Relay, _ids: list[str]) -> None:
        die()

    Relay._take_out = never  # type: ignore[method-assign]
    await app.outbox.drain(place)


async def main(moment: str, store: str, customer: str) -> None:
    async with App(store, handlers=HANDLERS) as app:
        if moment == "marking":
            await relay(app, customer)
        elif customer.startswith("postgresql:"):
            await buy_in_postgres(moment, app, customer)
        else:
            await buy_in_sqlite(moment, app, customer)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
