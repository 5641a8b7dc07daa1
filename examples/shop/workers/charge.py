"""The payment, written in the module contract: `queue`, `config` and `handle`. A plain function, run on a thread."""

import time

from orders import PACE

queue = "payments"
config = {
    "flow": {
        "id": "shop",
        "role": "step",
        "step": "charge",
        "triggers": "order.accepted",
        "emits": ["order.paid"],
        "compensation": "refund",
    },
    "retryPolicy": {"attempts": 4, "backoff": {"type": "fixed", "delayMs": 400, "jitter": False}},
}


def handle(order, ctx):
    ctx.emit({"type": "progress", "data": 50})
    time.sleep(PACE)
    if ctx.attempt < 3:
        raise ConnectionError("the payment provider does not answer")
    # The key is the same for every attempt, so the provider takes the money once.
    payment = {"order": order["order"], "amount": order["total"], "key": ctx.idempotency_key("payment")}
    ctx.emit({"kind": "order.paid", "data": {**payment, **order}})
    return payment
