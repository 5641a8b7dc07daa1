"""One attempt: checks the input, runs the handler, and turns how it ended into a result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from ..core.errors import (
    AttemptCancelled,
    AttemptTimeout,
    RateLimited,
    ReplayError,
    SchemaViolation,
    StoreClosed,
    StoreError,
    StoreUnavailable,
    SuspendSwallowed,
    Suspension,
    UnreadableJob,
    UnreadableRecord,
    WorkerLost,
)
from ..core.payload import NULL, pack, unpack, unpack_stored
from ..durable import declared_waits
from ..durable.branches import OUTDATED
from ..durable.declared_waits import TimeoutHandover, WaitContext
from ..durable.journal import PendingWrites
from ..durable.session import DurableSession
from ..ports.runner import Task
from ..ports.unit import Claim
from ..telemetry.logging import enter_attempt, leave_attempt
from .channel import AttemptServices, WorkerChannel
from .child_runs import list_children
from .outcomes import (
    AttemptResult,
    ErrorInfo,
    Failure,
    Interruption,
    JobReturn,
    Launch,
    Success,
    WaitSuspension,
    Work,
    plan_retry,
)
from .quarantine import is_given_up


def read_input(claim: Claim) -> Any:
    """Return the input of a claimed job. Raise UnreadableJob if the job cannot be decoded."""
    if claim.unreadable is not None:
        raise UnreadableJob(claim.unreadable)
    return unpack_stored(claim.payload, "the input")


class Attempt:
    """Runs one claim's handler once. Its channel carries what the handler emits, asks and records."""

    def __init__(self, work: Work, services: AttemptServices) -> None:
        self.work = work
        self.is_abandoned = False  # the worker shuts down and cancels the attempt's task
        self._has_called = False  # the handler
        self._services = services
        self._unreadable: UnreadableRecord | None = None  # why its memos cannot be read
        try:
            self._channel = self._open_channel()
        except UnreadableRecord as problem:
            self._unreadable = problem
            work.claim = msgspec.structs.replace(work.claim, memos={})
            self._channel = self._open_channel()

    def _open_channel(self) -> WorkerChannel:
        return WorkerChannel(self.work, self._services)

    async def run(self) -> AttemptResult:
        """Run the handler and return how it ended; raises only what the store raises."""
        try:
            return await self._run()
        except StoreError:
            raise
        except Exception as problem:  # raised while the result was being built
            error = ErrorInfo.from_exception(problem, self.work.bodies)
            return self.bare_failure(error, isinstance(problem, UnreadableRecord))

    @property
    def channel(self) -> WorkerChannel:
        """What the handler emits, asks and records."""
        return self._channel

    @property
    def launched(self) -> Sequence[Launch]:
        """What the handler started, besides what an earlier attempt committed."""
        return self._channel.launched

    @property
    def children(self) -> Sequence[str]:
        """The runs that the handler called."""
        called = self._channel.session.children if self._channel.has_session else ()
        return [id for run, count in called for id in ([run] if count is None else list_children(run, count))]

    def interrupt(self, reason: str) -> None:
        """Stop the handler. Call it on the event loop's thread."""
        self._channel.interrupt(reason)

    def dispose(self) -> None:
        """Release what the attempt holds, after its result is recorded."""
        if self.work.span is not None:
            self.work.span.end(None)  # it has ended, unless nothing could be recorded
        self._channel.dispose()

    async def fail(self, problem: Exception) -> Failure:
        """Return the attempt as failed after all: its result could not be recorded."""
        return await self._failure(problem, is_raised=False)

    def bare_failure(self, error: ErrorInfo, is_final: bool = False) -> Failure:
        """Return the attempt as failed, with nothing but its error: the rest cannot be recorded."""
        policy, failures = self.work.handler.retry, self.work.claim.failures + 1
        delay = None if is_final or failures >= policy.attempts else policy.delay_ms(failures, self._services.rng)
        return Failure(self._channel.empty_output(), error, delay, is_bare=True)

    # The handler

    async def _run(self) -> AttemptResult:
        work, claim, channel = self.work, self.work.claim, self._channel
        try:
            if self._unreadable is not None:
                raise self._unreadable
            if claim.crashes and is_given_up(claim, self._services.max_crashes):
                raise WorkerLost(
                    f"{claim.crashes} workers died or stalled while running job {claim.job!r}, so Penstock gave up "
                    "(setting max_crashes). Look for high memory use, or a call that never returns"
                )
            result = await self._call(work.handler.check_input(read_input(claim)))
            return await self._success(result)
        except Suspension:
            if (problem := channel.session.journal.problem) is not None:
                return await self._failure(problem)
            return await self._suspension()
        except TimeoutHandover as handover:
            output, writes = await channel.close_output(), channel.session.finish()
            return Success(output, NULL, channel.emitted, [], writes, handover.step)
        except AttemptCancelled as stop:
            if channel.has_session:
                await channel.end_branches()
            is_counted = self._has_called and stop.reason != OUTDATED
            return Interruption(await channel.close_output(), stop.reason, is_counted)
        except RateLimited as limit:
            return await self._return(limit, limit.hold_ms, holds_queue=limit.holds_queue)
        except StoreUnavailable as problem:
            if isinstance(problem, StoreClosed):
                return await self._failure(problem)
            # Not the handler's failure. It may be another store that is away, and for long: the pauses grow.
            pause_ms = work.handler.retry.delay_ms(claim.attempt, self._services.rng)
            return await self._return(problem, pause_ms, holds_queue=False)
        except SchemaViolation as problem:
            return await self._failure(problem, {"message": str(problem), "attempt": claim.attempt})
        except asyncio.CancelledError:
            if self.is_abandoned:
                raise
            # The handler cancelled the task that runs it: its attempt fails, the worker goes on.
            task = asyncio.current_task()
            while task is not None and task.uncancel():
                pass
            return await self._failure(RuntimeError("the handler cancelled its own task"))
        except BaseException as problem:
            # SystemExit, KeyboardInterrupt and the like end this attempt, not the worker.
            return await self._failure(problem)
        finally:
            channel.is_over = True

    async def _call(self, value: Any) -> Any:
        """Call the handler, before or after the wait that its definition declares."""
        wait, channel = self.work.handler.wait, self._channel
        ctx = channel.bind(value)
        if channel.stop_reason is not None:
            raise AttemptCancelled(channel.stop_reason)
        before = enter_attempt(channel.log_fields)
        leave_span = self.work.span.activate() if self.work.span is not None else None
        try:
            if (gate := self.work.handler.gate) is not None:
                return await gate.call(self._run_task)
            if wait is None:
                self._has_called = True
                return await self._services.runner.run(self._make_task(None), channel)
            if wait.type == "time":
                return await declared_waits.wait_after(wait, channel, self._run_task)
            awaited = await declared_waits.wait_before(wait, self._wait_context(value), channel)
            if ctx is not None:
                ctx.awaited = awaited
            return await self._run_task(awaited)
        except AttemptCancelled:
            if channel.stop is None:
                raise
            raise channel.stop from None  # a branch decided how the attempt ends
        finally:
            if leave_span is not None:
                leave_span()
            leave_attempt(before)

    def _wait_context(self, value: Any) -> WaitContext:
        work = self.work
        return WaitContext(value, work.run_id, work.flow, work.step, work.n, work.correlation_id)

    async def _run_task(self, awaited: Any = None) -> Any:
        self._has_called = True
        try:
            return await self._services.runner.run(self._make_task(awaited), self._channel)
        finally:
            if self._channel.has_session:
                await self._channel.end_branches()

    def _make_task(self, awaited: Any) -> Task:
        work, claim, handler = self.work, self.work.claim, self.work.handler
        return Task(
            handler.ref,
            "job" if work.run_id is None else "flow",
            msgspec.Raw(claim.payload),
            claim.job,
            claim.queue,
            claim.attempt,
            claim.scope,
            work.correlation_id,
            work.run_id,
            work.flow,
            work.step,
            work.n,
            None if handler.timeout_ms is None else handler.timeout_ms / 1000,
            claim.memos,
            awaited,
            handler.binding,
            work.trace if work.span is not None else None,
        )

    # Results

    async def _success(self, value: Any) -> Success:
        channel, result = self._channel, self._pack_result(value)
        if not channel.has_session:
            success = Success(await channel.close_output(), result, channel.emitted, [*channel.state_writes.values()])
            if channel.launched:
                await self._add_launches(success.writes)
            return success
        session = channel.session
        await channel.end_branches()
        if session.journal.problem is not None:
            raise session.journal.problem  # even if the handler caught it
        if session.is_suspended:
            raise SuspendSwallowed(_swallowed(session, "returned"))
        if channel.stop is not None:
            raise channel.stop
        session.journal.check_skipped_waits()
        output, writes = await channel.close_output(), await self._add_launches(session.finish())
        return Success(output, result, channel.emitted, list(channel.state_writes.values()), writes)

    async def _add_launches(self, writes: PendingWrites) -> PendingWrites:
        """Add what the handler started to the writes of the attempt's end."""
        launched = self._channel.launched
        if launched:
            writes.jobs += [launch.job for launch in launched]
            assert self.work.launcher is not None
            await self.work.launcher.warn(launched)
        return writes

    def _pack_result(self, value: Any) -> bytes:
        handler = self.work.handler
        data = pack(value, f"the result of {handler.name!r}")
        if handler.has_output_schema:
            handler.check_output(value if data == NULL else unpack(data))
        return data

    async def _suspension(self) -> WaitSuspension:
        channel, session = self._channel, self._channel.session
        await channel.end_branches()
        kinds = [*session.journal.recorded_effects.kinds, *(emitted.kind for emitted in channel.emitted)]
        launches = [*session.journal.recorded_effects.launches, *((one.label, one.id) for one in channel.launched)]
        session.journal.record_effects(channel.emit_count, channel.write_count, kinds, launches, channel.write_keys)
        session.journal.record_partials(channel.attempt_key, channel.partial_count)
        writes = await self._add_launches(session.journal.take_writes())
        output, state = await channel.close_output(), list(channel.state_writes.values())
        return WaitSuspension(output, channel.emitted, state, writes, session.due)

    async def _return(self, problem: Exception, delay_ms: int, *, holds_queue: bool) -> JobReturn | Failure:
        """Release the job. Recorded durable calls stay; emitted events are dropped, because the handler runs again."""
        channel = self._channel
        reason = ErrorInfo.from_exception(problem, self.work.bodies).error
        if not channel.has_session:
            output = await channel.close_output()
            return JobReturn(output, reason, delay_ms, holds_queue, is_counted=self._has_called)
        session = channel.session
        await channel.end_branches()
        if session.is_suspended or session.journal.problem is not None:
            return await self._failure(session.journal.problem or problem)
        output = await channel.close_output()
        return JobReturn(output, reason, delay_ms, holds_queue, session.journal.take_writes())

    async def _failure(
        self, problem: BaseException, schema_error: dict[str, Any] | None = None, *, is_raised: bool = True
    ) -> Failure:
        channel, claim = self._channel, self.work.claim
        session = channel.session if channel.has_session else None
        if session is not None:
            await channel.end_branches()
        if is_raised and session is not None and session.is_suspended and not isinstance(problem, ReplayError):
            problem = SuspendSwallowed(_swallowed(session, f"raised {type(problem).__name__}"))
        policy, failures, rng = self.work.handler.retry, claim.failures + 1, self._services.rng
        error, delay = plan_retry(problem, policy, failures, rng, self.work.bodies)
        is_counted = self._has_called or not isinstance(problem, WorkerLost)
        late = isinstance(problem, AttemptTimeout) and problem.ends_attempt
        if session is None:
            output = await channel.close_output()
            return Failure(output, error, delay, schema_error, is_counted=is_counted, timed_out=late)
        if session.is_suspended:
            session.journal.take_writes()  # its waits must not be written: it does not suspend
        # A dead step waits for nothing any more: `finish` cancels its waits.
        writes = session.finish() if delay is None else session.journal.take_writes()
        output = await channel.close_output()
        return Failure(output, error, delay, schema_error, writes, is_counted=is_counted, timed_out=late)


def _swallowed(session: DurableSession, what: str) -> str:
    return (
        f"{session.journal.about} caught the exception that Penstock raises to suspend it during a wait, and then "
        f"{what}. Catch Exception, not BaseException or asyncio.CancelledError, and do not return from a finally block "
        "around a wait"
    )
