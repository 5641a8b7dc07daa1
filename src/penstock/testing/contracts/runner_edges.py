"""The second half of the runner contract: values, wrong values, floods, jobs, and what stops a handler."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

from ...core.errors import RunFailed
from ...flows.reducer import RunView
from ..test_app import TestApp
from ..until import until

NESTED: Any = "deep"
for _level in range(60):
    NESTED = [NESTED] if _level % 2 else {"in": NESTED}

VALUES: dict[str, Any] = {
    "false": False,
    "zero": 0,
    "empty text": "",
    "empty list": [],
    "empty object": {},
    "null inside": {"a": None, "b": [None]},
    "control characters": "\x00\x01\x1f\x7f\r\n\t",
    "unicode": "Zoë 🚀 e\u0301 \u202eright\u202c \ufeff\uffff 漢字",
    "line separators": "\u2028\u2029\x85",
    "quotes": "\\\"'`${x}",
    "key names": {"": 1, "__proto__": {"a": 1}, "constructor": 2, "type": "done", "a b": 3},
    "largest integer": 2**53 - 1,
    "smallest integer": -(2**53) + 1,
    "fractions": [0.1, -2.5, 1e-7, 1.7976931348623157e308, 5e-324],
    "long text": "é" * 1000,
    "long list": list(range(500)),
    "nested": NESTED,
}

PLACES = ("emit", "state", "call", "enqueue", "return")


class RunnerEdges:
    """Cases of RunnerContract."""

    # Values

    @pytest.mark.parametrize("name", VALUES)
    async def test_value_passes_through_every_call(self, app: TestApp, name: str) -> None:
        """As input and result, and through an event, state, a durable call, logs, progress and partial output."""
        value = VALUES[name]
        view = await app.run_flow("passes", value)
        assert await app.step_result(view.id, "passes") == [value, value]
        assert await app.step_result(view.id, "receives") == value
        assert view.state == {"value": value}
        events = {event.kind: event.data for event in await app.events.read_all(f"nq:flow:{view.id}")}
        assert events["step.progress"] == {"progress": value}
        assert events["step.partial"] == {"chunk": value}
        assert events["log"]["fields"] == {"value": value}

    async def test_a_date_is_text(self, app: TestApp) -> None:
        result = (await app.run_flow("dates")).result
        assert datetime.fromisoformat(result).timestamp() == 86_400

    @pytest.mark.parametrize(
        ("kind", "code"),
        [
            *((f"{place} object", "not_json") for place in PLACES),
            *((f"{place} nan", "not_json") for place in PLACES),
            *((f"{place} integer", "not_json") for place in PLACES),
            *((f"{place} surrogate", "not_json") for place in PLACES),
            *((f"{place} large", "payload_too_large") for place in PLACES),
        ],
    )
    async def test_wrong_value_fails_the_step(self, app: TestApp, kind: str, code: str) -> None:
        view = await app.run_flow("wrong-value", kind)
        error = await self._failure(app, view)
        assert code in (error["code"], _cause_code(error)), error
        assert await app.emitted(view.id) == []
        assert (await app.run_job("runner-echo", 1)) == 1, "the runner goes on"

    # Errors

    @pytest.mark.parametrize("kind", ["empty", "unicode", "long", "cause"])
    async def test_error_text(self, app: TestApp, kind: str) -> None:
        error = await self._failure(app, await app.run_flow("raises", kind))
        assert error["name"] == "RuntimeError"
        texts = {"empty": "", "unicode": "Zoë 🚀\n\u2028 'quoted' \"twice\"", "long": "xxx", "cause": "the effect"}
        assert texts[kind] in error["error"]
        assert len(str(error)) < 20_000

    async def test_error_inside_a_durable_call_is_named(self, app: TestApp) -> None:
        error = await self._failure(app, await app.run_flow("inner-error"))
        assert error["name"] == "KeyError"
        assert "missing" in error["error"]

    async def test_failed_attempts_leave_nothing(self, app: TestApp) -> None:
        view = await app.run_flow("emits-then-fails")
        await self._failure(app, view)
        assert await app.emitted(view.id) == []
        assert view.state == {}
        kinds = [event.kind for event in await app.events.read_all(f"nq:flow:{view.id}")]
        assert kinds.count("step.started") == 2

    # Floods

    async def test_events_keep_their_order(self, app: TestApp) -> None:
        view = await app.run_flow("emits-many")
        assert await app.emitted(view.id, "many") == list(range(100))

    async def test_flood_of_live_output_is_bounded(self, app: TestApp) -> None:
        view = await app.run_flow("floods")
        assert view.result == "done"

    async def test_printing_much_forges_nothing(self, app: TestApp) -> None:
        assert (await app.run_flow("prints")).result == "printed"

    async def test_runs_at_once_keep_their_values_apart(self, app: TestApp) -> None:
        values = [{"n": n, "text": "x" * n} for n in range(20)]
        assert await asyncio.gather(*(app.run_job("runner-echo", value) for value in values)) == values

    # Waits

    async def test_waits_in_a_loop(self, app: TestApp) -> None:
        view = await app.run_flow("loops")
        assert view.result == [0, 1, 4]
        kinds = [event.kind for event in await app.events.read_all(f"nq:flow:{view.id}")]
        assert kinds.count("step.started") == 4

    async def test_waits_one_after_the_other_with_a_function(self, app: TestApp) -> None:
        run = await app.start("hears-two")
        await app.settle()
        await app.emit("runner.x", {"n": 1})
        await app.settle()
        await app.emit("runner.y", {"n": 2})
        await app.emit("runner.y", {"n": 6})
        assert (await app.finish(run)).result == [{"n": 1}, {"n": 6}, "runner.x"]

    # Jobs

    @pytest.mark.parametrize(("kind", "attempt"), [("returns", 1), ("recovers", 2)])
    async def test_job_returns(self, app: TestApp, kind: str, attempt: int) -> None:
        assert await app.run_job("runner-work", kind) == [kind, attempt, None, None]
        events = await app.events.read_all("nq:queue:runner-work")
        assert {"job.active", "job.progress", "log", "job.completed"} <= {event.kind for event in events}

    async def test_job_fails_after_its_attempts(self, app: TestApp) -> None:
        with pytest.raises(RunFailed, match="the job failed"):
            await app.run_job("runner-work", "fails")

    async def test_job_cannot_wait(self, app: TestApp) -> None:
        with pytest.raises(RunFailed, match="is not part of a run and cannot wait"):
            await app.run_job("runner-naps")

    # What stops a handler

    @pytest.mark.parametrize("flow", ["stubborn", "long-call"])
    async def test_cancelled_handler_records_nothing(self, app: TestApp, trace: Any, flow: str) -> None:
        run = await app.start(flow, {"trace": trace.path})
        await until(lambda: "started" in trace.text(), 20)
        await app.runs.cancel(run)
        await until(lambda: "stopped" in trace.text(), 20)
        await app.settle()
        assert (await app.runs.get(run)).status == "cancelled"
        assert await app.emitted(run) == []

    async def test_cancelled_wait_does_not_resume(self, app: TestApp) -> None:
        run = await app.start("loops")
        await app.settle()
        await app.runs.cancel(run)
        assert (await app.runs.get(run)).status == "cancelled"
        kinds = [event.kind for event in await app.events.read_all(f"nq:flow:{run}")]
        assert kinds.count("step.started") == 1

    async def _failure(self, app: TestApp, view: RunView) -> dict[str, Any]:
        assert view.status == "failed", view
        events = await app.events.read_all(f"nq:flow:{view.id}")
        data: dict[str, Any] = [event.data for event in events if event.kind == "step.failed"][-1]
        return data


class CrashCases:
    """Cases for runners whose handlers cannot crash the worker."""

    async def test_crash_in_the_middle_of_a_step(self, app: TestApp, trace: Any) -> None:
        """The attempt is retried; what it recorded happens once, and what it emitted only with the commit."""
        view = await app.run_flow("crashes", {"trace": trace.path})
        assert view.result == 2
        assert trace.text() == "charge\n"
        assert await app.emitted(view.id) == [("survived", 2)]
        events = await app.events.read_all(f"nq:flow:{view.id}")
        assert [event.data["code"] for event in events if event.kind == "step.failed"] == ["runner_lost"]


def _cause_code(error: dict[str, Any]) -> str | None:
    """Return the code that the text of a failed durable call names."""
    for name, code in (("NotJSON", "not_json"), ("PayloadTooLarge", "payload_too_large")):
        if name in error["error"]:
            return code
    return None
