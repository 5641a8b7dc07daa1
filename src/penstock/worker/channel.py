"""The worker's end of a channel: what a running handler emits, logs, asks and records, wherever it runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cached_property
from threading import get_ident
from typing import Any

from ..commit.committer import CommitRequest, Committer
from ..context.blobs import BlobView
from ..context.context import Context
from ..context.launch_requests import JobLaunch, RunLaunch
from ..context.state import StateView
from ..context.state_events import build_state_events
from ..context.sync_context import SyncContext
from ..core.clock import Clock
from ..core.errors import BadArgument, ContextClosed, HistoryLimit, StaleAttempt
from ..core.event_tags import check_event_tags
from ..core.events import BadEmit, check_kind
from ..core.outage_retry import OutageRetry
from ..core.payload import pack
from ..core.text import shorten
from ..core.tracebacks import format_task
from ..durable.session import DurableSession
from ..ports.frames import Notice, Request
from ..ports.runner import Execute, HandlerState, Inspect, Interrupt, Runner
from ..ports.store import ChildRow, State, StateRow, Store
from ..ports.unit import Committed, Fenced, Memo, Receipt, StateWrite, Unit
from .live_log import LiveLog, log_fields
from .outcomes import AttemptOutput, EmittedEvent, Launch, Work
from .remote_calls import RemoteCalls

SHUTDOWN = "shutdown"
NO_SLOT = "no slot was free soon enough"
QUARANTINED = "it must run alone, and another job does"
QUEUE_HELD = "its queue is held"
RELEASED = frozenset((SHUTDOWN, NO_SLOT, QUEUE_HELD, QUARANTINED))  # reasons to return a claim to its queue
LEASE_LOST = "lease lost"
TIMEOUT = "timeout"
# An attempt is one commit, and all other commits wait for it: events, launches and state writes together.
MAX_WRITES = 10_000
MAX_WRITE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class AttemptServices:
    """The parts of a worker that its attempts share."""

    store: Store
    committer: Committer
    clock: Clock
    new_unit_id: Callable[[], str]
    runner: Runner
    rng: random.Random
    max_crashes: int
    max_calls: int  # functions of one attempt's `ctx.run` calls at once
    loop: asyncio.AbstractEventLoop
    reads: OutageRetry  # a running attempt waits for the store
    blobs: BlobView

    @cached_property
    def state(self) -> State:
        return _RetriedState(self.store, self.reads)


class _RetriedState:
    """The state, read again until the store answers."""

    def __init__(self, store: State, reads: OutageRetry) -> None:
        self._store = store
        self._reads = reads

    async def state(self, key: str) -> StateRow | None:
        return await self._reads.call(self._store.state, key)

    async def states(self, prefix: str, *, after: str | None = None, limit: int = 100) -> list[StateRow]:
        return await self._reads.call(self._store.states, prefix, after=after, limit=limit)


class WorkerChannel:
    """One attempt's channel. A handler in this process reaches it through `ctx`, any other through frames.

    Most handlers use little of it: the session, the live log and the `ctx` are made when they are first needed.
    """

    __slots__ = (
        "_ctx", "_input", "_inspect", "_interrupt", "_is_concurrent", "_live_log", "_remote_calls", "_services",
        "_session", "_started_ms", "_thread", "_write_bytes", "emit_count", "emitted", "handler_task", "is_over",
        "last_log", "launch_count", "launched", "partial_count", "state_writes",
        "stop", "stop_reason", "work", "write_count", "write_keys",
    )  # fmt: skip

    def __init__(self, work: Work, services: AttemptServices) -> None:
        self.work = work
        self.emitted: list[EmittedEvent] = []
        self.emit_count = 0  # emits of the handler, including those that an earlier attempt recorded
        self.launched: list[Launch] = []
        self.partial_count = 0  # chunks of output, including those that were sent before the handler suspended
        self.launch_count = 0  # launches of the handler, including those that an earlier attempt recorded
        self.state_writes: dict[str, StateWrite] = {}
        self.write_count = 0  # state writes of the handler, including those that an earlier attempt recorded
        self._write_bytes = 0  # of its events, launches and state writes
        self.write_keys: list[str] = []  # of its state writes
        self.stop_reason: str | None = None
        self.stop: BaseException | None = None  # what ends the attempt, if a branch decided it
        self.handler_task: asyncio.Task[Any] | None = None  # of an `async def` handler in this process
        self.is_over = False
        self._thread: int | None = None  # the own thread of a `def` handler in this process
        self._is_concurrent = False
        self._services = services
        self._session: DurableSession | None = None
        self._live_log: LiveLog | None = None
        self._remote_calls: RemoteCalls | None = None
        self._interrupt: Interrupt | None = None
        self._inspect: Inspect | None = None
        self.last_log = ""
        self._input: Any = None
        self._ctx: Context | SyncContext | None = None
        self._started_ms = services.clock.now_ms()
        if work.claim.memos:
            _ = self.session  # what an earlier attempt recorded must not be emitted or logged again

    # For the attempt

    def bind(self, value: Any) -> Context | SyncContext | None:
        """Set the checked input, and make the `ctx` if the handler takes one."""
        self._input = value
        handler = self.work.handler
        if handler.takes_ctx:
            ctx = self._make_context()
            self._ctx = ctx if handler.is_async else SyncContext(ctx, self._services.loop)
        return self._ctx

    def interrupt(self, reason: str) -> None:
        """Stop the handler. Call it on the event loop's thread."""
        self.stop_reason = reason
        if self._interrupt is not None:
            self._interrupt(reason)

    @property
    def elapsed_ms(self) -> int:
        """How long the attempt has been running."""
        return max(0, self._services.clock.now_ms() - self._started_ms)

    @property
    def attempt_key(self) -> str:
        """Name the attempt. A redrive counts attempts from 1 again, but has a job of its own."""
        return f"{self.work.claim.job}.{self.work.claim.attempt}"

    async def inspect(self) -> HandlerState:
        """Look at the running handler."""
        if self._inspect is not None:
            return await self._inspect()
        return HandlerState(format_task(self.handler_task) if self.handler_task is not None else "")

    def on_inspect(self, inspect: Inspect) -> None:
        self._inspect = inspect

    def leave(self, stop: BaseException) -> None:
        """Cancel the handler's task: its branches wait, and the attempt ends with `stop`."""
        self.stop = stop
        if self._interrupt is not None:
            self._interrupt("suspended")

    async def end_branches(self) -> None:
        """End what the handler has left running."""
        if self._session is not None and self._session.has_branches:
            await self._session.end_branches()
        self.handler_task = None

    @property
    def has_session(self) -> bool:
        return self._session is not None

    async def close_output(self) -> AttemptOutput:
        """Return what is not written yet of the live output; it goes with the attempt's last commit."""
        output = self.empty_output()
        if self._live_log is None:  # as for most handlers
            return output
        rest = await self._live_log.close()
        return AttemptOutput(rest.events, rest.progress, output.duration_ms, rest.logs)

    def empty_output(self) -> AttemptOutput:
        passed = self._services.clock.now_ms() - self._started_ms
        return AttemptOutput([], None, passed if passed > 0 else 0)  # the store's clock may go back

    def dispose(self) -> None:
        """Break the reference cycles of the session, so that no garbage collector is needed."""
        if self._session is not None:
            self._session.dispose()
            self._session = None
        self._ctx = self._remote_calls = None

    # For the runner, see ports.runner.Channel

    def invoke(self) -> Any:
        ctx = self._ctx
        if ctx is not None and isinstance(ctx, SyncContext):
            ctx.bind_thread()
        return self.work.handler.call(self._input, ctx)

    def on_interrupt(self, interrupt: Interrupt, task: asyncio.Task[Any] | None = None) -> None:
        self._interrupt = interrupt
        self.handler_task = task

    def post(self, frame: Notice) -> None:
        self._remote().post(frame)

    async def call(
        self,
        request: Request,
        execute: Execute,
        site: str | None = None,
        is_branch: bool = False,
        is_loose: bool = False,
    ) -> Any:
        return await self._remote().answer(request, execute, site, is_branch, is_loose)

    def _remote(self) -> RemoteCalls:
        if self._remote_calls is None:
            ctx = self._ctx if isinstance(self._ctx, Context) else self._make_context()
            self._remote_calls = RemoteCalls(ctx, self.session)
        return self._remote_calls

    def note_caller(self) -> None:
        """Take note of what another task or thread than the handler's own does: its order may differ in a replay."""
        if self._thread is not None and self._thread == get_ident():
            return
        main = self.handler_task
        is_own = self._thread is None if main is None else asyncio.current_task(self._services.loop) is main
        if not is_own:
            self.mark_concurrent()

    def bind_thread(self) -> None:
        self._thread = get_ident()

    def mark_concurrent(self) -> None:
        """Take note that the handler does several things at once."""
        self._is_concurrent = True
        if self._session is not None:
            self._session.journal.is_concurrent = True

    def _make_context(self) -> Context:
        work, claim = self.work, self.work.claim
        return Context(
            channel=self,
            job_id=claim.job,
            queue=claim.queue,
            attempt=claim.attempt,
            scope=claim.scope,
            run_id=work.run_id,
            flow=work.flow,
            step=work.step,
            n=work.n,
            correlation_id=work.correlation_id,
        )

    # For `ctx`

    @property
    def is_stopped(self) -> bool:
        return self.stop_reason is not None

    def check(self) -> None:
        if self.is_over:
            claim = self.work.claim
            raise ContextClosed(
                f"attempt {claim.attempt} of {claim.job} is over, so its ctx can no longer record anything; "
                "await all tasks and join all threads before the handler returns"
            )

    @property
    def session(self) -> DurableSession:
        if self._session is None:
            self._session = self._make_session()
            if self._is_concurrent:
                self._session.journal.is_concurrent = True
        return self._session

    def _make_session(self) -> DurableSession:
        services = self._services
        return DurableSession(
            self.work,
            clock=services.clock,
            rng=services.rng,
            unit_id=services.new_unit_id,
            submit=self._submit,
            channel=self,
            public_url=self.work.public_url,
            max_calls=self.work.handler.call_concurrency or services.max_calls,
            mark_calls=self._mark_calls,
            orders_effects=self.work.handler.runner != "node",
        )

    @property
    def is_replaying(self) -> bool:
        """Return whether the handler has not yet passed the point that an earlier attempt reached."""
        return self._session is not None and self._session.journal.is_replaying

    async def _mark_calls(self) -> None:
        request = self.work.on_call()
        if request is not None:
            await self._services.committer.submit(request)

    def _submit(self, unit: Unit) -> Coroutine[Any, Any, Receipt]:
        return self._services.committer.submit(CommitRequest(lambda _v, _r: unit, outlasts_outage=True))

    @property
    def blobs(self) -> BlobView:
        return self._services.blobs

    async def list_children(self) -> list[ChildRow]:
        return await self._services.reads.call(self._services.store.children, self.work.claim.scope)

    async def remove_job(self, id: str) -> bool:
        return await self._services.reads.call(self._services.store.remove, id)  # removing twice changes nothing

    def emit(self, kind: str, data: Any, correlation_id: str | None, tags: Any = None) -> None:
        check_kind(kind)
        if correlation_id is not None and not isinstance(correlation_id, str):
            raise BadEmit(f"the correlationId of {kind!r} must be a string, got {shorten(correlation_id)}")
        packed, words = pack(data, f"the data of {kind}"), check_event_tags(tags) if tags else []
        self.emit_count += 1
        self.note_caller()
        if self._session is not None and self._session.journal.check_emit(self.emit_count - 1, kind):
            return
        self.work.check_emit(kind, packed)
        self._reserve(len(packed))
        self.emitted.append(EmittedEvent(kind, packed, correlation_id, words))

    def launch(self, launch: JobLaunch | RunLaunch) -> str:
        launcher = self.work.launcher
        if launcher is None:
            raise BadArgument(
                f"job {self.work.claim.job} cannot start other work; start it from a step of a flow or from a @job"
            )
        label, index = launcher.label(launch), self.launch_count
        self.launch_count += 1
        self.note_caller()
        if self._session is not None:
            recorded = self._session.journal.check_launch(index, label)
            if recorded is not None:
                return recorded
            index = len(self._session.journal.recorded_effects.launches) + len(self.launched)
        built = launcher.build(launch, self.work, index)
        self._reserve(len(built.job.payload))
        self.launched.append(built)
        return built.id

    def _reserve(self, size: int) -> None:
        """Count another event, launch or state write of this attempt, or raise HistoryLimit."""
        self._write_bytes += size
        count = len(self.emitted) + len(self.launched) + len(self.state_writes)
        if count >= MAX_WRITES or self._write_bytes > MAX_WRITE_BYTES:
            raise HistoryLimit(
                f"one attempt can write at most {MAX_WRITES:,} events, jobs, runs and state keys, and "
                f"{MAX_WRITE_BYTES // 2**20} MB in total; split the step into several"
            )

    def take_emits(self) -> list[tuple[str, bytes, str | None, list[str]]]:
        taken = [(emitted.kind, emitted.data, emitted.correlation_id, emitted.tags) for emitted in self.emitted]
        self.emit_count -= len(taken)
        self.emitted.clear()
        return taken

    def restore_emits(self, emits: list[tuple[str, bytes, str | None, list[str]]]) -> None:
        self.emit_count += len(emits)
        self.emitted += [EmittedEvent(*emit) for emit in emits]

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self.last_log = message
        if not self.is_replaying:  # else it was logged when an earlier attempt came here
            self._live().log(level, message, fields)

    def progress(self, value: Any) -> None:
        packed = pack(value, "progress")
        if not self.is_replaying:
            self._live().progress(value, packed)

    def partial(self, chunk: Any) -> None:
        index = self.partial_count
        self.partial_count += 1
        if self._session is None or index >= self._session.journal.sent_partials(self.attempt_key):
            self._live().partial(chunk, index)

    def _live(self) -> LiveLog:
        if self._live_log is None:
            self._live_log = LiveLog(self.work, self._services, self._on_fenced)
        return self._live_log

    def _on_fenced(self) -> None:
        # The claim was lost, or its run was cancelled: the attempt's own last commit finds out which.
        self.interrupt("cancelled" if self.work.run_id is not None else LEASE_LOST)

    def log_fields(self) -> dict[str, Any]:
        return log_fields(self.work)

    # For the state, see context.state.StateRecorder

    def state_view(self, prefix: str) -> StateView:
        return StateView(prefix, self._services.state, self._services.clock, self, self.state_writes)

    def count_write(self, key: str, size: int) -> bool:
        self.write_count += 1
        self.write_keys.append(key)
        self.note_caller()
        if self._session is not None and self._session.journal.check_write(self.write_count - 1, key):
            return True
        self._reserve(size)
        return False

    def read_memo(self, name: str) -> bytes | None:
        return self.work.claim.memos.get(name)

    async def commit_patch(self, write: StateWrite, memo: str) -> bool:
        claim = self.work.claim
        assert write.value is not None
        memos, work = [Memo(claim.scope, memo, write.value)], self.work
        unit = Unit(self._services.new_unit_id(), claim=claim, state=[write], memos=memos)
        if work.run_id is not None:
            unit.events = build_state_events(
                work.bodies, work.stream, work.run_id, [write], work.step, work.n, work.shown_correlation, claim.attempt
            )
        receipt = await self._submit(unit)
        if isinstance(receipt, Fenced):
            raise StaleAttempt(
                f"attempt {claim.attempt} of {claim.job} lost its lease and can no longer record anything"
            )
        return isinstance(receipt, Committed)
