"""Instructions per run of one step, counted by callgrind: they do not depend on the load of the machine.

python -m benchmarks.step_cost [--against SRC] [--only NAME …]

SRC is the `src` folder of another version of Penstock: each scenario is then counted with both, and the ratio printed.
Every scenario is run with COUNTS runs; the difference leaves out imports and the opening of the store. `starts` has no
worker: subtract it to get the step alone. `run-silent` is `run` without the event of its call, and `set-state-off` is
`set-state` without the event of the change.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

COUNTS = (100, 300)
SLOTS = 50
SLOWDOWN = 100  # of time: else leases expire, and sweeps come more often, on a busy machine and under valgrind
START_MS = 1_700_000_000_000
SOURCE = Path(__file__).resolve().parent.parent / "src"


def _value() -> int:
    return 7


def make_flows() -> dict[str, Any]:
    """Return the flow of each scenario."""
    from penstock import Context, flow

    @flow("plain")
    async def plain(ctx: Context) -> int:
        return 7

    @flow("run")
    async def run(ctx: Context) -> int:
        return int(await ctx.run("value", _value))

    @flow("five-runs")
    async def five_runs(ctx: Context) -> int:
        return sum([await ctx.run("value", _value) for _ in range(5)])

    @flow("resume")
    async def resume(ctx: Context) -> int:
        first = await ctx.run("first", _value)
        await ctx.wait.time(0.001)
        return int(first + await ctx.run("second", _value))

    @flow("set-state")
    async def set_state(ctx: Context) -> None:
        await ctx.state.set("total", 7)

    return {
        "starts": plain,
        "plain": plain,
        "run": run,
        "five-runs": five_runs,
        "resume": resume,
        "set-state": set_state,
    }


SCENARIOS = ("starts", "plain", "run", "run-silent", "five-runs", "resume", "set-state", "set-state-off")
VARIANTS = ("-silent", "-off")  # older versions do not have them


def silence_calls() -> None:
    """Leave out `call.completed`, to measure what it costs."""
    from penstock.durable.call_events import CallEvents, CallTimer

    def complete(self: CallEvents, timer: CallTimer, _size: int) -> None:
        self.drop(timer)

    CallEvents.complete = complete  # type: ignore[method-assign]


async def execute(name: str, count: int) -> None:
    """Start runs of a scenario and work them off."""
    from penstock import App
    from penstock.core.clock import SystemClock

    class SlowClock(SystemClock):
        def now_ms(self) -> int:
            return START_MS + int(time.monotonic() * 1000 / SLOWDOWN)

    try:
        from penstock.testing.threadless_sqlite import InlineDatabase, InlineStore
    except ImportError:  # its name in older versions
        from penstock.testing.inline_store import InlineDatabase, InlineStore  # type: ignore[import-not-found, no-redef]

    options: dict[str, Any] = {"state_events": "off"} if name.endswith("-off") else {}
    if name.endswith("-silent"):
        silence_calls()
    flow = make_flows()[name.removesuffix("-off").removesuffix("-silent")]
    loop = asyncio.get_running_loop()
    loop.time = lambda: time.monotonic() / SLOWDOWN  # type: ignore[method-assign]
    store = InlineStore(InlineDatabase(), clock=SlowClock())  # on the loop's thread: the batches are always the same
    async with App(store=store, handlers=[flow], **options) as app:
        runs = [await app.start(flow) for _ in range(count)]
        if name != "starts":
            async with app.workers.background(concurrency=SLOTS):
                await app.result(runs[-1])  # callers that wait for each run would poll on a slow machine


def count_instructions(source: Path, name: str, count: int) -> int:
    """Run a scenario under callgrind and return the instructions of the whole process."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, __file__]
    environment = os.environ | {"PYTHONPATH": str(source), "PYTHONHASHSEED": "0"}
    ended = subprocess.run(
        [*command, "--execute", name, str(count)], env=environment, capture_output=True, text=True, check=False
    )
    found = re.search(r"Collected\s*:\s*(\d+)", ended.stderr)
    if ended.returncode or found is None:
        raise SystemExit(f"{name} failed under valgrind:\n{ended.stderr[-2000:]}")
    return int(found[1])


def measure(source: Path, name: str) -> float:
    """Return the instructions per run, in thousands."""
    with ThreadPoolExecutor() as pool:
        few, many = pool.map(lambda count: count_instructions(source, name, count), COUNTS)
    return (many - few) / (COUNTS[1] - COUNTS[0]) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_cost", description=__doc__)
    parser.add_argument("--against", type=Path, help="the src folder of another version")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="count only this scenario; may be repeated")
    parser.add_argument("--execute", nargs=2, metavar=("NAME", "COUNT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.execute:
        asyncio.run(execute(args.execute[0], int(args.execute[1])))
        return
    for name in args.only or SCENARIOS:
        now = measure(SOURCE, name)
        line = f"{name:14} {now:8,.0f} thousand instructions"
        if args.against and not name.endswith(VARIANTS):
            before = measure(args.against, name)
            line += f", before {before:8,.0f}: the rate is {before / now:.3f} of it"
        print(line, flush=True)


if __name__ == "__main__":
    main()
