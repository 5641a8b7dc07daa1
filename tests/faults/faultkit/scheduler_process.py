"""A process with schedulers, for the kill suites: `python -m faultkit.scheduler_process <url> --now <ms> [options]`.

It imports everything, waits for a line on standard input, then fires until nothing is due, and prints a line for each
slot that it fired.
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


async def fire_due_slots(app: App, on_fired: Any) -> None:
    """Fire until nothing is due, while other schedulers do the same."""
    scheduling: Any = app._schedule_service
    inner = scheduling.fire

    async def fire(row: Any, target: Any, decision: Any) -> bool:
        has_fired = bool(await inner(row, target, decision))
        if has_fired:
            on_fired(decision.move.slot)
        return has_fired

    scheduling.fire = fire
    while (await app.store.due_schedules()).rows:
        await scheduling.scheduler.fire_due()


async def run_schedulers(options: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        apps = [App(options.url, handlers=HANDLERS, clock=FakeClock(options.now)) for _ in range(options.schedulers)]
        for app in apps:
            await stack.enter_async_context(app)
        await asyncio.gather(*(fire_due_slots(app, lambda slot: print(slot, flush=True)) for app in apps))


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
        return  # the test ended without needing this process
    asyncio.run(run_schedulers(options))


if __name__ == "__main__":
    main()
