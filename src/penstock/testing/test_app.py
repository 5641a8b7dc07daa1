"""`TestApp`: an App in memory with a worker and a clock of its own, for tests of flows.

A day of backoff takes milliseconds: whenever nothing is left to do now, time moves on to when there is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack, overload

from ..app import App
from ..app.options import EnqueueOptions, NoInput, StartOptions
from ..app.waits import WaitView
from ..core.durations import Duration, to_ms
from ..durable.trigger_commands import Signature
from ..durable.wait_records import TRIGGER, decode_body
from ..flows.reducer import FlowView
from ..jobs.job_trees import Node
from ..ports.unit import Claim, JobState
from ..settings import SettingOptions
from ..worker.outcomes import Work
from .auto_clock import Timeline
from .clock import FakeClock
from .crashes import Crashed, Crashes, Quiet
from .pending_waits import list_pending_waits, told
from .snapshots import compare, timeless

__all__ = ["Crashed", "TestApp"]
I = TypeVar("I")  # noqa: E741
_TOKEN = re.compile(r"(^|/)t-[0-9a-f]{32}\.")


class TestApp(App):
    """An App for tests.

        async with TestApp(handlers=[charge, ship]) as app:
            run = await app.run_flow("shop", {"order": 7})
            assert run.status == "completed"

    Takes the arguments of App. Unless they are given, the store is memory, the clock stands still and nothing is
    redacted: a test looks at real values.
    """

    __test__ = False  # pytest: not a test class

    def __init__(
        self,
        url: str = ":memory:",
        dir: str | Path | None = None,
        *,
        handlers: Iterable[Callable[..., Any]] | None = None,
        clock: FakeClock | None = None,
        **settings: Unpack[SettingOptions],
    ) -> None:
        self.time = clock or FakeClock()
        settings.setdefault("redact", ())
        super().__init__(url, dir, handlers=handlers, clock=self.time, **settings)
        self._timeline = Timeline(self)
        self._crashes = Crashes()
        self._quiet = Quiet()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        await self._starters.keep(self.registry.flows)  # what a test emits first starts flows already
        self._quiet.begin()
        self._task = asyncio.create_task(self.run_worker(), name="penstock-test-worker")
        await asyncio.sleep(0)
        if self._task.done():  # it could not even begin: closing says why
            await self.close()
        return self

    async def close(self) -> None:
        """Stops the worker and closes the store; a second time does nothing."""
        try:
            await super().close()
        finally:
            task, self._task = self._task, None
            if task is not None:
                await task
            self._quiet.end()

    # Running

    @overload
    async def run_flow(self, flow: str, input: Any = None, **options: Unpack[StartOptions]) -> FlowView: ...

    @overload
    async def run_flow(self, flow: NoInput, input: None = None, **options: Unpack[StartOptions]) -> FlowView: ...

    @overload
    async def run_flow(self, flow: Callable[[I, Any], Any], input: I, **options: Unpack[StartOptions]) -> FlowView: ...

    @overload
    async def run_flow(self, flow: Callable[[I], Any], input: I, **options: Unpack[StartOptions]) -> FlowView: ...

    async def run_flow(self, flow: Any, input: Any = None, **options: Unpack[StartOptions]) -> FlowView:
        """Starts a run, moves time on as needed until it has ended, and gives its state."""
        return await self.finish(await self.start(flow, input, **options))

    async def run_job(self, queue: str, payload: Any = None, **options: Unpack[EnqueueOptions]) -> Any:
        """Adds a job, moves time on as needed until it has ended, and gives its result; raises RunFailed if it has
        none."""
        id = await self.enqueue(queue, payload, **options)
        await self._timeline.skip_until(lambda: self._job_ended(id), f"job {id}")
        return await self._enqueuing.result(id, queue)

    async def run_tree(self, tree: Node | Mapping[str, Any]) -> Any:
        """Adds a tree of jobs, moves time on as needed until its root has ended, and gives that one's result."""
        added = await self.add_flow(tree)
        await self._timeline.skip_until(lambda: self._job_ended(added.id), f"job {added.id}")
        return await self.job_result(added.id)

    async def finish(self, run: str) -> FlowView:
        """Moves time on as needed until a run has ended, and gives its state."""
        await self._timeline.skip_until(lambda: self._run_ended(run), f"run {run}")
        return await self.run(run)

    async def advance(self, by: Duration) -> None:
        """Moves time on, and lets everything that is due on the way happen at its own time."""
        await self._timeline.skip_to(self.time.now_ms() + to_ms(by))

    async def settle(self) -> None:
        """Waits until nothing is left to do at the present time."""
        await self._timeline.settle()

    async def fire(
        self, trigger: str, payload: Any = None, *, run: str | None = None, signature: Signature | None = None
    ) -> str:
        """Fires a trigger by its name, in a run if several wait for one; a test need not know the token. Also takes
        what App.fire takes: a token, or a URL."""
        await self.settle()
        waits = await list_pending_waits(self.store, run)
        found = [wait for wait in waits if (wait.kind, wait.name) == (TRIGGER, trigger)]
        if not found and _TOKEN.search(trigger):
            return await super().fire(trigger, payload, signature=signature)
        if len(found) != 1:
            raise AssertionError(_not_one(trigger, found, waits))
        row = await self.store.wait_row(found[0].id)
        assert row is not None
        return await self._triggers.resolve(row, decode_body(row.body), payload)

    def crash(self, step: str, *, attempt: int = 1, after: bool = False) -> None:
        """Lets an attempt of a step (or of a job of that name) crash: before its handler runs, or after it, with
        everything it did lost. The job comes again when its lease has run out."""
        self._crashes.plan(step, attempt, after)

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

    async def pending_waits(self, run: str | None = None) -> list[WaitView]:
        """What a run, or every run, waits for once nothing is left to do now."""
        await self.settle()
        return await list_pending_waits(self.store, run)

    async def history(self, run: str) -> list[dict[str, Any]]:
        """A run's events without what differs from run to run (ids, times, workers, durations): fit to compare."""
        events = await self.events.read_all(f"{self.settings.namespace}:flow:{run}")
        return [timeless(event, run) for event in events]

    async def assert_history(self, run: str, file: str | Path) -> None:
        """Compares a run's history with a saved one; saves it if there is none yet. `pytest --penstock-update` saves
        the new ones."""
        __tracebackhide__ = True
        compare(await self.history(run), Path(file), f"the history of run {run}")

    async def _run_ended(self, run: str) -> bool:
        return (await self._row(run)).closed

    async def _job_ended(self, id: str) -> bool:
        row = await self.store.job(id)  # none if it went when it ended
        return row is None or row.state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)

    async def open_claim(self, claim: Claim) -> Work:
        return self._crashes.strike(claim, await super().open_claim(claim))


def _not_one(trigger: str, found: list[WaitView], waits: list[WaitView]) -> str:
    if found:
        return f"{len(found)} runs wait for the trigger {trigger!r}: say which one with run=…"
    return f"nothing waits for the trigger {trigger!r}: {'; '.join(map(told, waits)) or 'no run waits for anything'}"
