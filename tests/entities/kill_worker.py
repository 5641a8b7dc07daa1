"""A worker process for the kill test: each event adds its number to the entity's data."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from penstock import App
from penstock.entities import States, Transition, entity


async def note(data: dict[str, Any], payload: int) -> None:
    await asyncio.sleep(0)
    data["seen"] = [*data.get("seen", []), payload]


@entity("ledger", retry=50)
class Ledger:
    states = States("open", idles=["open"])
    transitions = [Transition("add", "open", "open", actions=[note])]


async def main(url: str) -> None:
    async with App(url, handlers=[Ledger], lease="1s") as app:
        print("ready", flush=True)
        await app.workers.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
