"""Skip time in tests: when nothing is left to do now, move the clock to the next due moment, or list what waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from ..app.schedule_service import ScheduleService
from ..app.waits import Waits, WaitView
from ..app.workers import Workers
from ..core.durations import Duration, format_ms, to_ms
from ..core.errors import WaitTimeout
from ..durable.wait_records import EVENT, TIME
from ..handlers.registry import Registry
from ..ports.store import QueueRow, Store
from ..ports.unit import DELIVERIES, JobState
from ..settings import Settings
from .clock import FakeClock

TIMEOUT_S = 10.0  # real time until a waiting test gives up
POLL_INTERVAL_S = 0.001
WAITS_PAGE = 200
MENTION_SCHEDULE_AFTER_FIRINGS = 50  # the timeout message names schedules that fired this often
HELD_BACK_AFTER_POLLS = 20  # waiting work that no worker takes for this many polls counts as held back


class ClockedApp(Protocol):
    """The App whose clock is moved."""

    store: Store
    registry: Registry
    settings: Settings
    time: FakeClock
    waits: Waits
    workers: Workers
    _schedule_service: ScheduleService


class AutoClock:
    """Moves the fake clock of one App from due moment to due moment."""

    def __init__(self, app: ClockedApp) -> None:
        self._app = app
        self._idle_polls = 0

    async def settle(self) -> None:
        """Wait until nothing is left to do at the present time."""
        await self._until(self._is_settled, "the work that is due now")

    async def skip_until(
        self, has_ended: Callable[[], Awaitable[bool]], what: str, timeout: Duration | None = None
    ) -> None:
        """Move the clock from one due moment to the next until `has_ended`; raise WaitTimeout after `timeout`."""
        end = None if timeout is None else self._app.time.now_ms() + to_ms(timeout)

        async def is_done() -> bool:
            if await has_ended():
                return True
            if await self._is_settled() and not await has_ended():
                moment = await self._next_moment(what)
                if end is not None and moment > end:
                    self._move(end)
                    raise WaitTimeout(f"{what} did not end within {timeout} of test time: {await self._describe()}")
                self._move(moment)
            return False

        await self._until(is_done, what)

    async def skip_to(self, moment: int) -> None:
        """Move the clock to a moment; everything due on the way happens at its own time."""
        await self.settle()
        while (due := await self._next_due()) is not None and due <= moment:
            self._move(due)
            await self.settle()
        self._move(moment)
        await self.settle()

    async def _until(self, is_done: Callable[[], Awaitable[bool]], what: str) -> None:
        loop, start = asyncio.get_running_loop(), self._app.time.now_ms()
        deadline = loop.time() + TIMEOUT_S
        while not await is_done():
            if loop.time() > deadline:
                skipped = format_ms(self._app.time.now_ms() - start)
                raise AssertionError(
                    f"{what} has not ended within {TIMEOUT_S:g} s ({skipped} of test time): {await self._describe()}"
                )
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _is_settled(self) -> bool:
        """Return whether nothing is left to do now and nothing happened while checking."""
        newest = await self._newest_cursors()
        if not await self._looks_settled():
            return False
        await self._wait_for_claims()
        return newest == await self._newest_cursors() and not self._app.workers.active

    async def _wait_for_claims(self) -> None:
        """Wait until no claim is in flight: it may have taken a job. When the next job is due within a moment, a
        claim is nearly always in flight, because the worker keeps polling while the clock stands still."""
        while self._app.workers.requested:  # noqa: ASYNC110 - an answer sets no event
            await asyncio.sleep(0)

    async def _newest_cursors(self) -> list[str]:
        return [item.cursor for item in await self._app.store.feed(None)]

    async def _looks_settled(self) -> bool:
        app = self._app
        if app.workers.active or await self._is_late():
            self._idle_polls = 0
            return False
        rows = [row for row in await self._rows() if row.counts[JobState.WAITING] and not row.paused]
        if not rows or app.workers.active:
            self._idle_polls = 0
            return not rows
        # A job waits and no worker takes it: a limit holds it back, or the worker has not polled yet.
        self._idle_polls += 1
        if self._idle_polls % 5 == 0:
            self._wake()
        return self._idle_polls > HELD_BACK_AFTER_POLLS and (app.workers.next_due or 0) > app.time.now_ms()

    async def _is_late(self) -> bool:
        """Return whether something is overdue."""
        app, now = self._app, self._app.time.now_ms()
        due = (await app.store.due_schedules()).rows
        is_late = any([not await app._schedule_service.is_held(row, now) for row in due])
        if not is_late and not any(moment is not None and moment <= now for moment in await self._delayed_due()):
            return False
        self._wake()
        return True

    async def _next_moment(self, what: str) -> int:
        app = self._app
        moment = await self._next_due(schedules=not await self._is_paused())
        if moment is None:
            raise AssertionError(f"{what} has not ended and nothing else is due: {await self._describe()}")
        return max(moment, app.time.now_ms())

    async def _next_due(self, *, schedules: bool = True) -> int | None:
        """Return the next moment at which something happens."""
        app, now = self._app, self._app.time.now_ms()
        moments = [await app.store.next_schedule(now) if schedules else None, *await self._delayed_due()]
        if app.workers.next_due is not None and app.workers.next_due > now:
            moments.append(app.workers.next_due)
        elif any(row.counts[JobState.ACTIVE] for row in await self._rows()):
            moments.append(now + app.settings.lease)  # a crash left an active job behind
        return min((moment for moment in moments if moment is not None), default=None)

    async def _delayed_due(self) -> list[int | None]:
        """Return when the first delayed job of each queue is due. A wait with a timeout is stored as delayed."""
        states = (JobState.DELAYED, JobState.SUSPENDED)
        rows = [row for row in await self._rows() if any(row.counts[state] for state in states) and not row.paused]
        return [job.due for row in rows for job in await self._app.store.jobs(row.name, JobState.DELAYED, limit=1)]

    async def _rows(self) -> list[QueueRow]:
        """Return the queues this App works on, including the one for deliveries."""
        known = {*self._app.registry.queues(), DELIVERIES}
        return [row for row in await self._app.store.queues() if row.name in known]

    async def _is_paused(self) -> bool:
        """Return whether work waits in a paused queue: skipping from schedule to schedule would then never end."""
        return any(row.paused and row.counts[JobState.WAITING] for row in await self._rows())

    async def _describe(self) -> str:
        """Describe what is left: jobs by queue, waits, and schedules that keep firing."""
        known = {*self._app.registry.queues(), DELIVERIES}
        parts: list[str] = []
        for row in await self._app.store.queues():
            live = {state: count for state, count in row.counts.items() if count and state in _LIVE_STATES}
            if not live:
                continue
            note = "" if row.name in known else ", and no handler of this app works on it"
            if row.paused:
                note = f", and it is paused; resume it with await app.queues.resume({row.name!r})"
            parts.append(f"queue {row.name!r} has {', '.join(f'{n} {state}' for state, n in live.items())}{note}")
        waits = await list_pending_waits(self._app.waits)
        parts += [f"{describe_wait(wait)}{suggest_answer(wait)}" for wait in waits]
        parts += [
            (
                f"schedule {row.id!r} fired {row.fired} times in that time; to skip time without it, pause it with "
                f"await app.schedules.pause({row.id!r})"
            )
            for row in await self._app.store.schedules()
            if row.fired >= MENTION_SCHEDULE_AFTER_FIRINGS and not row.paused
        ]
        return "; ".join(parts) or "all queues are empty"

    def _move(self, moment: int) -> None:
        self._idle_polls = 0
        self._app.time.set_ms(max(moment, self._app.time.now_ms()))
        self._wake()

    def _wake(self) -> None:
        self._app.store.signals.notify_all()


_LIVE_STATES = tuple(
    state.value
    for state in (
        JobState.WAITING,
        JobState.DELAYED,
        JobState.ACTIVE,
        JobState.SUSPENDED,
        JobState.WAITING_CHILDREN,
        JobState.HELD,
    )
)


async def list_pending_waits(waits: Waits, run: str | None = None) -> list[WaitView]:
    """Return every pending wait, or those of one run."""
    found: list[WaitView] = []
    before: str | None = None
    while page := await waits.list(run=run, before=before, limit=WAITS_PAGE):
        before = page[-1].id
        found += page
    return sorted(found, key=lambda wait: (wait.run, wait.step or "", wait.n, wait.kind, wait.name, wait.id))


def describe_wait(wait: WaitView) -> str:
    """Describe a wait in words."""
    wanted = f" with {wait.match}" if wait.match else ""
    until = f" until {wait.until}" if wait.until is not None else ""
    if wait.kind == TIME:
        return f"step {wait.step!r} of run {wait.run} sleeps{until}"
    return f"step {wait.step!r} of run {wait.run} waits for the {wait.kind} {wait.event or wait.name!r}{wanted}{until}"


def suggest_answer(wait: WaitView) -> str:
    """Suggest the call that resolves a wait; "" for a time, which only passes."""
    if wait.kind == TIME:
        return ""
    call = f"emit({wait.event!r}, …)" if wait.kind == EVENT else f"fire({wait.name!r}, …)"
    return f"; resolve it with await app.{call}"
