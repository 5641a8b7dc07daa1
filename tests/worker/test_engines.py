"""Another kind of run: an engine of the test runs on every store, and the facets of App use it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from countdown_engine import CountdownView, Engines

from penstock.app.export_format import BadExport
from penstock.core.errors import RunError, UnknownKind
from penstock.ports.unit import StateWrite, Unit


@pytest.mark.spec("003-12.3")
async def test_an_engine_of_another_kind_runs_on_every_store(app: Any) -> None:
    engines = Engines()
    async with app(engines=[engines]) as a, a.workers.background():
        await engines[0].count("c1", 3)
        assert await a.runs.result("c1", timeout=20) == "lift off after 3"
        assert await a.runs.get("c1") == CountdownView(3, "completed")
        (summary,) = await a.runs.list()
        assert (summary.id, summary.flow, summary.status, summary.kind) == ("c1", "countdown", "completed", "countdown")
        kinds = [event.kind for event in await a.events.read("nq:countdown:c1")]
        assert kinds == ["countdown.ticked"] * 3 + ["countdown.completed"]
        assert [event.kind async for event in _first(a.runs.follow("c1"), 4)] == kinds
    async with app(engines=[engines]) as a:
        await engines[-1].count("c2", 2)
        reasons = await a.runs.why("c2")
        assert reasons[-1] == "2 ticks are left"
        report = await a.runs.preflight()
        assert [(problem.run, problem.code) for problem in report.broken] == [("c2", "too_long")]
        assert await a.runs.cancel("c2")
        assert (await a.runs.get("c2")).status == "cancelled"


async def test_why_explains_the_end_of_a_run_of_another_kind(app: Any) -> None:
    engines = Engines()
    async with app(engines=[engines]) as a:
        await engines[0].count("c1", 2)
        await a.runs.cancel("c1", "too slow")
        (reason,) = await a.runs.why("c1")
        assert reason.startswith("it ended as cancelled at 20")
        assert reason.endswith("Z (too slow)")


async def test_app_emits_to_a_run_of_another_kind(app: Any) -> None:
    engines = Engines()
    async with app(engines=[engines]) as a:
        await engines[0].count("c1", 2)
        await a.emit("hurry", {"by": 1}, run="c1", key="k")
        assert engines[0].commands.emitted == [("c1", "hurry", {"by": 1}, "k")]


@pytest.mark.parametrize("action", ["fork", "replay", "retry"])
async def test_what_only_flows_can_do_is_refused(app: Any, action: str) -> None:
    engines = Engines()
    async with app(engines=[engines]) as a:
        await engines[0].count("c1", 2)
        arguments = ("c1", "0-1") if action == "fork" else ("c1",)
        with pytest.raises(RunError, match=f"run 'c1' is of kind 'countdown'; only runs of flows.* have `{action}`"):
            await getattr(a.runs, action)(*arguments)


async def test_a_run_of_another_kind_moves_to_another_store(app: Any, shared: Any) -> None:
    engines = Engines()
    async with app(engines=[engines]) as a:
        async with a.workers.background():
            await engines[0].count("done", 2)
            await a.runs.result("done", timeout=20)
        await engines[0].count("open", 3)
        await a.store.commit([Unit("speed", state=[StateWrite("countdown/speed", b"7")])])
        lines = [await a.runs.export(id) for id in ("done", "open")]
        exported = [msgspec.json.decode(line) for line in lines]
        assert [(run["penstock"], run["kind"], len(run["events"])) for run in exported] == [
            (3, "countdown", 3),
            (3, "countdown", 0),
        ]
        events = await a.events.read("nq:countdown:done")
        rows = {row.id: row for row in await a.runs.list()}
    async with shared(engines=[engines]) as b:
        assert list(await b.runs.import_(b"\n".join(lines))) == ["done", "open"]
        assert await b.events.read("nq:countdown:done") == events
        assert {row.id: row for row in await b.runs.list()} == rows
        speed = await b.store.state("countdown/speed")
        assert speed is not None
        assert speed.value == b"7"
        assert await b.runs.result("done", timeout=20) == "lift off after 2"
        async with b.workers.background():
            assert await b.runs.result("open", timeout=20) == "lift off after 3"
        assert await b.runs.get("open") == CountdownView(3, "completed")


async def test_an_import_without_the_engine_writes_nothing(shared: Any, memory: Any) -> None:
    engines = Engines()
    async with memory(engines=[engines]) as a:
        await engines[0].count("c1", 1)
        line = await a.runs.export("c1")
    async with shared() as b:
        with pytest.raises(
            UnknownKind, match="no engine here for runs of kind 'countdown'; known kinds: dag, entity, flow"
        ):
            await b.runs.import_(line)
        assert await b.runs.list() == []
    async with shared(engines=[engines]) as b:
        with pytest.raises(BadExport, match="line 1 is not a run written by `penstock export`"):
            await b.runs.import_(line.replace(b'"left":', b'"gone":'))
        assert await b.runs.list() == []


async def test_a_run_without_its_engine_is_named(shared: Any) -> None:
    engines = Engines()
    async with shared(engines=[engines]):
        await engines[0].count("c1", 1)
    async with shared() as b:
        with pytest.raises(
            UnknownKind, match="no engine here for runs of kind 'countdown'; known kinds: dag, entity, flow"
        ):
            await b.runs.get("c1")


async def _first(events: Any, count: int) -> Any:
    async for event in events:
        yield event
        count -= 1
        if not count:
            return
