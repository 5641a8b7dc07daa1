"""`TestApp`: an App in memory with its own worker and fake clock, to test flows.

A day of backoff takes milliseconds: when nothing is left to do now, the clock moves to the next due moment.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack, overload

from ..app import App
from ..app.arguments import NoInput, StartOptions, check_choice
from ..app.waits import WaitView
from ..app.workers import RunnerFactory
from ..core.durations import Duration, to_ms
from ..core.signatures import Signature
from ..durable.wait_records import TRIGGER, read_body
from ..flows.reducer import RunView
from ..flows.run_record import CANCELLED, COMPLETED
from ..jobs.job_trees import Node
from ..ports.store import Store
from ..ports.unit import Claim
from ..settings import SettingOptions
from ..telemetry.instrumentation import InstrumentationListener
from ..worker.outcomes import Work
from .auto_clock import AutoClock, describe_wait, list_pending_waits
from .clock import FakeClock
from .clocked_facets import ClockedEntities, ClockedJobs, ClockedRuns
from .crashes import Crashed, CrashLogFilter, CrashPlan
from .replaced_executors import ExecutorCall, replace_executor
from .snapshots import compare, normalize_event

__all__ = ["Crashed", "TestApp"]
I = TypeVar("I")  # noqa: E741
log = logging.getLogger("penstock.testing")
_TOKEN = re.compile(r"(^|/)t-[0-9a-f]{32}\.")


class TestApp(App):
    """An App for tests.

        async with TestApp(handlers=[charge, ship]) as app:
            run = await app.run_flow("shop", {"order": 7})
            assert run.status == "completed"

    By default the store is in memory, the clock moves only when time is skipped, and nothing is redacted, so that
    tests see real values.

    Args:
        url: The store, as for App. Default: in memory.
        dir: Folder of the worker files.
        handlers: Decorated functions, instead of a folder.
        clock: The clock, if several Apps share one. Default: a new FakeClock.
        listeners: Functions that get instrumentation events.
        runner: A function that makes the worker's runner from the number of handlers at once.
        settings: Any setting by name; see the settings reference.
    """

    __test__ = False  # pytest: not a test class

    def __init__(
        self,
        url: str = ":memory:",
        dir: str | Path | None = None,
        *,
        handlers: Iterable[Callable[..., Any]] | None = None,
        clock: FakeClock | None = None,
        listeners: Iterable[InstrumentationListener] = (),
        runner: RunnerFactory | None = None,
        **settings: Unpack[SettingOptions],
    ) -> None:
        self.time = clock or FakeClock()
        settings.setdefault("redact", ())
        super().__init__(url, dir, handlers=handlers, clock=self.time, listeners=listeners, runner=runner, **settings)
        self._auto_clock = AutoClock(self)
        self._crash_plan = CrashPlan()
        self._crash_log_filter = CrashLogFilter()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        await self._start_on.register(self.registry.flows)  # what a test emits first starts flows already
        self._crash_log_filter.install()
        self._task = asyncio.create_task(self.workers.run(), name="penstock-test-worker")
        await asyncio.sleep(0)
        if self._task.done():  # the worker could not start: close() raises the reason
            await self.close()
        return self

    async def close(self) -> None:
        """Stop the worker and close the store. Calling it twice is fine."""
        try:
            await super().close()
        finally:
            task, self._task = self._task, None
            if task is not None:
                await task
            self._crash_log_filter.remove()

    # Run work

    @overload
    async def run_flow(self, flow: str, input: Any = None, **options: Unpack[StartOptions]) -> RunView: ...

    @overload
    async def run_flow(self, flow: NoInput[Any], input: None = None, **options: Unpack[StartOptions]) -> RunView: ...

    @overload
    async def run_flow(self, flow: Callable[[I, Any], Any], input: I, **options: Unpack[StartOptions]) -> RunView: ...

    @overload
    async def run_flow(self, flow: Callable[[I], Any], input: I, **options: Unpack[StartOptions]) -> RunView: ...

    async def run_flow(self, flow: Any, input: Any = None, **options: Unpack[StartOptions]) -> RunView:
        """Start a run, skip time until it has ended, and return its view. Takes the options of `app.start`.

        Args:
            flow: A flow's name, or the function marked with `@flow`.
            input: What the first step receives.
        """
        return await self.finish(await self.start(flow, input, **options))

    async def run_dag(self, dag: str, input: Any = None, **options: Any) -> RunView:
        """Start a run of a dag, skip time until it has ended, and return its view. Takes the options of
        `app.dags.start`.

        Args:
            dag: The dag's id.
            input: What its first nodes receive.
        """
        run = await self.dags.start(dag, input, **options)
        return await self.finish(run.id)

    def replace_executor(self, type: str, result: Any) -> list[ExecutorCall]:
        """Replace the executor of a type of node, also of a built-in one, and return the list that its calls are added
        to: each has `node`, `input` and `config`.

        Args:
            type: The type that nodes name, such as "http".
            result: What the node returns: data, `Skip(…)`, `Fail(…)`, `Next(…)`, an exception to raise, or a function
                of the input and the config.
        """
        return replace_executor(self._dag_engine, type, result)

    async def run_job(self, queue: str | Callable[..., Any], input: Any = None, **options: Any) -> Any:
        """Enqueue a job, skip time until it has ended, and return its result; raise RunFailed if it failed.

        Takes the options of `app.jobs.enqueue`.

        Args:
            queue: A queue's name, or a function marked with `@job`.
            input: What the handler receives.
        """
        name, _ = self._transactions.direct.jobs.resolve(queue, None)
        return await self.jobs.skip_to_result(await self.jobs.enqueue(queue, input, **options), name)

    async def run_tree(self, tree: Node | Mapping[str, Any]) -> Any:
        """Enqueue a tree of jobs, skip time until its root has ended, and return the root's result.

        Args:
            tree: A `Node`, or the dict that BullMQ's FlowProducer takes.
        """
        added = await self.jobs.enqueue_tree(tree)
        return await self.jobs.result(added.id)

    async def finish(self, run: str) -> RunView:
        """Skip time until a run has ended, and return its view. Why it failed, if it did, is logged.

        Args:
            run: The run's id.
        """
        if (await self.runs.wait(run)).status not in (COMPLETED, CANCELLED):
            log.warning("%s", await self.runs.describe_failure(run))
        return await self.runs.get(run)

    async def advance(self, by: Duration) -> None:
        """Advance the clock; everything due on the way happens at its own time.

        Args:
            by: A duration such as "1h".
        """
        await self._auto_clock.skip_to(self.time.now_ms() + to_ms(by))

    async def settle(self) -> None:
        """Wait until nothing is left to do at the present time."""
        await self._auto_clock.settle()

    async def fire(
        self, trigger: str, data: Any = None, *, run: str | None = None, signature: Signature | None = None
    ) -> str:
        """Fire a trigger by its name, and return the id of the run that goes on.

        Args:
            trigger: Name of the trigger. A token or a URL works too.
            data: What the waiting step receives: any JSON value. Leave it out of a signed call.
            run: Id of the run, if several runs wait for a trigger of this name.
            signature: The signature of the call. A trigger that requires one can also be fired by its name without.
        """
        await self.settle()
        waits = await list_pending_waits(self.waits, run)
        found = [wait for wait in waits if (wait.kind, wait.name) == (TRIGGER, trigger)]
        if not found and _TOKEN.search(trigger):
            return await self.waits.fire(trigger, data, signature=signature)
        if len(found) != 1:
            raise AssertionError(_not_one(trigger, found, waits))
        row = await self.store.wait_row(found[0].id)
        assert row is not None
        return await self.waits._triggers.resolve(row, read_body(row), data, signature)

    def crash(self, step: str, *, attempt: int = 1, after: bool = False) -> None:
        """Crash an attempt of a step, a node or a job. The job runs again when its lease expires.

        Args:
            step: Name of the step or the job, or id of the node.
            attempt: Which start of the handler to crash, from 1; a resume after a wait counts too.
            after: Crash after the handler, with everything it recorded lost. Default: before the handler.
        """
        names = {name for flow in self.registry.flows.values() for name in flow.steps}
        names |= {name for _, name in self.registry.jobs} | self._dag_engine.catalog.node_ids()
        if "*" not in names:  # a handler of jobs of any name
            check_choice(step, sorted(names), "step")
        self._crash_plan.add(step, attempt, after)

    # Inspect

    async def emitted(self, run: str, kind: str | None = None) -> list[Any]:
        """Return the data of a run's emitted events in order.

        Args:
            run: The run's id.
            kind: Only events of this kind. Default: all, as (kind, data) pairs.
        """
        view = await self.runs.get(run)
        if kind is None:
            return [(event["kind"], event["data"]) for event in view.emitted]
        return [event["data"] for event in view.emitted if event["kind"] == kind]

    async def step_result(self, run: str, step: str, *, n: int = 1) -> Any:
        """Return the result of a step; raise AssertionError with its status if it has not completed.

        Args:
            run: The run's id.
            step: Name of the step.
            n: Which instance of the step; a step with `mode="each"` has several.
        """
        view = (await self.runs.get(run)).steps.get(step if n == 1 else f"{step}#{n}")
        if view is None or view.status != "completed":
            state = "never started" if view is None else f"is {view.status}: {view.error or ''}"
            raise AssertionError(f"step {step!r} of run {run} {state}")
        return view.result

    async def pending_waits(self, run: str | None = None) -> list[WaitView]:
        """Return pending waits, once nothing is left to do now.

        Args:
            run: Only waits of this run.
        """
        await self.settle()
        return await list_pending_waits(self.waits, run)

    async def history(self, run: str) -> list[dict[str, Any]]:
        """Return a run's events without ids, times, workers and durations, ready to compare.

        Args:
            run: The run's id.
        """
        events = await self.events.read_all(f"{self.settings.namespace}:flow:{run}")
        return [normalize_event(event, run) for event in events]

    async def assert_history(self, run: str, file: str | Path) -> None:
        """Compare a run's history with the saved one; save it if there is none yet.

        `pytest --penstock-update` overwrites saved histories.

        Args:
            run: The run's id.
            file: The file with the saved history.
        """
        __tracebackhide__ = True
        compare(await self.history(run), Path(file), f"the history of run {run}")

    def _build(self, store: Store) -> None:
        super()._build(store)
        self.runs: ClockedRuns = ClockedRuns(self, self._auto_clock)
        self.jobs: ClockedJobs = ClockedJobs(self, self._auto_clock)
        self.entities: ClockedEntities = ClockedEntities(self, self._auto_clock)

    async def open_claim(self, claim: Claim) -> Work:
        return self._crash_plan.apply(claim, await super().open_claim(claim))


def _not_one(trigger: str, found: list[WaitView], waits: list[WaitView]) -> str:
    if found:
        return f"{len(found)} runs wait for the trigger {trigger!r}; choose one with run=…"
    pending = "; ".join(map(describe_wait, waits)) or "no run has a pending wait"
    return f"no run waits for the trigger {trigger!r}; {pending}"
