"""A worker process for the kill tests: messages of BullMQ or Kafka reach ledgers, which note their numbers.

python message_worker.py STORE bullmq|kafka ADDRESS
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from penstock import App
from penstock.entities import States, Transition, entity
from penstock.messaging import EmitToEntity
from penstock.messaging.bullmq import BullMQ
from penstock.messaging.kafka import Kafka

QUEUE = "ledgers"
TARGETS = {QUEUE: {"add": EmitToEntity("add")}}


async def note(data: dict[str, Any], payload: int) -> None:
    data.setdefault("seen", []).append(payload)


@entity("ledger", retry=50)
class Ledger:
    states = States("open", idles=["open"])
    transitions = [Transition("add", "open", "open", actions=[note])]


def make_bridge(system: str, address: str, *, is_consumer: bool = True) -> Any:
    consume = TARGETS if is_consumer else None
    if system == "bullmq":
        return BullMQ(address, consume=consume, lease="1s", poll="20ms")
    return Kafka(address, group="ledgers", consume=consume, session_timeout="1500ms")


async def main(url: str, system: str, address: str) -> None:
    async with App(url, handlers=[Ledger], lease="1s", bridges=[make_bridge(system, address)]) as app:
        print("ready", flush=True)
        await app.workers.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
