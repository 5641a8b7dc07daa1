"""A small shop, and the handlers it hands work to."""

from __future__ import annotations

from typing import Any

from penstock import flow, job, step


@flow("shop", emits=["bought"], accepts=["paid", "posted"])
async def shop(order: dict[str, Any], ctx: Any) -> int:
    return order["id"]


@step(on="paid", mode="each")
async def ship(payment: dict[str, Any]) -> int:
    return payment["id"]


@job(queue="mail")
async def send(mail: dict[str, Any]) -> int:
    return mail["id"]


HANDLERS = (shop, ship, send)
