"""`TestApp`: an App in memory with a worker and a clock of its own, for tests of flows.

A day of backoff takes milliseconds: whenever nothing is left to do now, time moves on to when there is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from ..app import App
from ..core.durations import Duration
from ..core.errors import PenstockError
from ..core.events import Event
from ..flows.reducer import FlowView
from ..jobs.work import Work
from ..ports.unit import Claim, JobState
from .clock import FakeClock
from .until import until

PATIENCE = 10.0  # seconds of real time until a test that waits gives up
LIVE = (JobState.WAITING, JobState.ACTIVE)


class Crashed(PenstockError):
    """A crash a test asked for: the attempt vanishes as with `kill -9`, nothing of it recorded."""

    code = "crashed"


class TestApp(App):
    """An App for tests.

        async with TestApp(handlers=[charge, ship]) as app:
            run = await app.run_flow("shop", {"order": 7})
            assert run.status == "completed"

    Takes the arguments of App. The store is memory and the clock stands still unless they are given.
    """

    __test__ = False  # pytest: not a test class

    def __init__(
        self,
        url: str = ":memory:",
        dir: str | Path | None = None,
        *,
        handlers: Iterable[Callable[..., Any]] | None = None,
        clock: FakeClock | None = None,
        **settings: Any,
    ) -> None:
        self.time = clock or FakeClock()
        super().__init__(url, dir, handlers=handlers, clock=self.time, **settings)
        self._crashes: list[tuple[str, int, bool]] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        self._task = asyncio.create_task(self.run_worker(), name="penstock-test-worker")
        return self

    async def close(self) -> None:
        await super().close()
        if self._task is not None:
            await self._task
            self._task = None

    # Running

    async def run_flow(self, flow: str | Callable[..., Any], input: Any = None, **options: Any) -> FlowView:
        """Starts a run, moves time on as needed until it has ended, and gives its state."""
        return await self.finish(await self.start(flow, input, **options))

    async def run_job(self, queue: str, payload: Any = None, **options: Any) -> Any:
        """Adds a job, moves time on as needed until it has ended, and gives its result."""
        id = await self.enqueue(queue, payload, **options)
        await self._skip_until(lambda: self._job_ended(id), f"job {id}")
        return await self.job_result(id, timeout=PATIENCE)

    async def finish(self, run: str) -> FlowView:
        """Moves time on as needed until a run has ended, and gives its state."""
        await self._skip_until(lambda: self._run_ended(run), f"run {run}")
        return await self.run(run)

    async def advance(self, by: Duration) -> None:
        """Moves time on and lets everything that is due by then happen."""
        await self.settled()
        self.time.advance(by)
        self._wake()
        await self.settled()

    async def settled(self) -> None:
        """Waits until nothing is left to do at the present time."""
        await until(self._is_settled, PATIENCE)

    def crash(self, step: str, *, attempt: int = 1, after: bool = False) -> None:
        """Lets an attempt of a step (or of a job of that name) crash: before its handler runs, or after it, with
        everything it did lost. The job comes again when its lease has run out."""
        self._crashes.append((step, attempt, after))

    # Looking

    async def emitted(self, run: str, kind: str | None = None) -> list[Any]:
        """The data of what a run's steps emitted, in order: of one kind, or as (kind, data) pairs of all."""
        view = await self.run(run)
        if kind is None:
            return [(event["kind"], event["data"]) for event in view.emitted]
        return [event["data"] for event in view.emitted if event["kind"] == kind]

    async def step_result(self, run: str, step: str, *, n: int = 1) -> Any:
        """What a step returned; an AssertionError with its state if it has not."""
        view = (await self.run(run)).steps.get(step if n == 1 else f"{step}#{n}")
        if view is None or view.status != "completed":
            state = "never started" if view is None else f"is {view.status}: {view.error or ''}"
            raise AssertionError(f"step {step!r} of run {run} {state}")
        return view.result

    async def history(self, run: str) -> list[dict[str, Any]]:
        """A run's events without what differs from run to run (ids, times, workers, durations): fit to compare."""
        events = await self.events.read_all(f"{self.settings.namespace}:flow:{run}")
        return [_timeless(event, run) for event in events]

    async def assert_history(self, run: str, file: str | Path) -> None:
        """Compares a run's history with a saved one; saves it if there is none yet."""
        path, found = Path(file), await self.history(run)
        if not path.exists():
            path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
            return
        saved = json.loads(path.read_text("utf-8"))
        if saved != found:
            at = next((i for i, (a, b) in enumerate(zip(saved, found, strict=False)) if a != b), min(len(saved), len(found)))
            then, now = saved[at : at + 1], found[at : at + 1]
            raise AssertionError(
                f"the history of run {run} differs from {path.name} at event {at + 1}: saved {then}, now {now}; "
                "delete the file to save the new one"
            )

    # Time

    async def _skip_until(self, ended: Callable[[], Any], what: str) -> None:
        async def done_or_moved() -> bool:
            if await ended():
                return True
            if await self._is_settled() and not await ended():
                await self._skip(what)
            return False

        await until(done_or_moved, PATIENCE)

    async def _skip(self, what: str) -> None:
        """Moves time to the next moment at which something is due."""
        moments = [await self.store.next_schedule()]
        for row in await self.store.queues():
            delayed = await self.store.jobs(row.name, JobState.DELAYED, limit=1)
            moments += [job.due for job in delayed]
            if row.counts[JobState.ACTIVE]:  # left behind by a crash: it comes again when its lease is over
                moments.append(self.time.now_ms() + self.settings.lease)
        due = min((moment for moment in moments if moment is not None), default=None)
        if due is None:
            raise AssertionError(f"{what} has not ended and nothing is due any more: {await self._where()}")
        self.time.set_ms(max(due, self.time.now_ms()))
        self._wake()

    async def _where(self) -> str:
        rows = [row for row in await self.store.queues() if any(row.counts[state] for state in LIVE)]
        return "; ".join(f"queue {r.name}: {r.counts}" for r in rows) or "no queue holds anything"

    async def _is_settled(self) -> bool:
        if self._working.active:
            return False
        known = set(self.registry.queues())
        rows = [row for row in await self.store.queues() if row.name in known and not row.paused]
        return not any(row.counts[JobState.WAITING] for row in rows) and not self._working.active

    async def _run_ended(self, run: str) -> bool:
        return (await self._row(run)).closed

    async def _job_ended(self, id: str) -> bool:
        return (await self.queues.job(id)).state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)

    def _wake(self) -> None:
        self.store.signals.fire_all()

    # Crashes

    async def open_claim(self, claim: Claim) -> Work:
        work = await super().open_claim(claim)
        for crash in self._crashes:
            step, attempt, after = crash
            if (claim.name, claim.attempt) == (step, attempt):
                self._crashes.remove(crash)
                if not after:
                    raise Crashed(f"the test let attempt {attempt} of {step} crash before it ran")
                return _Doomed(work)
        return work


class _Doomed:
    """Work whose end is never recorded."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __getattr__(self, name: str) -> Any:
        if name in ("succeeded", "failed", "stopped"):
            raise Crashed(f"the test let attempt {self._work.claim.attempt} of {self._work.claim.name} crash after it ran")
        return getattr(self._work, name)


def _timeless(event: Event, run: str) -> dict[str, Any]:
    meta = {k: v for k, v in (event.meta or {}).items() if k not in ("worker", "duration", "scheduledAt")}
    data = event.data
    if isinstance(data, dict) and event.kind.startswith(("flow.", "step.")):
        data = {k: v for k, v in data.items() if k not in ("duration", "nextRetryAt", "delayMs", "stack")}
    out: dict[str, Any] = {"kind": event.kind, "step": event.step, "data": data, "meta": meta}
    text = json.dumps({k: v for k, v in out.items() if v not in (None, {})}, sort_keys=True, ensure_ascii=False)
    return dict(json.loads(text.replace(run, "RUN")))
