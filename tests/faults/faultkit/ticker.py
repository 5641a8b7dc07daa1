"""A process of schedulers that is made to be killed: `python -m faultkit.ticker <url> --now <ms> [options]`.

It loads everything, waits for a line on its standard input, then fires what is due until nothing is, and says a line for
each slot it fired.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from typing import Any

from penstock import App, flow, job
from penstock.testing.clock import FakeClock


@flow("tick")
async def tick() -> None: ...


@job(queue="ticks")
async def ticked() -> None: ...


HANDLERS = (tick, ticked)


async def notify_all(app: App, say: Any) -> None:
    """Fires until nothing is due; other schedulers do the same."""
    scheduling: Any = app._schedule_service
    inner = scheduling.fire

    async def fire(row: Any, target: Any, decision: Any) -> bool:
        mine = bool(await inner(row, target, decision))
        if mine:
            say(decision.move.slot)
        return mine

    scheduling.fire = fire
    while (await app.store.due_schedules()).rows:
        await scheduling.scheduler.fire_due()


async def tick_on(options: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        apps = [App(options.url, handlers=HANDLERS, clock=FakeClock(options.now)) for _ in range(options.schedulers)]
        for app in apps:
            await stack.enter_async_context(app)
        await asyncio.gather(*(notify_all(app, lambda slot: print(slot, flush=True)) for app in apps))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--now", type=int, required=True)
    parser.add_argument("--schedulers", type=int, default=2)
    parser.add_argument("--mutant")
    options = parser.parse_args()
    if options.mutant:
        from . import mutants

        mutants.apply(options.mutant)
    print("loaded", flush=True)
    if not sys.stdin.readline():
        return  # nobody needs us
    asyncio.run(tick_on(options))


if __name__ == "__main__":
    main()
