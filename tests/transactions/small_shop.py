"""A small shop: its handlers, and a table of orders for the customers."""

from __future__ import annotations

from typing import Any

from penstock import Context, flow, job, step

TEST_TIMEOUT_S = 20  # how long a test waits
TABLE = "CREATE TABLE IF NOT EXISTS orders (id text)"
ADD = "INSERT INTO orders (id) VALUES ('7')"


@flow("shop", emits=["bought"], accepts=["paid"])
async def shop(order: dict[str, Any]) -> int:
    return order["id"]


@step(on="paid", mode="each")
async def ship(payment: dict[str, Any]) -> int:
    return payment["id"]


@job(queue="mail")
async def send(mail: dict[str, Any]) -> int:
    return mail["id"]


@flow("waiter", emits=[])
async def waiter(ctx: Context) -> Any:
    return (await ctx.wait.event("uploaded", match={"uploadToken": "aaa"})).data


HANDLERS = (shop, ship, send)
