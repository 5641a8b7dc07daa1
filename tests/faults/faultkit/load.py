"""A load of flows while a test injects faults into the store; afterwards the history is checked."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock import App
from penstock.core.errors import StoreUnavailable
from penstock.testing.contracts.samples import add_and_claim
from penstock.testing.faults import EffectLog
from penstock.testing.history import check, read_history
from penstock.testing.until import until

from . import worker_flows


class Load:
    """The producers of a load and what they saw. `problems` is complete after `check`."""

    def __init__(self, app: App, effects: EffectLog, pace: float) -> None:
        self.app = app
        self._pace = pace  # seconds a producer waits after each start
        self.acknowledged: list[str] = []
        self.refused = 0  # commands that failed and were repeated
        self.stuck_checks = 0
        self.problems: list[str] = []
        self._effects = effects
        self._over = asyncio.Event()
        self._count = 0
        self._emitted: list[int] = []

    async def wait_for_starts(self, starts: int, timeout: float = 60) -> None:
        """Wait until this number of further runs has been acknowledged."""
        goal = len(self.acknowledged) + starts
        await until(lambda: len(self.acknowledged) >= goal, timeout)

    async def wait_for_recovery(self, timeout: float = 60) -> float:
        """Wait until a command succeeds and a handler starts; return how many seconds it took."""
        started, effects = time.monotonic(), self._effects_size()
        await self.wait_for_starts(1, timeout)
        await until(lambda: self._effects_size() > effects, timeout)
        return time.monotonic() - started

    async def wait_for_renewal(self) -> None:
        """Wait until a job can be claimed and its lease renewed, which uses a separate connection."""

        async def is_renewed() -> bool:
            try:
                one = await add_and_claim(self.app.store, "j")
                return self.app.store.renew([one], 30_000) == []
            except StoreUnavailable:
                return False

        await until(is_renewed, 60)

    def _effects_size(self) -> int:
        path = self._effects.path
        return path.stat().st_size if path.exists() else 0

    async def produce(self) -> None:
        """Start flows one after another; repeat a start that failed, with the same key."""
        while not self._over.is_set():
            number, self._count = self._count, self._count + 1
            while not await self._start(number):
                self.refused += 1

    async def emit(self) -> None:
        """Emit events without a key: only the id of the commit prevents a second write."""
        number = 0
        while not self._over.is_set():
            number += 1
            try:
                await self.app.emit("counted", number)
            except StoreUnavailable:
                continue  # it may have been written or not
            self._emitted.append(number)
            await asyncio.sleep(0.01)

    async def _start(self, number: int) -> bool:
        try:
            run = await self.app.start(worker_flows.FLOWS[number % 3], {"n": number}, key=f"flow-{number}")
        except StoreUnavailable:
            return False
        self.acknowledged.append(run)
        await asyncio.sleep(self._pace)
        return True

    async def watch(self) -> None:
        """Check again and again that no open run is without a job and a wait."""
        while True:
            try:
                stuck = await self.app.store.stuck_runs()
            except StoreUnavailable:
                stuck = []
            self.stuck_checks += 1
            if stuck and len(self.problems) < 10:
                self.problems.append(f"stuck: {stuck[0]}: an open run with no job and no wait")
            await asyncio.sleep(0.05)

    async def settle(self, producing: list[asyncio.Task[None]], timeout: float) -> None:
        """Stop the producers and wait until no run is running."""
        self._over.set()
        await asyncio.gather(*producing)
        try:
            await until(self._is_idle, timeout)
        except AssertionError:
            pass  # `check` names the runs that are left

    async def _is_idle(self) -> bool:
        try:
            return not await self.app.runs.list(status="open", limit=1)
        except StoreUnavailable:
            return False

    async def check(self, *, executed: bool = True, acknowledged: bool = True) -> None:
        """Check the history, with or without what was executed and acknowledged."""
        history = await read_history(
            self.app.store,
            effects=self._effects.read() if executed else (),
            acknowledged=self.acknowledged if acknowledged else (),
            triggers=worker_flows.TRIGGERS,
            namespace=self.app.settings.namespace,
        )
        self.problems += [str(violation) for violation in check(history)]
        self.problems += [] if not acknowledged else await self._check_emitted()
        self.problems += [f"stuck: {run}" for run in await self.app.store.stuck_runs()]

    async def _check_emitted(self) -> list[str]:
        written = Counter(
            event.data
            for event in await self.app.events.read_all(f"{self.app.settings.namespace}:global")
            if event.kind == "counted"
        )
        lost = [f"lost: the event with number {number}" for number in self._emitted if not written[number]]
        return lost + [f"twice: the event with number {number}" for number, n in written.items() if n > 1]

    def __str__(self) -> str:
        return (
            f"{len(self.acknowledged)} runs acknowledged, {self.refused} commands refused, "
            f"{self.stuck_checks} checks for stuck runs, {len(self.problems)} problems"
        )


@asynccontextmanager
async def run_load(
    url: str,
    folder: Path,
    *,
    lease: str = "2s",
    producers: int = 3,
    timeout: float = 60,
    may_lose_writes: bool = False,
    namespace: str = "nq",
    pace: float = 0.005,
) -> AsyncIterator[Load]:
    """Start flows and work on them while the body injects faults. With `may_lose_writes` the store may lose
    acknowledged writes, and an attempt may then be claimed again under the same number."""
    effects, real = EffectLog(folder / "effects.jsonl"), worker_flows.EFFECTS
    worker_flows.EFFECTS = effects
    try:
        async with App(url, handlers=worker_flows.HANDLERS, lease=lease, namespace=namespace) as app:
            load = Load(app, effects, pace)
            async with app.workers.background(concurrency=20):
                producing = [asyncio.create_task(load.produce()) for _ in range(producers)]
                producing.append(asyncio.create_task(load.emit()))
                watching = asyncio.create_task(load.watch())
                try:
                    yield load
                    await load.settle(producing, timeout)
                finally:
                    for task in (*producing, watching):
                        task.cancel()
                    await asyncio.wait((*producing, watching))
            await load.check(executed=not may_lose_writes, acknowledged=not may_lose_writes)
    finally:
        worker_flows.EFFECTS = real
