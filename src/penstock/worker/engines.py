"""Engines by kind: which engine understands a claim or a run.

A run names its kind (`flow`); its claims, its view and its commands belong to the engine of that kind. Work without a
run is a plain job, unless its queue is one that an engine keeps for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from ..commit.command_sink import CommandSink
from ..core.errors import ConfigError, UnknownFlow, UnknownKind
from ..core.events import Event
from ..core.text import shorten
from ..handlers.registry import Registry, find_flow
from ..ports.runner import Runner
from ..ports.store import JobRow, RunRow
from ..ports.unit import Claim, NewJob, RunParent
from .outcomes import Work

if TYPE_CHECKING:
    from .child_runs import RunStart

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
    parent: RunParent | None = None
    fixed_keys: tuple[str, ...] = ()  # of `state_keys`, those whose value never changes: an import compares it


class RunOutcome(msgspec.Struct, frozen=True):
    """How a run ended, for the run that called it."""

    result: bytes | None = None  # of a completed run, as JSON; None if it is larger than a result may be
    error: str = ""
    code: str | None = None


class Engine(Protocol):
    """Understands the claims of one kind."""

    @property
    def kind(self) -> str: ...

    def open(self, claim: Claim) -> Coroutine[Any, Any, Work]:
        """Return the claim with its handler and with what its outcomes mean."""
        ...


class RunCommands(Protocol):
    """What can be done to a run from outside."""

    async def emit(
        self, run: str, kind: str, data: Any, *, key: str | None = None, tags: Sequence[str] = ()
    ) -> bool: ...

    async def cancel(self, run: str, reason: str) -> bool: ...

    async def pause(self, run: str, reason: str, *, by: str | None = None) -> bool:
        """Pause a run. `by` is the run that called it, and was paused."""
        ...

    async def resume(self, run: str, reason: str, *, by: str | None = None) -> bool:
        """Resume a run. With `by`, only if that run's pause has paused it."""
        ...


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

    def outcome(self, record: bytes) -> RunOutcome:
        """Return how a closed run ended."""
        ...

    async def start(self, start: RunStart, sink: CommandSink) -> bool:
        """Start a run, for another one or from outside. Return False if a run with that id exists: it stays as it is.

        Its units name `start.link` as parent, and the first one has the key `child_runs.parent_key` if there is a link.
        The one that closes it adds `child_runs.end_jobs`; those that stop or continue it, `child_runs.follow_jobs`."""
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

    def index_keys(self, run: str, record: bytes) -> tuple[str, ...]:
        """Return the keys that a run is found by, for an import."""
        ...

    def check_record(self, record: bytes) -> None:
        """Raise msgspec.DecodeError or UnreadableRecord if this engine cannot have written a run record: one that is
        to be imported."""
        ...

    def restore_job(self, run: str, record: bytes, job: NewJob) -> NewJob:
        """Return an exported open job with what this engine adds to its jobs, such as the event of its claim.

        Raise msgspec.DecodeError if this engine did not write its options, or if the record does not know the job."""
        ...


class RunDefinition(Protocol):
    """What runs are started from: a flow, or what another engine knows by a name."""

    @property
    def kind(self) -> str:
        """The kind of its runs."""
        ...

    @property
    def name(self) -> str: ...

    def check_start(self, value: Any) -> None:
        """Raise SchemaViolation if a run cannot start with this input."""
        ...

    def make_key(self, value: Any) -> str | None:
        """Return the id that the definition chooses for a run with this input; None for a new one."""
        ...


@runtime_checkable
class NamedRunEngine(RunEngine, Protocol):
    """An engine whose runs are started by name: with `app.start`, `ctx.start` and `ctx.call`, as flows are."""

    def find_definition(self, target: Any) -> RunDefinition | None:
        """Return the definition of a name, or of an object that stands for one; None if this engine has none."""
        ...

    @property
    def names(self) -> Collection[str]:
        """The names of its definitions."""
        ...


@runtime_checkable
class IncrementalEngine(RunEngine, Protocol):
    """An engine whose view can be kept and brought up to date with new events, instead of being folded again."""

    @property
    def view_type(self) -> type[Any]:
        """The type of its views. Without arguments it is the view of no events; msgspec can encode it."""
        ...

    def apply_event(self, view: Any, event: Event) -> None:
        """Apply one more event to a view."""
        ...

    def finish_view(self, view: Any) -> None:
        """Add to a folded view what people see and no event changes."""
        ...


@runtime_checkable
class StoredDefinitions(Protocol):
    """An engine whose definitions are in the store."""

    async def load_definition(self, target: Any) -> bool:
        """Load the definition of a name. Return whether there is one; `find_definition` knows it then."""
        ...

    async def load_record(self, record: bytes) -> None:
        """Load what the record of a run refers to: `job_ids` and `explain` know it then."""
        ...


@runtime_checkable
class StoredResults(Protocol):
    """An engine whose results may be elsewhere in the store, because they do not fit into a run record."""

    async def load_result(self, row: RunRow) -> bytes | None:
        """Return the result of a completed run as JSON; None if it was not kept."""
        ...


class Engines:
    """The engines of one App. Its own are made when the first claim or run of their kind asks for them.

    Args:
        engines: Further engines. One with the kind of an own engine replaces it.
        own: Makes the App's own engine of a kind of run.
        jobs: Makes the engine of plain jobs.
        by_queue: Makes the engines that keep a queue for themselves.
    """

    def __init__(
        self,
        engines: Iterable[Engine],
        own: Mapping[str, Callable[[], RunEngine]],
        jobs: Callable[[], Engine],
        by_queue: Mapping[str, Callable[[], Engine]],
    ) -> None:
        self._make_jobs = jobs
        self._made: dict[str, Engine] = {}
        # Checked once: isinstance() on a protocol is slow, and the result of every run asks for its engine.
        self._with_runs: dict[str, RunEngine] = {}
        self._named: dict[str, NamedRunEngine] = {}
        self._stored: dict[str, StoredDefinitions] = {}
        self._results: dict[str, StoredResults] = {}
        self._incremental: dict[str, IncrementalEngine] = {}
        for engine in engines:
            self._add(engine)
        self._deferred = {kind: make for kind, make in own.items() if kind not in self._made}
        self._deferred_by_queue = dict(by_queue)
        self._by_queue: dict[str, Engine] = {}
        self.run_kinds: Collection[str] = (*self._deferred, *self._with_runs)
        """The kinds of runs that have an engine here."""

    def _add(self, engine: Engine) -> None:
        kind = engine.kind
        self._made[kind] = engine
        if isinstance(engine, RunEngine):
            self._with_runs[kind] = engine
            if isinstance(engine, NamedRunEngine):
                self._named[kind] = engine
            if isinstance(engine, IncrementalEngine):
                self._incremental[kind] = engine
        if isinstance(engine, StoredDefinitions):
            self._stored[kind] = engine
        if isinstance(engine, StoredResults):
            self._results[kind] = engine

    def _make(self, kind: str) -> None:
        """Make the App's own engine of a kind, unless it is there."""
        if (make := self._deferred.pop(kind, None)) is not None:
            self._add(make())

    @cached_property
    def _jobs(self) -> Engine:
        return self._made.get(JOB) or self._make_jobs()

    def open(self, claim: Claim) -> Coroutine[Any, Any, Work]:
        """Open a claim with the engine it belongs to."""
        if claim.run is not None:
            return self.of_run_kind(claim.kind).open(claim)
        if claim.queue in self._deferred_by_queue:
            self._by_queue[claim.queue] = self._deferred_by_queue.pop(claim.queue)()
        return self._by_queue.get(claim.queue, self._jobs).open(claim)

    def find_definition(self, registry: Registry, target: Any) -> RunDefinition:
        """Return what a name or a function starts. Raise UnknownFlow if no engine knows it, with the nearest names.

        An engine that is not made yet has loaded no definition."""
        found = [one for engine in self._named.values() if (one := engine.find_definition(target)) is not None]
        if not found:
            return find_flow(registry, target, (name for engine in self._named.values() for name in engine.names))
        if isinstance(target, str) and target in registry.flows:
            found.append(registry.flows[target])
        if len(found) > 1:
            kinds = " and ".join(f"a {one.kind}" for one in found)
            raise ConfigError(f"{shorten(target)} is the name of {kinds}; rename one of them")
        return found[0]

    async def load_definition(self, registry: Registry, target: Any) -> RunDefinition:
        """Return what a name or a function starts, also if its definition is in the store and not loaded yet."""
        try:
            return self.find_definition(registry, target)
        except UnknownFlow:
            for kind in tuple(self._deferred):
                self._make(kind)
            for engine in self._named.values():
                if isinstance(engine, StoredDefinitions) and await engine.load_definition(target):
                    return self.find_definition(registry, target)
            raise

    async def load_record(self, row: RunRow) -> RunEngine:
        """Return the engine of a run, with what the run's record refers to loaded from the store."""
        self._make(row.kind)
        if (stored := self._stored.get(row.kind)) is not None:
            await stored.load_record(row.record)
        return self.of_run(row)

    async def read_result(self, row: RunRow) -> bytes | None:
        """Return the result of a completed run as JSON; None if it is larger than a result may be."""
        self._make(row.kind)
        if (stored := self._results.get(row.kind)) is not None:
            return await stored.load_result(row)
        return self.of_run(row).result(row.record)

    def find_incremental(self, row: RunRow) -> IncrementalEngine | None:
        """Return the engine of a run if its view can be brought up to date, else None."""
        self._make(row.kind)
        return self._incremental.get(row.kind)

    def of_run(self, row: RunRow) -> RunEngine:
        """Return the engine of a run."""
        return self.of_run_kind(row.kind)

    def of_run_kind(self, kind: str) -> RunEngine:
        """Return the engine of runs of a kind."""
        engine = self._with_runs.get(kind)
        if engine is None:
            self._make(kind)
            engine = self._with_runs.get(kind)
        if engine is None:
            raise UnknownKind(
                f"no engine here for runs of kind {kind!r}; known kinds: {', '.join(sorted(self.run_kinds))}. "
                "Pass the engine to App(engines=[...])"
            )
        return engine
