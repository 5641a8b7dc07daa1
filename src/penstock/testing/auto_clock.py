"""Skipping time: whenever nothing is left to do now, the clock moves on to when there is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from ..app.schedules import Scheduling
from ..app.workers import Working
from ..core.durations import show_ms
from ..handlers.registry import Registry
from ..ports.store import QueueRow, Store
from ..ports.unit import DELIVERIES, JobState
from ..settings import Settings
from .clock import FakeClock
from .pending_waits import hint, list_pending_waits, told

TIMEOUT_S = 10.0  # seconds of real time until a test that waits gives up
PAUSE = 0.001
OFTEN = 50  # firings of a schedule that are worth a word when a test takes too long
HELD = 20  # looks at work that nobody takes until it is taken for held back


class Stage(Protocol):
    """The App whose time it is."""

    store: Store
    registry: Registry
    settings: Settings
    time: FakeClock
    _working: Working
    _scheduling: Scheduling


class Timeline:
    """The time of one App in a test."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._held = 0

    async def settle(self) -> None:
        """Waits until nothing is left to do at the present time."""
        await self._until(self._is_settled, "what there is to do now")

    async def skip_until(self, ended: Callable[[], Awaitable[bool]], what: str) -> None:
        """Moves from one moment at which something is due to the next, until it has ended."""

        async def done() -> bool:
            if await ended():
                return True
            if await self._is_settled() and not await ended():
                self._move(await self._next_moment(what))
            return False

        await self._until(done, what)

    async def skip_to(self, moment: int) -> None:
        """Lets everything that is due until a moment happen at its own time."""
        await self.settle()
        while (due := await self._due()) is not None and due <= moment:
            self._move(due)
            await self.settle()
        self._move(moment)
        await self.settle()

    async def _until(self, done: Callable[[], Awaitable[bool]], what: str) -> None:
        loop, start = asyncio.get_running_loop(), self._stage.time.now_ms()
        deadline = loop.time() + TIMEOUT_S
        while not await done():
            if loop.time() > deadline:
                skipped = show_ms(self._stage.time.now_ms() - start)
                raise AssertionError(
                    f"{what} has not ended in {TIMEOUT_S:g} s, {skipped} of the test's time: {await self._where()}"
                )
            await asyncio.sleep(PAUSE)

    async def _is_settled(self) -> bool:
        """Whether nothing is left to do now, and nothing happened while this was found out."""
        newest = await self._newest()
        if not await self._looks_settled():
            return False
        await self._answered()
        return newest == await self._newest() and not self._stage._working.in_hand

    async def _answered(self) -> None:
        """Waits until no claim is under way, which may have taken something. While the next thing is due within a
        moment, one is most of the time: the worker looks again and again, and the clock stands still."""
        while self._stage._working.asked_for:  # noqa: ASYNC110 - an answer sets no event
            await asyncio.sleep(0)

    async def _newest(self) -> list[str]:
        return [item.cursor for item in await self._stage.store.feed(None)]

    async def _looks_settled(self) -> bool:
        stage = self._stage
        if stage._working.in_hand or await self._is_late():
            self._held = 0
            return False
        rows = [row for row in await self._rows() if row.counts[JobState.WAITING] and not row.paused]
        if not rows or stage._working.in_hand:
            self._held = 0
            return not rows
        # Waiting, and nobody takes it: a limit holds it back, or the worker has not looked yet.
        self._held += 1
        if self._held % 5 == 0:
            self._wake()
        return self._held > HELD and (stage._working.next_due or 0) > stage.time.now_ms()

    async def _is_late(self) -> bool:
        """Whether something is due that has not happened yet."""
        stage, now = self._stage, self._stage.time.now_ms()
        due = (await stage.store.due_schedules()).rows
        late = any([not await stage._scheduling.is_held(row, now) for row in due])
        if not late and not any(moment is not None and moment <= now for moment in await self._delayed()):
            return False
        self._wake()
        return True

    async def _next_moment(self, what: str) -> int:
        stage = self._stage
        moment = await self._due(schedules=not await self._paused())
        if moment is None:
            raise AssertionError(f"{what} has not ended, and nothing is due any more: {await self._where()}")
        return max(moment, stage.time.now_ms())

    async def _due(self, *, schedules: bool = True) -> int | None:
        """The next moment at which something happens."""
        stage, now = self._stage, self._stage.time.now_ms()
        moments = [await stage.store.next_schedule(now) if schedules else None, *await self._delayed()]
        if stage._working.next_due is not None and stage._working.next_due > now:
            moments.append(stage._working.next_due)
        elif any(row.counts[JobState.ACTIVE] for row in await self._rows()):
            moments.append(now + stage.settings.lease)  # left behind by a crash
        return min((moment for moment in moments if moment is not None), default=None)

    async def _delayed(self) -> list[int | None]:
        rows = [row for row in await self._rows() if row.counts[JobState.DELAYED] and not row.paused]
        return [job.due for row in rows for job in await self._stage.store.jobs(row.name, JobState.DELAYED, limit=1)]

    async def _rows(self) -> list[QueueRow]:
        """The queues somebody works on here, that of deliveries among them."""
        known = {*self._stage.registry.queues(), DELIVERIES}
        return [row for row in await self._stage.store.queues() if row.name in known]

    async def _paused(self) -> bool:
        """Whether work waits in a paused queue: schedules alone would then go on for ever."""
        return any(row.paused and row.counts[JobState.WAITING] for row in await self._rows())

    async def _where(self) -> str:
        known = {*self._stage.registry.queues(), DELIVERIES}
        said: list[str] = []
        for row in await self._stage.store.queues():
            held = {state: count for state, count in row.counts.items() if count and state in _LIVE}
            if not held:
                continue
            note = "" if row.name in known else ", and no handler of this app works on it"
            if row.paused:
                note = f", and it is paused: await app.queues.resume({row.name!r}) lets it go on"
            said.append(f"queue {row.name!r} has {', '.join(f'{n} {state}' for state, n in held.items())}{note}")
        said += [
            f"{told(wait)}: {hint(wait)}" for wait in await list_pending_waits(self._stage.store) if wait.until is None
        ]
        said += [
            f"schedule {row.id!r} has fired {row.fired} times on the way: await app.pause_schedule({row.id!r}) lets "
            "time pass without it"
            for row in await self._stage.store.schedules()
            if row.fired >= OFTEN and not row.paused
        ]
        return "; ".join(said) or "no queue holds anything"

    def _move(self, moment: int) -> None:
        self._held = 0
        self._stage.time.set_ms(max(moment, self._stage.time.now_ms()))
        self._wake()

    def _wake(self) -> None:
        self._stage.store.signals.notify_all()


_LIVE = tuple(
    state.value
    for state in (JobState.WAITING, JobState.DELAYED, JobState.ACTIVE, JobState.SUSPENDED, JobState.WAITING_CHILDREN)
)
