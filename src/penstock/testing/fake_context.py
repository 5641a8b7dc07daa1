"""`FakeContext`: a `ctx` without an App, to test a step alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from ..context.blobs import BlobView, SyncBlobView
from ..context.context import Context
from ..context.launch_requests import JobLaunch, RunLaunch
from ..context.state import AlreadyDone, Key, StateView, SyncStateView
from ..context.sync_context import BranchCalls, SyncContext
from ..core.argument_checks import resolve_due
from ..core.durations import Duration
from ..core.errors import ConfigError, UndeclaredEvent
from ..core.event_tags import check_event_tags
from ..core.events import check_kind
from ..core.ids import check_name
from ..core.payload import pack, unpack
from ..durable.calls import RunCall
from ..durable.session import DurableSession
from ..handlers.decorators import FlowDefinition, read_definitions
from ..handlers.handler import JobDefinition
from ..ports.blobs import BlobData
from ..ports.store import ChildRow, ChildState, StateRow
from ..ports.unit import StateWrite
from .clock import FakeClock
from .fake_blobs import FakeBlobs, FakeSyncBlobs
from .fake_waits import FakeDurableSession, RecordedCall, RecordedWait

T = TypeVar("T")
RUN, SHARED = "run/", "shared/"


class LogLine(NamedTuple):
    """A line that a handler logged."""

    level: str
    message: str
    fields: dict[str, Any]


class EnqueuedJob(NamedTuple):
    """A job that a handler enqueued: its queue, or its `@job` function, its input and its options."""

    queue: Any
    input: Any
    options: dict[str, Any]


class StartedRun(NamedTuple):
    """A run that a handler started: its flow, or its `@flow` function, its input and its options."""

    flow: Any
    input: Any
    options: dict[str, Any]


class FakeContext(Context):
    """Pass it to a step, then check what the step recorded.

        ctx = FakeContext(attempt=2)
        assert await charge(Order(7), ctx) == "paid"
        assert ctx.emitted == [("order.paid", {"id": 7})]

    A `def` step takes `ctx.sync`, which records into the same lists. State is in memory and readable at once; `state`
    and `shared` are its initial values. With `emits`, other kinds are refused, as in a flow.

    Waits do not block: the clock moves on, and the test supplies the answers. Pass `AwaitTimeout` to simulate a
    timeout, or a tuple for successive answers:

        ctx = FakeContext(events={"payment.confirmed": {"id": 7}}, triggers={"approval": AwaitTimeout})
        ...
        assert ctx.waited[0][:2] == ("event", "payment.confirmed")

    `calls` are the results of `ctx.call` and `ctx.call_many` by the name of the flow: a value, a function of the input,
    or a `ChildFailure`.

    `blobs` is the initial content of `ctx.blob`, which is in memory.

    `children` and `failed_children` are the results and errors of a job's children, by key.

    `ctx.enqueued` and `ctx.started` hold the jobs that the step enqueued and the runs that it started:

        assert ctx.enqueued == [("mail", {"to": "ada"}, {"delay": "1h"})]

    `ctx.run` calls its function; `ctx.ran` holds the recorded results. Ids and random numbers come from `seed`.
    """

    def __init__(
        self,
        *,
        attempt: int = 1,
        run_id: str | None = "run-1",
        flow: str | None = "flow",
        step: str | None = "step",
        n: int = 1,
        job_id: str = "run-1.step.1",
        queue: str = "default",
        correlation_id: str = "run-1",
        idempotency_key: str = "run-1.step.1",
        cancelled: bool = False,
        emits: Sequence[str] | None = None,
        state: Mapping[str, Any] | None = None,
        shared: Mapping[str, Any] | None = None,
        events: Mapping[str, Any] | None = None,
        triggers: Mapping[str, Any] | None = None,
        calls: Mapping[str, Any] | None = None,
        awaited: Any = None,
        children: Mapping[str, Any] | None = None,
        failed_children: Mapping[str, str] | None = None,
        blobs: Mapping[str, BlobData] | None = None,
        seed: int = 0,
        clock: FakeClock | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.emitted: list[tuple[str, Any]] = []
        self.emitted_tags: list[list[str]] = []  # of each event in `emitted`
        self.enqueued: list[EnqueuedJob] = []
        self.started: list[StartedRun] = []
        self.logs: list[LogLine] = []
        self.progressed: list[Any] = []
        self.partials: list[Any] = []
        self._emits = emits
        self._blobs = FakeBlobs(self.clock, _run_now, blobs or {})
        memory = _Memory(self.clock)
        about = f"step {step!r}" if run_id is not None else f"job {job_id}"
        durable = FakeDurableSession(self.clock, about, run_id, seed, events, triggers, calls)
        self.waited: list[RecordedWait] = durable.waited
        self.ran: list[RecordedCall] = durable.ran
        super().__init__(
            channel=_FakeChannel(self, memory, durable),
            job_id=job_id,
            queue=queue,
            attempt=attempt,
            scope=idempotency_key,
            run_id=run_id,
            flow=flow,
            step=step,
            n=n,
            correlation_id=correlation_id,
        )
        self.state = _FakeState(RUN, memory, state)
        self.shared = _FakeState(SHARED, memory, shared)
        self.cancelled = cancelled
        self.awaited = awaited
        self.children = _children(children or {}, failed_children or {})

    @property
    def sync(self) -> SyncContext:
        """Return the same context for `def` steps."""
        return _FakeSyncContext(self)

    @property
    def cancelled(self) -> bool:
        return self._stopped

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        self._stopped = value


class _FakeChannel:
    """A channel that records into lists. It refuses what a real one could not record."""

    def __init__(self, ctx: FakeContext, memory: _Memory, durable: FakeDurableSession) -> None:
        self._ctx = ctx
        self._memory = memory
        self._durable = durable

    @property
    def session(self) -> DurableSession:
        return cast(DurableSession, self._durable)

    @property
    def is_stopped(self) -> bool:
        return self._ctx.cancelled

    def bind_thread(self) -> None:
        """Nothing is replayed."""

    def check(self) -> None:
        """Do nothing: the attempt never loses its lease."""

    @property
    def blobs(self) -> BlobView:
        return self._ctx._blobs

    def state_view(self, prefix: str) -> StateView:
        return _FakeState(prefix, self._memory, None)

    async def list_children(self) -> list[ChildRow]:
        return self._ctx.children

    async def remove_job(self, id: str) -> bool:
        self._ctx.children = [row for row in self._ctx.children if row.id != id]
        return True

    def emit(self, kind: str, data: Any, correlation_id: str | None, tags: Any = None) -> None:
        declared = self._ctx._emits
        if check_kind(kind) and declared is not None and kind not in declared:
            raise UndeclaredEvent(
                f"step {self._ctx.step!r} emitted {kind!r}, but declares emits={list(declared)}; add {kind!r} to "
                "that list"
            )
        self._ctx.emitted.append((kind, _copy(data, f"the data of {kind}")))
        self._ctx.emitted_tags.append(check_event_tags(tags))

    def launch(self, launch: JobLaunch | RunLaunch) -> str:
        resolve_due(launch.delay, launch.at, self._ctx.clock)
        options = {
            field: value
            for field, value in msgspec.structs.asdict(launch).items()
            if value is not None and field not in ("queue", "flow", "input")
        }
        count = len(self._ctx.enqueued) + len(self._ctx.started) + 1
        if isinstance(launch, JobLaunch):
            name = _name_of(launch.queue, JobDefinition)
            input = _copy(launch.input, f"the input of a job of queue {name!r}")
            self._ctx.enqueued.append(EnqueuedJob(launch.queue, input, options))
        else:
            name = _name_of(launch.flow, FlowDefinition)
            input = _copy(launch.input, f"the input of flow {name!r}")
            self._ctx.started.append(StartedRun(launch.flow, input, options))
        return launch.key or f"{name}-{count}"

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self._ctx.logs.append(LogLine(level, message, _copy(dict(fields), "the fields of a log line")))

    def progress(self, value: Any) -> None:
        self._ctx.progressed.append(_copy(value, "progress"))

    def partial(self, chunk: Any) -> None:
        self._ctx.partials.append(_copy(chunk, "a partial"))


class _Memory:
    """State in memory: every write takes effect at once."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self._rows: dict[str, StateRow] = {}

    async def state(self, key: str) -> StateRow | None:
        row = self._rows.get(key)
        has_expired = row is not None and row.expires is not None and row.expires <= self.clock.now_ms()
        return None if has_expired else row

    async def states(self, prefix: str, *, after: str | None = None, limit: int = 100) -> list[StateRow]:
        rows = [await self.state(key) for key in sorted(self._rows) if key.startswith(prefix) and key > (after or "")]
        return [row for row in rows if row is not None][:limit]

    def write(self, write: StateWrite) -> None:
        before = self._rows.pop(write.key, None)
        if write.value is not None:
            version = before.version + 1 if before is not None else 1
            self._rows[write.key] = StateRow(write.key, write.value, version, write.expires)

    def check(self) -> None:
        """Do nothing: the attempt never loses its lease."""

    def count_write(self, key: str, size: int) -> bool:
        return False

    def read_memo(self, name: str) -> bytes | None:
        return None

    async def commit_patch(self, write: StateWrite, memo: str) -> bool:
        self.write(write)
        return True


class _FakeState(StateView):
    """State that is written without a commit, so that a test can see it expire."""

    def __init__(self, prefix: str, memory: _Memory, first: Mapping[str, Any] | None) -> None:
        self._pending: dict[str, StateWrite] = {}
        super().__init__(prefix, memory, memory.clock, memory, self._pending)
        self._memory = memory
        for key, value in (first or {}).items():
            self.set(key, value)

    def set(self, key: Key, value: Any, *, ttl: Duration | None = None) -> AlreadyDone:
        done = super().set(key, value, ttl=ttl)
        self._flush()
        return done

    def delete(self, key: Key) -> AlreadyDone:
        done = super().delete(key)
        self._flush()
        return done

    def _flush(self) -> None:
        for write in self._pending.values():
            self._memory.write(write)
        self._pending.clear()


class _FakeSyncState(SyncStateView):
    """State for `def` steps, without a loop or a thread."""

    def __init__(self, view: StateView) -> None:
        self._view = view

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return _run_now(work)


class _FakeSyncContext(SyncContext):
    def __init__(self, inner: FakeContext) -> None:
        super().__init__(inner, cast(asyncio.AbstractEventLoop, None))
        self.state = _FakeSyncState(inner.state)
        self.shared = _FakeSyncState(inner.shared)
        self.awaited = inner.awaited

    @property
    def blob(self) -> SyncBlobView:
        return FakeSyncBlobs(self._inner.blob, _run_now)

    @property
    def branch(self) -> BranchCalls:
        return _FakeBranches(self._inner)

    def _block_on(self, call: Coroutine[Any, Any, T]) -> T:
        return _run_now(call)

    def _post(self, fn: Callable[..., None], *args: Any) -> None:
        fn(*args)


class _FakeBranches(BranchCalls):
    def run(self, name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> RunCall:
        return self._ctx.run(name, fn, *args, **kwargs)


def _name_of(what: str | Callable[..., Any], kind: type[JobDefinition] | type[FlowDefinition]) -> str:
    """Return the name of a queue or a flow, from its name or from a decorated function."""
    if isinstance(what, str):
        return check_name(what, "a name")
    for definition in read_definitions(what):
        if isinstance(definition, kind):
            return definition.name if isinstance(definition, FlowDefinition) else definition.handler.queue_name
    name = "job" if kind is JobDefinition else "flow"
    raise ConfigError(f"{getattr(what, '__name__', what)!r} is not a {name}; decorate it with @{name}, or pass a name")


def _children(values: Mapping[str, Any], failed: Mapping[str, str]) -> list[ChildRow]:
    """Build rows of children from keys such as `bull:<queue>:<id>`; any other key works too."""

    def row(key: str, state: ChildState, value: bytes | None, reason: str | None) -> ChildRow:
        queue, _, id = key.rpartition(":")
        return ChildRow(key, queue.rpartition(":")[2], id, state, value, reason)

    done = [row(key, ChildState.PROCESSED, pack(value, f"the value of {key}"), None) for key, value in values.items()]
    return [*done, *(row(key, ChildState.IGNORED, None, why) for key, why in failed.items())]


def _run_now(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never blocks and return its result."""
    try:
        work.send(None)
    except StopIteration as answer:
        return cast(T, answer.value)
    work.close()
    raise AssertionError("a `def` step got an awaitable; make the step async")


def _copy(value: Any, what: str) -> Any:
    return unpack(pack(value, what))
