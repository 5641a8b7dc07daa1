"""A process that buys, or carries over what others bought, until it is killed.

`python -m faultkit.buyer <store> <name> --orders <sqlite file or postgresql:// URL> [--relay]`
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
from typing import Any

import asyncpg

from penstock import App, flow


@flow("shop")
async def shop(order: str) -> str:
    return order


async def buy(app: App, id: str, tx: Any) -> None:
    """A run by a key, and an event without one: nothing but the transaction keeps that from being told twice."""
    await app.start("shop", id, key=id, tx=tx)
    await app.emit("order.made", id, tx=tx)


async def in_sqlite(app: App, name: str, path: str) -> None:
    connection = sqlite3.connect(path, timeout=60)
    for n in range(1_000_000):
        connection.execute("INSERT INTO orders (id) VALUES (?)", (f"{name}-{n}",))
        await buy(app, f"{name}-{n}", connection)
        connection.rollback() if n % 3 == 2 else connection.commit()
        await asyncio.sleep(0.002)  # room for the relay, which writes to the same file


async def in_postgres(app: App, name: str, url: str) -> None:
    connection = await asyncpg.connect(url)
    for n in range(1_000_000):
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("INSERT INTO orders (id) VALUES ($1)", f"{name}-{n}")
        await buy(app, f"{name}-{n}", connection)
        await (transaction.rollback() if n % 3 == 2 else transaction.commit())


async def main(store: str, name: str, orders: str, relay: bool) -> None:
    async with App(store, handlers=[shop]) as app:
        if relay:
            await app.outbox.relay(f"sqlite:///{orders}" if orders.endswith(".db") else orders, every="1ms")
        elif orders.endswith(".db"):
            await in_sqlite(app, name, orders)
        else:
            await in_postgres(app, name, orders)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("name")
    parser.add_argument("--orders", required=True)
    parser.add_argument("--relay", action="store_true")
    given = parser.parse_args()
    asyncio.run(main(given.store, given.name, given.orders, given.relay))
