"""Another kind of run: an engine of the test runs on every store, and the facets of App use it."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
import pytest

from penstock import Event
from penstock.app.export_format import BadExport
from penstock.commit.committer import CommitRequest
from penstock.commit.runtime import Runtime
from penstock.core.errors import RunError, UnknownKind
from penstock.core.events import EventBody
from penstock.handlers.handler import Handler
from penstock.jobs.engine import InternalJobWork
from penstock.ports.runner import Runner
from penstock.ports.store import JobRow
from penstock.ports.unit import Claim, Completed, Conflict, NewEvent, NewJob, Receipt, RunWrite, StateWrite, Unit
from penstock.worker.engines import PreflightProblem, RecordSummary
from penstock.worker.outcomes import Success, Work

QUEUE = "penstock-events"  # every worker works on it


class Countdown(msgspec.Struct):
    """The run record of the kind: how many jobs are left."""

    left: int
    total: int


class CountdownView(msgspec.Struct):
    """The view of a run."""

    ticks: int
    status: str


class CountdownCommands:
    """A countdown cannot be paused; cancelling it closes it."""

    def __init__(self, engine: CountdownEngine) -> None:
        self._engine = engine
        self.emitted: list[tuple[str, str, Any, str | None]] = []

    async def emit(self, run: str, kind: str, data: Any, *, key: str | None = None) -> None:
        self.emitted.append((run, kind, data, key))

    async def cancel(self, run: str, reason: str) -> bool:
        return await self._engine.close(run, "cancelled", {"reason": reason})

    async def pause(self, run: str, reason: str) -> bool:
        return False

    async def resume(self, run: str, reason: str) -> bool:
        return False


class CountdownEngine:
    """Runs of kind `countdown` that count down, one job after the other."""

    kind = "countdown"

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.commands = CountdownCommands(self)
        self.handled: list[int] = []

    def open(self, claim: Claim) -> Coroutine[Any, Any, Work]:
        return self._open(claim)

    async def _open(self, claim: Claim) -> Work:
        async def tick() -> int:
            self.handled.append(len(self.handled))
            return len(self.handled)

        return CountdownWork(self, claim, Handler(name="tick", fn=tick, queue=QUEUE))

    async def start(self, run: str, count: int) -> Receipt:
        record = Countdown(count, count)
        return await self.runtime.committer.submit(
            CommitRequest(
                lambda version, data: Conflict(version, data) if version else self.unit(run, 0, record), run=run
            )
        )

    async def close(self, run: str, status: str, data: Any) -> bool:
        row = await self.runtime.store.run(run)
        assert row is not None
        unit = Unit(
            self.runtime.new_unit_id(),
            run=RunWrite(run, row.version, row.record, "countdown", status, True, kind=self.kind),
            events=[self.event(run, f"countdown.{status}", data)],
        )
        await self.runtime.committer.submit(CommitRequest(lambda _v, _r: unit))
        return True

    def unit(self, run: str, version: int, record: Countdown, **parts: Any) -> Unit:
        """Build the unit that writes the record and enqueues the next tick, or closes the run."""
        is_done = record.left == 0
        n = record.total - record.left + 1
        jobs = [] if is_done else [NewJob(f"{run}.tick.{n}", QUEUE, "tick", b"null", run=run)]
        events = [self.event(run, "countdown.completed", {})] if is_done else []
        status = "completed" if is_done else "running"
        write = RunWrite(run, version, msgspec.json.encode(record), "countdown", status, is_done, kind=self.kind)
        return Unit(
            self.runtime.new_unit_id(), run=write, jobs=jobs, events=[*parts.pop("events", []), *events], **parts
        )

    def event(self, run: str, kind: str, data: Any) -> NewEvent:
        body = EventBody(kind, data=msgspec.Raw(msgspec.json.encode(data)))
        return NewEvent(self.runtime.bodies.run(self.kind, run), self.runtime.bodies.encode(body))

    def view(self, events: Sequence[Event]) -> CountdownView:
        ends = [event.kind.partition(".")[2] for event in events if event.kind != "countdown.ticked"]
        return CountdownView(len(events) - len(ends), ends[-1] if ends else "running")

    def result(self, record: bytes) -> bytes | None:
        return b'"lift off after %d"' % msgspec.json.decode(record, type=Countdown).total

    def job_ids(self, run: str, record: bytes) -> list[str]:
        counted = msgspec.json.decode(record, type=Countdown)
        return [f"{run}.tick.{n}" for n in range(1, counted.total - counted.left + 2)]

    def instance(self, job: JobRow) -> tuple[str, int]:
        return "tick", int(job.id.rpartition(".")[2])

    async def check(self, claim: Claim, runner: Runner) -> list[PreflightProblem]:
        assert claim.run is not None
        return [PreflightProblem(claim.run, "countdown", "tick", 1, "too_long", "ten ticks are too many")]

    def read_record(self, record: bytes) -> RecordSummary:
        msgspec.json.decode(record, type=Countdown)
        return RecordSummary(state_keys=("countdown/speed",))

    def check_record(self, record: bytes) -> None:
        msgspec.json.decode(record, type=Countdown)

    def restore_job(self, run: str, record: bytes, job: NewJob) -> NewJob:
        return job

    def explain(self, record: bytes) -> list[str]:
        return [f"{msgspec.json.decode(record, type=Countdown).left} ticks are left"]


class CountdownWork(InternalJobWork):
    """One tick: it commits its outcome, its event and the next job in one unit."""

    def __init__(self, engine: CountdownEngine, claim: Claim, handler: Handler) -> None:
        super().__init__(engine.runtime, claim, handler)
        self._engine = engine

    def on_success(self, success: Success) -> CommitRequest:
        run = self.claim.run
        assert run is not None

        def build(version: int, data: bytes | None) -> Unit:
            assert data is not None
            record = msgspec.json.decode(data, type=Countdown)
            record.left -= 1
            return self._engine.unit(
                run,
                version,
                record,
                claim=self.claim,
                outcome=Completed(success.result),
                events=[self._engine.event(run, "countdown.ticked", {"left": record.left})],
            )

        return CommitRequest(build, run=run, version=self.claim.version, record=self.claim.record)


@pytest.mark.spec("003-12.3")
async def test_an_engine_of_another_kind_runs_on_every_store(app: Any) -> None:
    engines: list[CountdownEngine] = []

    def make(runtime: Runtime) -> CountdownEngine:
        engines.append(CountdownEngine(runtime))
        return engines[-1]

    async with app(engines=[make]) as a, a.workers.background():
        await engines[0].start("c1", 3)
        assert await a.runs.result("c1", timeout=20) == "lift off after 3"
        assert await a.runs.get("c1") == CountdownView(3, "completed")
        (summary,) = await a.runs.list()
        assert (summary.id, summary.flow, summary.status, summary.kind) == ("c1", "countdown", "completed", "countdown")
        kinds = [event.kind for event in await a.events.read("nq:countdown:c1")]
        assert kinds == ["countdown.ticked"] * 3 + ["countdown.completed"]
        assert [event.kind async for event in _first(a.runs.follow("c1"), 4)] == kinds
    async with app(engines=[make]) as a:
        await engines[-1].start("c2", 2)
        reasons = await a.runs.why("c2")
        assert reasons[-1] == "2 ticks are left"
        report = await a.runs.preflight()
        assert [(problem.run, problem.code) for problem in report.broken] == [("c2", "too_long")]
        assert await a.runs.cancel("c2")
        assert (await a.runs.get("c2")).status == "cancelled"


async def test_why_explains_the_end_of_a_run_of_another_kind(app: Any) -> None:
    engines: list[CountdownEngine] = []

    def make(runtime: Runtime) -> CountdownEngine:
        engines.append(CountdownEngine(runtime))
        return engines[-1]

    async with app(engines=[make]) as a:
        await engines[0].start("c1", 2)
        await a.runs.cancel("c1", "too slow")
        (reason,) = await a.runs.why("c1")
        assert reason.startswith("it ended as cancelled at 20")
        assert reason.endswith("Z (too slow)")


async def test_app_emits_to_a_run_of_another_kind(app: Any) -> None:
    engines: list[CountdownEngine] = []

    def make(runtime: Runtime) -> CountdownEngine:
        engines.append(CountdownEngine(runtime))
        return engines[-1]

    async with app(engines=[make]) as a:
        await engines[0].start("c1", 2)
        await a.emit("hurry", {"by": 1}, run="c1", key="k")
        assert engines[0].commands.emitted == [("c1", "hurry", {"by": 1}, "k")]


@pytest.mark.parametrize("action", ["fork", "replay", "retry"])
async def test_what_only_flows_can_do_is_refused(app: Any, action: str) -> None:
    engines: list[CountdownEngine] = []

    def make(runtime: Runtime) -> CountdownEngine:
        engines.append(CountdownEngine(runtime))
        return engines[-1]

    async with app(engines=[make]) as a:
        await engines[0].start("c1", 2)
        arguments = ("c1", "0-1") if action == "fork" else ("c1",)
        with pytest.raises(RunError, match=f"run 'c1' is of kind 'countdown'; only runs of flows have `{action}`"):
            await getattr(a.runs, action)(*arguments)


async def test_a_run_of_another_kind_moves_to_another_store(app: Any, shared: Any) -> None:
    engines: list[CountdownEngine] = []

    def make(runtime: Runtime) -> CountdownEngine:
        engines.append(CountdownEngine(runtime))
        return engines[-1]

    async with app(engines=[make]) as a:
        async with a.workers.background():
            await engines[0].start("done", 2)
            await a.runs.result("done", timeout=20)
        await engines[0].start("open", 3)
        await a.store.commit([Unit("speed", state=[StateWrite("countdown/speed", b"7")])])
        lines = [await a.runs.export(id) for id in ("done", "open")]
        exported = [msgspec.json.decode(line) for line in lines]
        assert [(run["penstock"], run["kind"], len(run["events"])) for run in exported] == [
            (3, "countdown", 3),
            (3, "countdown", 0),
        ]
        events = await a.events.read("nq:countdown:done")
        rows = {row.id: row for row in await a.runs.list()}
    async with shared(engines=[make]) as b:
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
    engines: list[CountdownEngine] = []

    def make(runtime: Runtime) -> CountdownEngine:
        engines.append(CountdownEngine(runtime))
        return engines[-1]

    async with memory(engines=[make]) as a:
        await engines[0].start("c1", 1)
        line = await a.runs.export("c1")
    async with shared() as b:
        with pytest.raises(UnknownKind, match="no engine here for runs of kind 'countdown'; known kinds: flow"):
            await b.runs.import_(line)
        assert await b.runs.list() == []
    async with shared(engines=[make]) as b:
        with pytest.raises(BadExport, match="line 1 is not a run written by `penstock export`"):
            await b.runs.import_(line.replace(b'"left":', b'"gone":'))
        assert await b.runs.list() == []


async def test_a_run_without_its_engine_is_named(shared: Any) -> None:
    engines: list[CountdownEngine] = []

    def make(runtime: Runtime) -> CountdownEngine:
        engines.append(CountdownEngine(runtime))
        return engines[-1]

    async with shared(engines=[make]):
        await engines[0].start("c1", 1)
    async with shared() as b:
        with pytest.raises(UnknownKind, match="no engine here for runs of kind 'countdown'; known kinds: flow"):
            await b.runs.get("c1")


async def _first(events: Any, count: int) -> Any:
    async for event in events:
        yield event
        count -= 1
        if not count:
            return
