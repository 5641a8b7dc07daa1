"""A process that places orders, or relays the outbox of others, until it is killed.

`python -m faultkit.order_process <store> <name> --orders <sqlite file or postgresql:// URL> [--relay]`
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


async def place_order(app: App, id: str, tx: Any) -> None:
    """Start a run with a key, and emit an event without one: only the transaction prevents a second event."""
    await app.start("shop", id, key=id, tx=tx)
    await app.emit("order.made", id, tx=tx)


async def order_in_sqlite(app: App, name: str, path: str) -> None:
    connection = sqlite3.connect(path, timeout=60)
    for n in range(1_000_000):
        connection.execute("INSERT INTO orders (id) VALUES (?)", (f"{name}-{n}",))
        await place_order(app, f"{name}-{n}", connection)
        connection.rollback() if n % 3 == 2 else connection.commit()
        await asyncio.sleep(0.002)  # lets the relay write to the same file


async def order_in_postgres(app: App, name: str, url: str) -> None:
    connection = await asyncpg.connect(url)
    for n in range(1_000_000):
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("INSERT INTO orders (id) VALUES ($1)", f"{name}-{n}")
        await place_order(app, f"{name}-{n}", connection)
        await (transaction.rollback() if n % 3 == 2 else transaction.commit())


async def main(store: str, name: str, orders: str, relay: bool) -> None:
    async with App(store, handlers=[shop]) as app:
        if relay:
            await app.outbox.relay(f"sqlite:///{orders}" if orders.endswith(".db") else orders, every="1ms")
        elif orders.endswith(".db"):
            await order_in_sqlite(app, name, orders)
        else:
            await order_in_postgres(app, name, orders)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("name")
    parser.add_argument("--orders", required=True)
    parser.add_argument("--relay", action="store_true")
    options = parser.parse_args()
    asyncio.run(main(options.store, options.name, options.orders, options.relay))
