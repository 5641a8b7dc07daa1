"""A small shop: the handlers that customers hand work to, and a table for theirs."""

from __future__ import annotations

from typing import Any

from penstock import flow, job, step

TEST_TIMEOUT_S = 20  # seconds until a test that waits gives up
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


HANDLERS = (shop, ship, send)
