"""An engine for another kind of run: countdowns, whose ticks are jobs. A tick may call other runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from penstock import Context, Event
from penstock.commit.command_sink import CommandSink, DirectSink
from penstock.commit.committer import CommitRequest
from penstock.commit.runtime import Runtime
from penstock.core.errors import SchemaViolation
from penstock.core.events import EventBody
from penstock.durable.child_runs import has_call
from penstock.handlers.handler import Handler
from penstock.jobs.engine import InternalJobWork
from penstock.jobs.launcher import Launcher
from penstock.ports.runner import Runner
from penstock.ports.store import JobRow
from penstock.ports.unit import (
    Claim,
    Committed,
    Completed,
    Conflict,
    Dead,
    NewEvent,
    NewJob,
    Outcome,
    RunParent,
    RunWrite,
    Suspended,
    Unit,
)
from penstock.worker.child_runs import RunStart, end_jobs, follow_jobs, parent_key
from penstock.worker.engines import PreflightProblem, RecordSummary, RunOutcome
from penstock.worker.outcomes import Failure, Success, WaitSuspension, Work

QUEUE = "penstock-events"  # every worker works on it
Tick = Callable[[Context], Awaitable[Any]]


class Countdown(msgspec.Struct):
    """The run record of the kind: how many jobs are left."""

    left: int
    total: int
    name: str = "countdown"
    last: Any = None
    error: str = ""
    parent: RunParent | None = None
    has_called: bool = False


class CountdownView(msgspec.Struct):
    """The view of a run."""

    ticks: int
    status: str


class CountdownDefinition(msgspec.Struct, frozen=True):
    """What a countdown is started from."""

    name: str
    kind: str = "countdown"

    def check_start(self, value: Any) -> None:
        if not isinstance(value, int):
            raise SchemaViolation(f"the input of countdown {self.name!r} must be a number, got {value!r}")

    def make_key(self, value: Any) -> str | None:
        return "the-answer" if value == 42 else None


class CountdownCommands:
    """A countdown cannot be paused; cancelling it closes it."""

    def __init__(self, engine: CountdownEngine) -> None:
        self._engine = engine
        self.emitted: list[tuple[str, str, Any, str | None]] = []

    async def emit(self, run: str, kind: str, data: Any, *, key: str | None = None, tags: Sequence[str] = ()) -> bool:
        self.emitted.append((run, kind, data, key))
        return True

    async def cancel(self, run: str, reason: str) -> bool:
        return await self._engine.cancel(run, reason)

    async def pause(self, run: str, reason: str, *, by: str | None = None) -> bool:
        return False

    async def resume(self, run: str, reason: str, *, by: str | None = None) -> bool:
        return False


class CountdownEngine:
    """Runs of kind `countdown` that count down, one job after the other."""

    kind = "countdown"

    def __init__(self, runtime: Runtime, launcher: Launcher, ticks: Mapping[str, Tick]) -> None:
        self.runtime = runtime
        self.launcher = launcher
        self.commands = CountdownCommands(self)
        self.handled: list[int] = []
        self._ticks = {"countdown": self._count, **ticks}

    async def _count(self, ctx: Context) -> int:
        assert ctx.flow == "countdown"
        self.handled.append(len(self.handled))
        return len(self.handled)

    def open(self, claim: Claim) -> Coroutine[Any, Any, Work]:
        return self._open(claim)

    async def _open(self, claim: Claim) -> Work:
        assert claim.record is not None
        record = msgspec.json.decode(claim.record, type=Countdown)
        return CountdownWork(self, claim, Handler(name="tick", fn=self._ticks[record.name], queue=QUEUE), record)

    @property
    def names(self) -> Collection[str]:
        return self._ticks.keys()

    def find_definition(self, target: Any) -> CountdownDefinition | None:
        return CountdownDefinition(target) if isinstance(target, str) and target in self._ticks else None

    async def count(self, run: str, count: int) -> None:
        """Start a countdown."""
        await self.start(RunStart("countdown", run, count, run, None), DirectSink(self.runtime.committer))

    async def start(self, start: RunStart, sink: CommandSink) -> bool:
        record = Countdown(abs(start.input), start.input, start.flow, parent=start.link)

        def build(version: int, data: bytes | None) -> Unit | Conflict:
            return Conflict(version, data) if version else self.unit(start.run, 0, record)

        return isinstance(await sink.submit(CommitRequest(build, run=start.run)), Committed)

    async def cancel(self, run: str, reason: str) -> bool:
        row = await self.runtime.store.run(run)
        assert row is not None

        def build(version: int, data: bytes | None) -> Unit | Conflict:
            assert data is not None
            record = msgspec.json.decode(data, type=Countdown)
            return self.close(run, version, record, "cancelled", {"reason": reason}, cancel_jobs=True)

        await self.runtime.committer.submit(CommitRequest(build, run=run, version=row.version, record=row.record))
        return True

    def close(self, run: str, version: int, record: Countdown, status: str, data: Any, **parts: Any) -> Unit:
        """Build the unit that closes a run."""
        cancel_jobs = parts.pop("cancel_jobs", False)
        if status == "cancelled":
            record.error = data["reason"]
        jobs = end_jobs(run, version, record.parent)
        if cancel_jobs:
            jobs += follow_jobs(run, version, record.has_called)
        return Unit(
            self.runtime.new_unit_id(),
            run=self.write(run, version, record, status, cancel_jobs=cancel_jobs),
            events=[*parts.pop("events", []), self.event(run, f"countdown.{status}", data)],
            jobs=[*parts.pop("jobs", []), *jobs],
            **parts,
        )

    def unit(self, run: str, version: int, record: Countdown, **parts: Any) -> Unit:
        """Build the unit that writes the record and enqueues the next tick, or closes the run."""
        if record.left == 0:
            return self.close(run, version, record, "completed", {}, **parts)
        n = abs(record.total) - record.left + 1
        jobs = [*parts.pop("jobs", []), NewJob(f"{run}.tick.{n}", QUEUE, "tick", b"null", run=run)]
        write = self.write(run, version, record, "running")
        return Unit(self.runtime.new_unit_id(), run=write, jobs=jobs, **parts)

    def write(self, run: str, version: int, record: Countdown, status: str, *, cancel_jobs: bool = False) -> RunWrite:
        parent = record.parent
        return RunWrite(
            run,
            version,
            msgspec.json.encode(record),
            record.name,
            status,
            status != "running",
            cancel_jobs=cancel_jobs,
            kind=self.kind,
            keys=(parent_key(parent.run),) if parent is not None and not version else (),
            parent=parent,
        )

    def event(self, run: str, kind: str, data: Any) -> NewEvent:
        body = EventBody(kind, data=msgspec.Raw(msgspec.json.encode(data)))
        return NewEvent(self.runtime.bodies.run(self.kind, run), self.runtime.bodies.encode(body))

    def view(self, events: Sequence[Event]) -> CountdownView:
        kinds = [event.kind for event in events if event.kind.startswith("countdown.")]
        ends = [kind.partition(".")[2] for kind in kinds if kind != "countdown.ticked"]
        return CountdownView(kinds.count("countdown.ticked"), ends[-1] if ends else "running")

    def result(self, record: bytes) -> bytes | None:
        known = msgspec.json.decode(record, type=Countdown)
        if known.name != "countdown":
            return msgspec.json.encode(known.last)
        return b'"lift off after %d"' % known.total

    def outcome(self, record: bytes) -> RunOutcome:
        error = msgspec.json.decode(record, type=Countdown).error
        return RunOutcome(None, error, "scrubbed") if error else RunOutcome(self.result(record))

    def index_keys(self, run: str, record: bytes) -> tuple[str, ...]:
        return ()

    def job_ids(self, run: str, record: bytes) -> list[str]:
        counted = msgspec.json.decode(record, type=Countdown)
        return [f"{run}.tick.{n}" for n in range(1, counted.total - counted.left + 2)]

    def instance(self, job: JobRow) -> tuple[str, int]:
        return "tick", int(job.id.rpartition(".")[2])

    async def check(self, claim: Claim, runner: Runner) -> list[PreflightProblem]:
        assert claim.run is not None
        return [PreflightProblem(claim.run, "countdown", "tick", 1, "too_long", "ten ticks are too many")]

    def read_record(self, record: bytes) -> RecordSummary:
        parent = msgspec.json.decode(record, type=Countdown).parent
        return RecordSummary(state_keys=("countdown/speed",), parent=parent)

    def check_record(self, record: bytes) -> None:
        msgspec.json.decode(record, type=Countdown)

    def restore_job(self, run: str, record: bytes, job: NewJob) -> NewJob:
        return job

    def explain(self, record: bytes) -> list[str]:
        return [f"{msgspec.json.decode(record, type=Countdown).left} ticks are left"]


class CountdownWork(InternalJobWork):
    """One tick: it commits its outcome, its event and the next job in one unit."""

    def __init__(self, engine: CountdownEngine, claim: Claim, handler: Handler, record: Countdown) -> None:
        super().__init__(engine.runtime, claim, handler)
        assert claim.run is not None
        self._engine = engine
        self._run = claim.run
        self.run_id, self.flow, self.step = claim.run, record.name, "tick"
        self.subject = None
        self.stream = engine.runtime.bodies.run(engine.kind, claim.run)
        self.launcher, self.parent = engine.launcher, record.parent

    def on_success(self, success: Success) -> CommitRequest:
        def build(version: int, record: Countdown, writes: dict[str, Any]) -> Unit:
            record.left -= 1
            record.last = msgspec.json.decode(success.result)
            ticked = self._engine.event(self._run, "countdown.ticked", {"left": record.left})
            writes["events"] = [*writes["events"], ticked]
            return self._engine.unit(self._run, version, record, **writes)

        return self._request_with(success, Completed(success.result), build)

    def on_failure(self, failure: Failure) -> CommitRequest:
        assert failure.retry_in_ms is None
        error = failure.error.error

        def build(version: int, record: Countdown, writes: dict[str, Any]) -> Unit:
            record.error = error
            return self._engine.close(self._run, version, record, "failed", {"error": error}, **writes)

        return self._request_with(failure, Dead(msgspec.json.encode({"error": error})), build)

    def on_suspension(self, suspension: WaitSuspension) -> CommitRequest:
        def build(version: int, record: Countdown, writes: dict[str, Any]) -> Unit:
            record.has_called |= has_call(suspension.writes.waits)
            write = self._engine.write(self._run, version, record, "running")
            return Unit(self._engine.runtime.new_unit_id(), run=write, **writes)

        return self._request_with(suspension, Suspended(suspension.due), build)

    def _request_with(
        self,
        ending: Success | Failure | WaitSuspension,
        outcome: Outcome,
        build: Callable[[int, Countdown, dict[str, Any]], Unit],
    ) -> CommitRequest:
        made = ending.writes
        writes = {"claim": self.claim, "outcome": outcome, "memos": made.memos, "waits": made.waits, "jobs": made.jobs}

        def decide(version: int, data: bytes | None) -> Unit:
            assert data is not None
            record = msgspec.json.decode(data, type=Countdown)
            return build(version, record, {**writes, "events": made.events})

        return CommitRequest(decide, run=self._run, version=self.claim.version, record=self.claim.record)


class Engines(list[CountdownEngine]):
    """A factory of countdown engines that keeps those it made, for `App(engines=[Engines()])`."""

    def __init__(self, **ticks: Tick) -> None:
        super().__init__()
        self._ticks = ticks

    def __call__(self, runtime: Runtime, launcher: Launcher) -> CountdownEngine:
        self.append(CountdownEngine(runtime, launcher, self._ticks))
        return self[-1]
