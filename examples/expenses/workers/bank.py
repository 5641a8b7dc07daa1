"""A bank that fails now and then: the executors of the payment workflow."""

from __future__ import annotations

from typing import Any

from penstock import Context, RetryPolicy
from penstock.core.retry import Backoff
from penstock.dags import node

OFTEN = RetryPolicy(5, Backoff("exponential", 200))


@node("bank.reserve", retry=OFTEN, breaker={"failures": 5, "open_for": "30s"})
def reserve(order: dict[str, Any], ctx: Context) -> dict[str, Any]:
    if ctx.attempt == 1 and order["cents"] % 2:
        raise ConnectionError("the bank does not answer")  # odd amounts need a second attempt
    return {**order, "reservation": f"res-{order['cents']}"}


@node("bank.transfer", retry=OFTEN, rate_limit="50/1s")
def transfer(order: dict[str, Any], ctx: Context) -> dict[str, Any]:
    key = ctx.idempotency_key("transfer")  # the same in every attempt: the bank pays once
    return {**order, "transfer": f"{order['reservation']} by {key}"}
