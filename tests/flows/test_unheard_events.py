"""A kind that nothing listens to and that looks misspelled gets a hint, once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock import flow, step
from penstock.telemetry.logging import restore_loggers


@flow("shop", emits=["order.payed", "order.created", "order.paid"])
async def order(input: Any, ctx: Any) -> None:
    for kind in ("order.payed", "order.payed", "order.created", "order.paid"):
        ctx.emit(kind, input)


@step(on="order.paid")
async def ship(input: Any) -> str:
    return "shipped"


async def test_a_misspelled_kind_is_logged_once(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    with restore_loggers("penstock"):
        logging.getLogger("penstock").propagate = True
        async with app(order, ship) as a, a.workers.background():
            await a.run_to_end("shop", 1)
            await a.run_to_end("shop", 2)
            await a.emit("order.piad", 3)
    hints = [record.getMessage() for record in caplog.records if "listens" in record.getMessage()]
    assert hints == [
        "'order.payed' was emitted by step 'order', and nothing here listens to it; did you mean 'order.paid'?",
        "'order.piad' was emitted, and nothing here listens to it; did you mean 'order.paid'?",
    ], "order.created is an ordinary event without a listener"
