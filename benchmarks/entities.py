"""Entity events per second, beside flow steps on the same store, and beside the library `transitions` with a queue.

python -m benchmarks.entities sqlite | redis | postgres [rounds]
python -m benchmarks.entities sqlite | redis | postgres --growth [events]   # the cost of one more event
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from penstock import App, flow, step
from penstock.entities import States, Transition, entity

from .peers import PeersMissing, command
from .servers import open_target

EVENTS, URNS = 9_000, 500
FEW, MANY, FILL = 100, 100_000, 1_000
BATCH, ROUNDS = 300, 9
BY_HAND = Path(__file__).parent / "contenders" / "transitions_by_hand.py"


async def count(data: dict[str, Any]) -> None:
    data["count"] = data.get("count", 0) + 1


@entity("tally", queue="tallies")
class Tally:
    states = States("open", idles=["open"])
    transitions = (Transition("add", "open", "open", actions=[count]),)


async def count_all(data: dict[str, Any], payloads: list[Any]) -> None:
    data["count"] = data.get("count", 0) + len(payloads)


@entity("tally", queue="tallies")
class FastTally:
    """The same, to fill a store: it handles many events at a time."""

    states = States("open", idles=["open"])
    batches = MappingProxyType({"add": 64})
    transitions = (Transition("add", "open", "open", actions=[count_all]),)


@flow("three", emits=["one"])
async def three(_: Any, ctx: Any) -> None:
    ctx.emit("one")


@step(on="one", emits=["two"], flow="three")
async def second(_: Any, ctx: Any) -> None:
    ctx.emit("two")


@step(on="two", flow="three")
async def third(_: Any) -> None: ...


HANDLERS = [Tally, three, second, third]


async def measure_steps(url: str) -> float:
    """Return steps per second of flows of three steps that were started before the worker."""
    async with App(url, handlers=HANDLERS) as app:
        runs = [await app.start("three", {}) for _ in range(EVENTS // 3)]
        began = time.perf_counter()
        async with app.workers.background(concurrency=50):
            await asyncio.gather(*(app.result(run) for run in runs))
        return EVENTS / (time.perf_counter() - began)


async def measure_entities(url: str) -> tuple[float, float]:
    """Return the events per second that a worker handles, and those that are emitted before it starts."""
    async with App(url, handlers=HANDLERS) as app:
        began = time.perf_counter()
        for _ in range(EVENTS // URNS):
            last = await asyncio.gather(*(app.entities.emit(f"tally-{n}", "add") for n in range(URNS)))
        emitted = EVENTS / (time.perf_counter() - began)
        began = time.perf_counter()
        async with app.workers.background(concurrency=50):
            await asyncio.gather(*(one.result() for one in last))
        return EVENTS / (time.perf_counter() - began), emitted


def measure_by_hand(url: str) -> float | None:
    """Return the events per second of a queue and a state machine by hand, in one transaction for each event."""
    try:
        program = [*command("transitions"), str(BY_HAND), url, str(EVENTS), str(URNS)]
    except PeersMissing as problem:
        print(f"transitions: {problem}")
        return None
    return float(subprocess.run(program, capture_output=True, text=True, check=True).stdout)


async def compare(reset: Callable[[], str], rounds: int) -> None:
    ratios, rows = [], []
    for _ in range(rounds):
        steps, (events, emitted) = await measure_steps(reset()), await measure_entities(reset())
        by_hand = measure_by_hand(reset())
        ratios.append(events / steps)
        rows.append((steps, events, emitted, by_hand or 0.0))
        print("steps {:,.0f}/s, events {:,.0f}/s, emitted {:,.0f}/s, by hand {:,.0f}/s".format(*rows[-1]), flush=True)
    steps, events, emitted, by_hand = (median(column) for column in zip(*rows, strict=True))
    print(f"median: steps {steps:,.0f}/s, events {events:,.0f}/s ({median(ratios):.2f} of the steps, ", end="")
    print(f"{min(ratios):.2f}–{max(ratios):.2f}), emitted {emitted:,.0f}/s, by hand {by_hand:,.0f}/s")


async def measure_growth(url: str, total: int) -> None:
    """Print what one more event costs an entity with 100 events and one with many, in turn."""
    async with App(url, handlers=[FastTally]) as app, app.workers.background():
        for urn, goal in (("tally-few", FEW), ("tally-many", total)):
            for first in range(0, goal, FILL):
                size = min(FILL, goal - first)
                sent = await asyncio.gather(*(app.entities.emit(urn, "add") for _ in range(size)))
                await max(sent, key=lambda one: one.n or 0).result()
    costs: dict[str, list[float]] = {"tally-few": [], "tally-many": []}
    async with App(url, handlers=[Tally]) as app, app.workers.background():
        await add(app, "tally-warm", BATCH)
        for _ in range(ROUNDS):
            for urn, found in costs.items():
                began = time.perf_counter()
                await add(app, urn, BATCH)
                found.append((time.perf_counter() - began) * 1000 / BATCH)
        done = (await app.entities.get("tally-many")).data["count"]
    ratios = [many / few for few, many in zip(*costs.values(), strict=True)]
    few, many = (median(found) for found in costs.values())
    print(f"{FEW} events before: {few:.3f} ms an event; {done:,} events: {many:.3f} ms, ", end="")
    print(f"{median(ratios):.2f} of it ({min(ratios):.2f}–{max(ratios):.2f})")


async def add(app: App, urn: str, events: int) -> None:
    """Emit events in small groups, so that the mailbox stays short, and wait for the last."""
    for first in range(0, events, 50):
        sent = [await app.entities.emit(urn, "add") for _ in range(min(50, events - first))]
        await sent[-1].result()


def main(part: str, *rest: str) -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)  # Postgres does not run as root
    try:
        with open_target(part, folder) as target:

            def reset() -> str:
                return target.reset() or f"sqlite:///{folder}/{uuid4().hex}.db"

            if rest[:1] == ("--growth",):
                asyncio.run(measure_growth(reset(), int(rest[1]) if len(rest) > 1 else MANY))
            else:
                asyncio.run(compare(reset, int(rest[0]) if rest else 3))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
