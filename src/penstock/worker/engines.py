"""Engines by kind: which engine understands a claim or a run.

A run names its kind (`flow`); its claims, its view and its commands belong to the engine of that kind. Work without a
run is a plain job, unless its queue is one that an engine keeps for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from ..core.errors import UnknownKind
from ..core.events import Event
from ..ports.runner import Runner
from ..ports.store import JobRow, RunRow
from ..ports.unit import Claim, NewJob
from .outcomes import Work

JOB = "job"


PINNED = "pinned"  # not breaking: workers that have its version continue it


class PreflightProblem(msgspec.Struct, frozen=True):
    """Why a step cannot continue with the loaded code, or should not.

    Attributes:
        run: The run's id.
        flow: The name of the flow.
        step: The name of the step.
        n: Which instance of the step, from 1.
        code: `call_added`, `call_removed`, `pinned`, or the code of the error the step would fail with.
        reason: What is wrong, and what to do.
        call: The durable call, emit or state write that was added or removed; None for other problems.
        is_accepted: Whether the caller of the check accepts this added call.
    """

    run: str
    flow: str
    step: str
    n: int
    code: str
    reason: str
    call: str | None = None
    is_accepted: bool = False

    @property
    def is_breaking(self) -> bool:
        return self.code != PINNED and not self.is_accepted


class RecordSummary(msgspec.Struct, frozen=True):
    """What an export and an import need of a run record."""

    paused: bool = False
    state_keys: tuple[str, ...] = ()  # state that runs share and this one needs, besides its own
    flow: str | None = None  # None, here and below: the engine does not know it
    status: str | None = None  # as lists of runs show it
    closed: bool | None = None
    open_jobs: int | None = None


class Engine(Protocol):
    """Understands the claims of one kind."""

    @property
    def kind(self) -> str: ...

    def open(self, claim: Claim) -> Coroutine[Any, Any, Work]:
        """Return the claim with its handler and with what its outcomes mean."""
        ...


class RunCommands(Protocol):
    """What can be done to a run from outside."""

    async def emit(self, run: str, kind: str, data: Any, *, key: str | None = None) -> bool: ...

    async def cancel(self, run: str, reason: str) -> bool: ...

    async def pause(self, run: str, reason: str) -> bool: ...

    async def resume(self, run: str, reason: str) -> bool: ...


@runtime_checkable
class RunEngine(Engine, Protocol):
    """An engine whose claims belong to runs: it also folds, explains and commands them."""

    @property
    def commands(self) -> RunCommands: ...

    def view(self, events: Sequence[Event]) -> Any:
        """Fold the events of a run into what people see."""
        ...

    def result(self, record: bytes) -> bytes | None:
        """Return the result of a completed run as JSON; None if it is larger than a result may be."""
        ...

    def job_ids(self, run: str, record: bytes) -> list[str]:
        """Return the ids of the jobs that a run's record knows of."""
        ...

    def explain(self, record: bytes) -> list[str]:
        """Return sentences on what the run itself waits for, besides its jobs and waits."""
        ...

    async def check(self, claim: Claim, runner: Runner) -> list[PreflightProblem]:
        """Return why the present code could not continue a claim; nothing if it could, as far as is recorded."""
        ...

    def instance(self, job: JobRow) -> tuple[str, int]:
        """Return the step of a job and which instance of it the job is."""
        ...

    def read_record(self, record: bytes) -> RecordSummary:
        """Return what an export and an import need of a run record. Raise msgspec.DecodeError if this engine did not
        write it."""
        ...

    def check_record(self, record: bytes) -> None:
        """Raise msgspec.DecodeError or UnreadableRecord if this engine cannot have written a run record: one that is
        to be imported."""
        ...

    def restore_job(self, run: str, record: bytes, job: NewJob) -> NewJob:
        """Return an exported open job with what this engine adds to its jobs, such as the event of its claim.

        Raise msgspec.DecodeError if this engine did not write its options, or if the record does not know the job."""
        ...


class Engines:
    """The engines of one App."""

    def __init__(self, engines: Iterable[Engine], by_queue: Mapping[str, Engine]) -> None:
        self._by_kind = {engine.kind: engine for engine in engines}
        self._by_queue = by_queue
        self._jobs = self._by_kind[JOB]
        # Checked once: isinstance() on a protocol is slow, and the result of every run asks for its engine.
        self._with_runs = {kind: engine for kind, engine in self._by_kind.items() if isinstance(engine, RunEngine)}

    @property
    def run_kinds(self) -> Collection[str]:
        """The kinds of runs that have an engine here."""
        return self._with_runs.keys()

    def open(self, claim: Claim) -> Coroutine[Any, Any, Work]:
        """Open a claim with the engine it belongs to."""
        if claim.run is None:
            return self._by_queue.get(claim.queue, self._jobs).open(claim)
        return self.of_run_kind(claim.kind).open(claim)

    def of_run(self, row: RunRow) -> RunEngine:
        """Return the engine of a run."""
        return self.of_run_kind(row.kind)

    def of_run_kind(self, kind: str) -> RunEngine:
        """Return the engine of runs of a kind."""
        engine = self._with_runs.get(kind)
        if engine is None:
            raise UnknownKind(
                f"no engine here for runs of kind {kind!r}; known kinds: {', '.join(sorted(self._with_runs))}. "
                "Pass the engine to App(engines=[...])"
            )
        return engine
