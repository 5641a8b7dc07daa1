"""The contract every runner keeps, as tests. A runner's author subclasses one class:

    class TestMyRunner(RunnerContract):
        def make_runner(self, concurrency):
            return MyRunner(concurrency)

The handlers are in runner_handlers.py, or runner_sync_handlers.py with `is_async = False`. Each case has an App of its
own; the event loop and the folder with the handlers are shared by the cases of a class, so that a runner can be, too.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from ...flows.reducer import RunView
from ...jobs.job_trees import Node
from ...ports.runner import Runner
from ..test_app import TestApp
from ..until import until
from .runner_blobs import RunnerBlobs
from .runner_edges import RunnerEdges

HOUR_MS = 3_600_000


def load_handlers(name: str, folder: Path) -> list[Callable[..., Any]]:
    """Import a copy of the handlers from outside the package: stacks and call sites leave out Penstock's own files."""
    file = folder / f"{name}.py"
    shutil.copy(Path(__file__).with_name(file.name), file)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    handlers: list[Callable[..., Any]] = module.HANDLERS
    return handlers


class Trace:
    """The file that handlers write their side effects to."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.path = str(file)
        file.touch()

    def text(self) -> str:
        return self._file.read_text()


class RunnerContract(RunnerEdges, RunnerBlobs, ABC):
    """Flows and jobs must not notice where their handlers run."""

    pytestmark = pytest.mark.asyncio(loop_scope="class")
    is_async = True
    BLOBS: ClassVar[Any] = {"blob_url": "memory:", "blob_threshold": 0}  # the limits of values stay

    @abstractmethod
    def make_runner(self, concurrency: int) -> Runner:
        """Return a new runner; called on the event loop."""

    def make_url(self) -> str:
        """Return the URL of an empty store."""
        return ":memory:"

    @pytest.fixture(scope="class")
    @classmethod
    def handlers(cls, tmp_path_factory: pytest.TempPathFactory) -> list[Callable[..., Any]]:
        """The functions to run; a runner of another language overrides this, or `app`."""
        kind = "handlers" if cls.is_async else "sync_handlers"
        folder = tmp_path_factory.mktemp("handlers")
        return [one for part in ("", "edge_", "blob_") for one in load_handlers(f"runner_{part}{kind}", folder)]

    @pytest_asyncio.fixture(loop_scope="class")
    async def app(self, handlers: list[Callable[..., Any]]) -> AsyncIterator[TestApp]:
        options: Any = {"runner": self.make_runner, "grace": "100ms", **self.BLOBS}
        async with TestApp(self.make_url(), handlers=handlers, **options) as app:
            yield app

    @pytest.fixture
    def trace(self, tmp_path: Path) -> Trace:
        return Trace(tmp_path / "trace")

    # Results and inputs

    @pytest.mark.parametrize(
        "value", [None, 0, "Zoë 🚀\n\x00\u2028", [1, [2.5, None, True]], {"a": {"b": []}}, 2**53 - 1], ids=repr
    )
    async def test_result_comes_back_as_it_was(self, app: TestApp, value: Any) -> None:
        assert (await app.run_flow("echo", value)).result == value

    async def test_large_input_and_result(self, app: TestApp) -> None:
        value = {"text": "x" * 60_000}
        assert (await app.run_flow("echo", value)).result == value

    async def test_handler_knows_its_attempt(self, app: TestApp) -> None:
        run = await app.start("facts", None, key="r-1", correlation_id="c-1")
        assert (await app.finish(run)).result == {
            "run": "r-1",
            "flow": "facts",
            "step": "facts",
            "job": "r-1.facts.1",
            "queue": "default",
            "attempt": 1,
            "n": 1,
            "correlation": "c-1",
            "key": "r-1.facts.1.charge",
            "cancelled": False,
        }

    async def test_input_is_validated_and_converted(self, app: TestApp) -> None:
        assert (await app.run_flow("model", {"id": 7, "total": 1.5})).result == ["Order", 7, 1.5]
        error = await self._error(app, await app.run_flow("bad-model"))
        assert (error["name"], error["code"]) == ("SchemaViolation", "schema_violation")

    async def test_result_without_a_json_form_fails_the_step(self, app: TestApp) -> None:
        error = await self._error(app, await app.run_flow("bad-result"))
        assert (error["name"], error["code"]) == ("NotJSON", "not_json")

    # Errors and retries

    async def test_error_keeps_its_name_message_code_and_stack(self, app: TestApp) -> None:
        error = await self._error(app, await app.run_flow("fails"))
        assert (error["name"], error["error"], error["code"]) == ("PaymentError", "no money left", "card_declined")
        assert 'raise PaymentError("no money left")' in error["stack"]

    async def test_failed_attempts_are_retried_and_emit_nothing(self, app: TestApp) -> None:
        view = await app.run_flow("recovers")
        assert view.result == 3
        assert await app.emitted(view.id, "tried") == [3]

    async def test_permanent_error_is_not_retried(self, app: TestApp) -> None:
        error = await self._error(app, await app.run_flow("permanent"))
        assert (error["name"], error["error"]) == ("Permanent", "not again after attempt 1")

    async def test_retry_after_sets_the_delay(self, app: TestApp) -> None:
        start = app.time.now_ms()
        assert (await app.run_flow("later")).result == 2
        assert app.time.now_ms() - start >= 2 * HOUR_MS

    async def test_retriable_errors_match_base_classes(self, app: TestApp) -> None:
        error = await self._error(app, await app.run_flow("selective"))
        assert (error["name"], error["error"]) == ("ValueError", "attempt 2")

    async def test_rate_limit_releases_the_job(self, app: TestApp, trace: Trace) -> None:
        start = app.time.now_ms()
        assert await app.run_job("runner-api", {"trace": trace.path}) == 2
        assert app.time.now_ms() - start >= HOUR_MS
        kinds = Counter(event.kind for event in await app.events.read_all("nq:queue:runner-api"))
        assert (kinds["job.returned"], kinds["job.failed"]) == (1, 0)

    # Events, live output and state

    async def test_emitted_event_starts_a_step(self, app: TestApp) -> None:
        view = await app.run_flow("emits")
        assert await app.emitted(view.id) == [("order.paid", {"id": 7, "name": "Zoë"})]
        assert await app.step_result(view.id, "ship") == {"id": 7, "name": "Zoë"}
        (event,) = await app.events.read(f"nq:flow:{view.id}", tags=["eu", "audit"])
        assert (event.kind, (event.meta or {})["tags"]) == ("order.paid", ["audit", "eu"])

    async def test_undeclared_event_fails_the_step(self, app: TestApp) -> None:
        error = await self._error(app, await app.run_flow("undeclared"))
        assert (error["name"], error["code"]) == ("UndeclaredEvent", "undeclared_event")

    async def test_log_progress_and_partial_become_events(self, app: TestApp) -> None:
        view = await app.run_flow("live")
        events = await app.events.read_all(f"nq:flow:{view.id}")
        live = [(e.kind, e.data) for e in events if e.kind in ("log", "step.progress", "step.partial")]
        assert live == [
            ("log", {"level": "info", "msg": "charging", "fields": {"cents": 5}}),
            ("log", {"level": "warn", "msg": "slow"}),
            ("step.progress", {"progress": 40}),
            ("step.partial", {"chunk": {"text": "a"}}),
        ]

    async def test_state_is_read_written_and_patched(self, app: TestApp) -> None:
        view = await app.run_flow("state")
        assert await app.step_result(view.id, "state") == ["none", {"n": 1}, [1, 2, 3], ["cart", "count"]]
        assert await app.step_result(view.id, "reads") == [{"n": 1}, None, 3, True]

    # Durable calls

    async def test_durable_calls_happen_once(self, app: TestApp, trace: Trace) -> None:
        view = await app.run_flow("once", {"trace": trace.path})
        assert view.result == [{"charged": 5}, 1]
        lines = trace.text().splitlines()
        assert lines[0] == "charge"
        assert len(lines) == 4, "one charge, three attempts"
        assert len(set(lines[1:])) == 1, "uuid, random and now are recorded"

    async def test_call_that_fails_for_good_raises_in_the_handler(self, app: TestApp, trace: Trace) -> None:
        view = await app.run_flow("call-fails", {"trace": trace.path})
        assert "broken#1" in view.result
        assert "ValueError: no" in view.result
        assert trace.text() == "try\ntry\n"

    async def test_name_used_at_two_places_is_an_error(self, app: TestApp) -> None:
        error = await self._error(app, await app.run_flow("two-sites"))
        assert error["code"] == "duplicate_name"

    # Waits

    async def test_time_wait_suspends_and_resumes(self, app: TestApp, trace: Trace) -> None:
        start = app.time.now_ms()
        view = await app.run_flow("naps", {"trace": trace.path})
        assert app.time.now_ms() - start >= 24 * HOUR_MS
        assert trace.text() == "woke\n"
        assert await app.emitted(view.id, "before") == [None]
        kinds = Counter(event.kind for event in await app.events.read_all(f"nq:flow:{view.id}"))
        assert (kinds["log"], kinds["step.started"]) == (1, 2)

    async def test_event_wait_returns_the_event(self, app: TestApp) -> None:
        run = await app.start("hears")
        await app.settle()
        await app.emit("runner.paid", {"id": 8})
        await app.emit("runner.paid", {"id": 7, "by": "card"})
        assert (await app.finish(run)).result == {"id": 7, "by": "card"}

    async def test_wait_timeout_can_be_caught(self, app: TestApp) -> None:
        assert (await app.run_flow("hears")).result == "timed out"

    async def test_wait_timeout_fails_the_step_without_retries(self, app: TestApp) -> None:
        view = await app.run_flow("gives-up")
        assert (await self._error(app, view))["code"] == "AWAIT_TIMEOUT"
        kinds = Counter(event.kind for event in await app.events.read_all(f"nq:flow:{view.id}"))
        assert kinds["step.failed"] == 1

    async def test_trigger_is_fired_by_its_token(self, app: TestApp, trace: Trace) -> None:
        run = await app.start("asks", {"trace": trace.path})
        await app.settle()
        await app.waits.fire(trace.text().strip(), {"ok": True})
        assert (await app.finish(run)).result == [True, {"ok": True}]

    async def test_all_waits_for_every_call(self, app: TestApp) -> None:
        run = await app.start("joins")
        await app.settle()
        await app.emit("runner.paid")
        assert (await app.finish(run)).result == "all"

    async def test_concurrent_calls(self, app: TestApp, trace: Trace) -> None:
        """Functions run at once; the step suspends when every branch waits, and each branch continues."""
        run = await app.start("branches", {"trace": trace.path})
        await app.settle()
        assert (await app.runs.get(run)).status == "waiting"
        assert sorted(trace.text().split()) == ["a1", "b1", "c1"]
        await app.emit("runner.b")
        await app.settle()
        assert sorted(trace.text().split()) == ["a1", "b1", "b2", "c1"]
        await app.emit("runner.a")
        assert (await app.finish(run)).result == ["a1 a2", "b1 b2", "c1"]
        assert sorted(trace.text().split()) == ["a1", "a2", "b1", "b2", "c1"], "each once"

    async def test_branches_may_come_in_another_order(self, app: TestApp, trace: Trace) -> None:
        """What different tasks, threads or promises do has no order, also if they happen not to overlap."""
        run = await app.start("reorders", {"trace": trace.path})
        await app.settle()
        assert (await app.runs.get(run)).status == "waiting"
        await app.emit("runner.go")
        view = await app.finish(run)
        assert (view.result, view.state) == ("reordered", {"a": "a", "b": "b", "c": "c"}), await app.runs.why(run)
        assert [kind for kind, _ in await app.emitted(run)] == ["order.a", "order.b", "order.c"], "each once"
        assert sorted(trace.text().split()) == ["a", "b", "c", "turn", "turn"]

    async def test_calls_in_another_order_are_named(self, app: TestApp, trace: Trace) -> None:
        run = await app.start("swaps", {"trace": trace.path})
        await app.settle()
        await app.emit("runner.go")
        error = await self._error(app, await app.finish(run))
        assert error["code"] == "non_determinism"
        assert "made the durable call a#1 before b#1, but this attempt makes it after" in error["error"]

    async def test_first_returns_the_winner(self, app: TestApp) -> None:
        assert (await app.run_flow("races")).result == "time"

    # Timeout, cancel, children

    async def test_timeout_stops_the_handler(self, app: TestApp) -> None:
        error = await self._error(app, await app.run_flow("hangs"))
        assert (error["name"], error["code"]) == ("AttemptTimeout", "timeout")

    async def test_cancel_reaches_the_handler(self, app: TestApp, trace: Trace) -> None:
        run = await app.start("runs-long", {"trace": trace.path})
        await until(lambda: "started" in trace.text(), 20)
        await app.runs.cancel(run)
        await until(lambda: "stopped" in trace.text(), 20)
        assert (await app.runs.get(run)).status == "cancelled"
        assert (await app.run_flow("echo", 1)).result == 1, "the slot is free"

    async def test_parent_reads_the_values_of_its_children(self, app: TestApp) -> None:
        children = [Node("runner-child", input=n) for n in (1, 2)]
        assert await app.run_tree(Node("runner-parent", children=children)) == [10, 20]

    # Launches

    async def test_a_step_starts_work_once(self, app: TestApp, trace: Trace) -> None:
        view = await app.run_flow("launches", {"trace": trace.path})
        first, run, second = view.result
        assert trace.text().count("attempt") == 3
        assert (await app.jobs.result(first), await app.result(run), await app.jobs.result(second)) == (40, "hi", 50)
        added = [e for e in await app.events.read_all("nq:queue:runner-child") if e.kind == "job.added"]
        assert [(e.subject, e.correlation_id, e.meta["parent"]) for e in added if e.meta] == [
            (first, view.id, view.id),
            (second, view.id, view.id),
        ]
        (started, *_) = await app.events.read_all(f"nq:flow:{run}")
        assert started.meta == {"tags": {"by": "launches"}, "parent": view.id, "root": view.id}
        assert len(await app.runs.list(flow="echo")) == 1

    async def test_a_job_starts_work_once(self, app: TestApp) -> None:
        id, run = await app.run_job("runner-launch")
        assert (id, await app.jobs.result(id), await app.result(run)) == ("six", 60, "from a job")
        assert len(await app.runs.list(flow="echo")) == 1

    async def test_a_step_calls_other_flows(self, app: TestApp) -> None:
        view = await app.run_flow("calls")
        assert view.result == ["hi", [1, 2], ["a", "b"], "child_failed"]
        assert len(await app.runs.children(view.id)) == 6

    async def test_an_unknown_flow_is_an_error_of_the_handler(self, app: TestApp) -> None:
        error = await self._error(app, await app.run_flow("bad-launch"))
        assert (error["code"], "did you mean 'echo'" in error["error"]) == ("unknown_flow", True)

    async def _error(self, app: TestApp, view: RunView) -> dict[str, Any]:
        """Return the data of the last `step.failed` event."""
        assert view.status == "failed", view
        events = await app.events.read_all(f"nq:flow:{view.id}")
        data: dict[str, Any] = [event.data for event in events if event.kind == "step.failed"][-1]
        return data
