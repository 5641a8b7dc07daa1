"""Flows under way while a test makes trouble for their store; afterwards all of it is judged."""

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

from . import trades


class Load:
    """What was asked for and what came of it. `problems` is filled when the trouble is over."""

    def __init__(self, app: App, effects: EffectLog, pace: float) -> None:
        self.app = app
        self._pace = pace  # seconds a producer rests after each start
        self.acknowledged: list[str] = []
        self.refused = 0  # commands that were told to try again
        self.looks = 0
        self.problems: list[str] = []
        self._effects = effects
        self._over = asyncio.Event()
        self._count = 0
        self._said: list[int] = []

    async def more(self, starts: int, patience: float = 60) -> None:
        """Waits until so many more runs have been acknowledged."""
        goal = len(self.acknowledged) + starts
        await until(lambda: len(self.acknowledged) >= goal, patience)

    async def back(self, patience: float = 60) -> float:
        """Waits until a command is taken and a handler begins; gives how many seconds it took."""
        began, noted = time.monotonic(), self._noted()
        await self.more(1, patience)
        await until(lambda: self._noted() > noted, patience)
        return time.monotonic() - began

    async def renews(self) -> None:
        """Waits until a job can be claimed and its lease renewed, which goes over a line of its own."""

        async def renewed() -> bool:
            try:
                one = await add_and_claim(self.app.store, "j")
                return self.app.store.renew([one], 30_000) == []
            except StoreUnavailable:
                return False

        await until(renewed, 60)

    def _noted(self) -> int:
        path = self._effects.path
        return path.stat().st_size if path.exists() else 0

    async def produce(self) -> None:
        """Starts flows one after another; one that was not answered is asked for again, by the same key."""
        while not self._over.is_set():
            number, self._count = self._count, self._count + 1
            while not await self._start(number):
                self.refused += 1

    async def say(self) -> None:
        """Says things without a key: nothing but the commit's own id keeps them from being written twice."""
        number = 0
        while not self._over.is_set():
            number += 1
            try:
                await self.app.emit("said", number)
            except StoreUnavailable:
                continue  # nobody knows whether it was
            self._said.append(number)
            await asyncio.sleep(0.01)

    async def _start(self, number: int) -> bool:
        try:
            run = await self.app.start(trades.FLOWS[number % 3], {"n": number}, key=f"flow-{number}")
        except StoreUnavailable:
            return False
        self.acknowledged.append(run)
        await asyncio.sleep(self._pace)
        return True

    async def watch(self) -> None:
        """At no moment is there an open run that nothing will move on."""
        while True:
            try:
                loose = await self.app.store.stuck_runs()
            except StoreUnavailable:
                loose = []
            self.looks += 1
            if loose and len(self.problems) < 10:
                self.problems.append(f"loose: {loose[0]}: an open run with no job and no wait")
            await asyncio.sleep(0.05)

    async def settle(self, producing: list[asyncio.Task[None]], patience: float) -> None:
        self._over.set()
        await asyncio.gather(*producing)
        try:
            await until(self._quiet, patience)
        except AssertionError:
            pass  # what is left over is told by name below

    async def _quiet(self) -> bool:
        try:
            return not await self.app.store.runs(status="running", limit=1)
        except StoreUnavailable:
            return False

    async def judge(self, *, executed: bool = True, acknowledged: bool = True) -> None:
        history = await read_history(
            self.app.store,
            effects=self._effects.read() if executed else (),
            acknowledged=self.acknowledged if acknowledged else (),
            triggers=trades.TRIGGERS,
            namespace=self.app.settings.namespace,
        )
        self.problems += [str(violation) for violation in check(history)]
        self.problems += [] if not acknowledged else await self._unlike_what_was_said()
        self.problems += [f"loose: {run}" for run in await self.app.store.stuck_runs()]

    async def _unlike_what_was_said(self) -> list[str]:
        written = Counter(
            event.data
            for event in await self.app.events.read_all(f"{self.app.settings.namespace}:global")
            if event.kind == "said"
        )
        lost = [f"lost: what was said as number {number}" for number in self._said if not written[number]]
        return lost + [f"twice: what was said as number {number}" for number, n in written.items() if n > 1]

    def __str__(self) -> str:
        return (
            f"{len(self.acknowledged)} runs acknowledged, {self.refused} commands refused, {self.looks} looks for "
            f"loose runs, {len(self.problems)} problems"
        )


@asynccontextmanager
async def under_way(
    url: str,
    folder: Path,
    *,
    lease: str = "2s",
    producers: int = 3,
    patience: float = 60,
    forgetful: bool = False,
    namespace: str = "nq",
    pace: float = 0.005,
) -> AsyncIterator[Load]:
    """Flows are started and worked on while the body makes trouble; `forgetful`: the store may lose what it said it
    had, as a whole, and then an attempt may be handed out again under its number."""
    effects, real = EffectLog(folder / "effects.jsonl"), trades.EFFECTS
    trades.EFFECTS = effects
    try:
        async with App(url, handlers=trades.HANDLERS, lease=lease, namespace=namespace) as app:
            load = Load(app, effects, pace)
            async with app.workers.background(concurrency=20):
                producing = [asyncio.create_task(load.produce()) for _ in range(producers)]
                producing.append(asyncio.create_task(load.say()))
                watching = asyncio.create_task(load.watch())
                try:
                    yield load
                    await load.settle(producing, patience)
                finally:
                    for task in (*producing, watching):
                        task.cancel()
                    await asyncio.wait((*producing, watching))
            await load.judge(executed=not forgetful, acknowledged=not forgetful)
    finally:
        trades.EFFECTS = real
