"""One attempt: validate, run, listen to the handler, and say how it ended."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from ..commit.committer import Committer, Intent
from ..context.context import Context
from ..context.live_output import NOTHING, Batch, Frames
from ..context.state import StateView
from ..context.sync_context import SyncContext
from ..core.clock import Clock
from ..core.errors import (
    AttemptCancelled,
    AwaitTimeout,
    ChildFailed,
    ContextClosed,
    PayloadError,
    RateLimited,
    ReplayError,
    Retry,
    SchemaViolation,
    StaleAttempt,
    StoreError,
    SuspendSwallowed,
    Suspension,
    WorkerLost,
)
from ..core.events import BadEmit, Body, check_kind
from ..core.payload import NULL, pack, unpack
from ..core.retry import requested_delay
from ..durable import declared_waits as awaiting
from ..durable.declared_waits import TimeoutHandover
from ..durable.session import DurableSession
from ..ports.runner import Interrupt, Runner
from ..ports.store import ChildRow, State, Store
from ..ports.unit import DELIVERIES, Committed, Fenced, Memo, NewEvent, Receipt, StateWrite, Unit
from ..telemetry.logging import HANDLER, enter_attempt, leave_attempt
from .outcomes import Emitted, Ending, ErrorInfo, Failure, Limited, Spoken, Stopped, Success, Waiting, Work

log = logging.getLogger(HANDLER)
SHUTDOWN = "shutdown"
LEASE_LOST = "lease lost"
MAX_LOGGED = 8_000
MAX_SAID = 500


class Attempt:
    """Runs one claim's handler once. It is the handler's voice and the log of its patches."""

    def __init__(
        self,
        work: Work,
        *,
        committer: Committer,
        state: State,
        runner: Runner,
        clock: Clock,
        rng: random.Random,
        unit_id: Callable[[], str],
        max_crashes: int,
        loop: asyncio.AbstractEventLoop,
        jobs: Store | None = None,
    ) -> None:
        self.work = work
        self._jobs = jobs  # where its children are; a rehearsal has none
        self._committer = committer
        self._state = state
        self._runner = runner
        self._clock = clock
        self._rng = rng
        self._unit_id = unit_id
        self._max_crashes = max_crashes
        self._emitted: list[Emitted] = []
        self._emits = 0  # how often the handler emitted, what was recorded before included
        self._sets = 0
        self._writes: dict[str, StateWrite] = {}
        self._session: DurableSession | None = None
        self._frames: Frames | None = None
        self._interrupt: Interrupt | None = None
        self._stop_reason: str | None = None
        self._over = False
        self.abandoned = False  # the worker gives up on it and cancels its task
        self._started_ms = clock.now_ms()
        self._loop = loop
        if work.claim.memos:
            _ = self.session  # what was said before is not to be said again

    async def run(self) -> Ending:
        """Never raises for what the handler does."""
        try:
            return await self._end()
        except StoreError:
            raise
        except Exception as problem:  # of what is made of the handler's end
            return self.bare_failure(ErrorInfo.of(problem, self.work.recorder))

    async def _end(self) -> Ending:
        work, claim = self.work, self.work.claim
        try:
            # The engine's own jobs kill nobody; given up, they would leave a step asleep for ever.
            if claim.crashes > self._max_crashes and claim.queue != DELIVERIES:
                raise WorkerLost(
                    f"{claim.crashes} workers died or stalled while running {claim.job}; it is not tried again"
                )
            value = work.handler.check_input(unpack(claim.payload))
            result = await self._call(value)
            return await self._success(result)
        except Suspension:
            if (broken := self.session.journal.problem) is not None:
                return await self._failure(broken, None)
            return await self._waiting()
        except TimeoutHandover as diverted:
            return Success(await self._spoken(), NULL, self._emitted, [], self.session.finish(), diverted.step)
        except AttemptCancelled as stop:
            return Stopped(await self._spoken(), stop.reason)
        except RateLimited as limit:
            return await self._limited(limit)
        except SchemaViolation as problem:
            return await self._failure(problem, {"message": str(problem), "attempt": claim.attempt})
        except asyncio.CancelledError:
            if self.abandoned:
                raise
            # The handler cancelled the very task it runs in; its attempt fails, the worker goes on.
            task = asyncio.current_task()
            while task is not None and task.uncancel():
                pass
            return await self._failure(RuntimeError("the handler cancelled its own task"), None)
        except BaseException as problem:
            # sys.exit, KeyboardInterrupt and their like end the handler's own attempt, not everyone else's worker.
            return await self._failure(problem, None)
        finally:
            self._over = True

    async def _success(self, result: Any) -> Success:
        packed = self._packed(result)
        session = self._session
        if session is None:
            spoken = self._silent() if self._frames is None else await self._spoken()
            return Success(spoken, packed, self._emitted, [*self._writes.values()])
        if session.journal.problem is not None:
            raise session.journal.problem  # though the handler caught it
        if session.suspended:
            raise SuspendSwallowed(_swallowed(session, "returned"))
        session.journal.check_passed()
        return Success(await self._spoken(), packed, self._emitted, list(self._writes.values()), session.finish())

    async def _waiting(self) -> Waiting:
        session = self.session
        kinds = [*session.journal.recorded.kinds, *(emitted.kind for emitted in self._emitted)]
        session.journal.say(self._emits, self._sets, kinds)
        kept = session.journal.take()
        return Waiting(await self._spoken(), self._emitted, list(self._writes.values()), kept, session.due)

    async def _limited(self, limit: RateLimited) -> Limited | Failure:
        """Given back: what is recorded of durable calls stays; what was emitted will be when it runs again."""
        session = self._session
        if session is None:
            return Limited(await self._spoken(), limit.hold_ms, self._reason(limit))
        if session.suspended or session.journal.problem is not None:
            return await self._failure(session.journal.problem or limit, None)
        return Limited(await self._spoken(), limit.hold_ms, self._reason(limit), session.journal.take())

    def _reason(self, limit: RateLimited) -> str:
        return ErrorInfo.of(limit, self.work.recorder).error

    def interrupt(self, reason: str) -> None:
        """Stops the handler; called on the loop's thread."""
        self._stop_reason = reason
        if self._interrupt is not None:
            self._interrupt(reason)

    async def _call(self, value: Any) -> Any:
        handler = self.work.handler
        timeout = handler.timeout_ms / 1000 if handler.timeout_ms is not None else None
        ctx = self._context() if handler.wants_ctx else None
        if self._stop_reason is not None:
            raise AttemptCancelled(self._stop_reason)
        before = enter_attempt(self._about)
        try:
            if handler.wait is None:
                return await self._run(value, ctx, timeout)
            if handler.wait.type == "time":
                return await awaiting.after(handler.wait, self, lambda: self._run(value, ctx, timeout))
            awaited = await awaiting.before(handler.wait, value, self)
            if ctx is not None:
                ctx.awaited = awaited
            return await self._run(value, ctx, timeout)
        finally:
            leave_attempt(before)

    def _run(self, value: Any, ctx: Context | SyncContext | None, timeout: float | None) -> Coroutine[Any, Any, Any]:
        handler = self.work.handler
        return self._runner.run(
            lambda: handler.call(value, ctx), is_async=handler.is_async, timeout=timeout, interruptible=self._runs
        )

    def _runs(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt

    def _packed(self, result: Any) -> bytes:
        data = pack(result, f"the result of {self.work.handler.name}")
        if self.work.handler.checks_output:
            self.work.handler.check_output(result if data == NULL else unpack(data))
        return data

    async def failure(self, problem: Exception) -> Failure:
        """The attempt as failed after all, for a reason found while recording it."""
        return await self._failure(problem, None, raised=False)

    def bare_failure(self, error: ErrorInfo, final: bool = False) -> Failure:
        """The attempt as failed, with nothing but its error: what else there was cannot be recorded."""
        policy, failures = self.work.handler.retry, self.work.claim.failures + 1
        delay = None if final or failures >= policy.attempts else policy.delay_ms(failures, self._rng)
        return Failure(self._silent(), error, delay, bare=True)

    async def _failure(
        self, problem: BaseException, schema_error: dict[str, Any] | None, raised: bool = True
    ) -> Failure:
        policy, failures = self.work.handler.retry, self.work.claim.failures + 1
        session = self._session
        if raised and session is not None and session.suspended and not isinstance(problem, ReplayError):
            problem = SuspendSwallowed(_swallowed(session, f"raised {type(problem).__name__}"))
        final = isinstance(problem, _FINAL)
        delay = None if final else policy.next_delay_ms(problem, failures, self._rng)
        error = ErrorInfo.of(problem, self.work.recorder)
        if isinstance(problem, Retry) and failures >= policy.attempts:
            error = _in_vain(error, failures, policy.attempts)
        elif delay is not None and not isinstance(problem, Retry):  # which says so itself
            error = _said_of_delay(error, self.work.recorder.text(requested_delay(problem)[1]))
        if session is None:
            return Failure(await self._spoken(), error, delay, schema_error)
        if session.suspended:
            session.journal.take()  # it is not to sleep before the gates it held
        # Nobody will stand before the gates of a step that is dead.
        kept = session.finish() if delay is None else session.journal.take()
        return Failure(await self._spoken(), error, delay, schema_error, kept)

    async def _spoken(self) -> Spoken:
        said = await self._frames.rest() if self._frames is not None else NOTHING
        return Spoken(said.frames, said.progress, self._started_ms, self._clock.now_ms(), said.logs)

    def _silent(self) -> Spoken:
        """What a handler that said nothing has to say, as most do."""
        return Spoken([], None, self._started_ms, self._clock.now_ms())

    def _context(self) -> Context | SyncContext:
        work = self.work
        ctx = Context(
            channel=self,
            job_id=work.claim.job,
            queue=work.claim.queue,
            attempt=work.claim.attempt,
            scope=work.claim.scope,
            run_id=work.run_id,
            flow=work.flow,
            step=work.step,
            n=work.n,
            correlation_id=work.correlation_id,
        )
        return ctx if work.handler.is_async else SyncContext(ctx, self._loop)

    # The handler's voice

    @property
    def stopped(self) -> bool:
        return self._stop_reason is not None

    def check(self) -> None:
        if self._over:
            claim = self.work.claim
            raise ContextClosed(
                f"attempt {claim.attempt} of {claim.job} is over, its ctx can record nothing more: "
                "await or join what you start inside a handler"
            )

    @property
    def session(self) -> DurableSession:
        """The durable side of the attempt, made when it is first needed."""
        if self._session is None:
            self._session = DurableSession(
                self.work,
                clock=self._clock,
                rng=self._rng,
                unit_id=self._unit_id,
                submit=self._submit,
                check=self.check,
                public_url=self.work.public_url,
            )
        return self._session

    def let_go(self) -> None:
        """Nothing more is asked of it. Its parts point at each other; taken apart they need no collector."""
        if self._session is not None:
            self._session.let_go()
            self._session = None

    async def _submit(self, unit: Unit) -> Receipt:
        return await self._committer.submit(Intent(lambda _v, _r: unit, patient=True))

    def view(self, prefix: str) -> StateView:
        return StateView(prefix, self._state, self._clock, self, self._writes)

    async def children(self) -> list[ChildRow]:
        return await self._jobs.children(self.work.claim.scope) if self._jobs is not None else []

    async def remove_job(self, id: str) -> bool:
        return self._jobs is not None and await self._jobs.remove(id)

    def emit(self, kind: str, data: Any, correlation_id: str | None) -> None:
        check_kind(kind)
        if correlation_id is not None and not isinstance(correlation_id, str):
            raise BadEmit(f"the correlationId of {kind!r} is {correlation_id!r}: give a string")
        packed = pack(data, f"the data of {kind}")
        self._emits += 1
        if self._session is not None and self._session.journal.check_emit(self._emits - 1, kind):
            return
        self.work.check_emit(kind, packed)
        self._emitted.append(Emitted(kind, packed, correlation_id))

    def hold_emits(self) -> list[tuple[str, bytes, str | None]]:
        held = [(emitted.kind, emitted.data, emitted.correlation_id) for emitted in self._emitted]
        self._emits -= len(held)
        self._emitted.clear()
        return held

    def give_emits(self, emits: list[tuple[str, bytes, str | None]]) -> None:
        self._emits += len(emits)
        self._emitted += [Emitted(*emit) for emit in emits]

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        if self._replaying:
            return
        message, fields = _loggable(message, fields)
        data = {
            "level": "warn" if level == "warning" else level,
            "msg": message,
            **({"fields": fields} if fields else {}),
        }
        self._frame("log", data, line=self._line(data) if self.work.run_id is None else None)
        number = getattr(logging, level.upper())
        if log.isEnabledFor(number):
            recorder = self.work.recorder
            extra = {**self._about(), "redacted": True}
            if fields:
                extra["fields"] = recorder.value(unpack(pack(fields)))
            log.log(number, "%s", recorder.text(message), extra=extra)

    def _line(self, data: dict[str, Any]) -> str:
        """A log line as other programs show it, its secrets hidden."""
        recorder = self.work.recorder
        line = f"[{data['level']}] {recorder.text(data['msg'])}"
        fields = data.get("fields")
        return f"{line} {pack(recorder.value(unpack(pack(fields)))).decode()}" if fields else line

    def _about(self) -> dict[str, Any]:
        """What log lines say of the attempt they were written in."""
        work, claim = self.work, self.work.claim
        return {
            "run": work.run_id,
            "step": work.step,
            "job": claim.job,
            "attempt": claim.attempt,
            "queue": claim.queue,
        }

    def progress(self, value: Any) -> None:
        self._frame(f"{self._family}.progress", {"progress": value}, pack(value, "progress"))

    def partial(self, chunk: Any) -> None:
        self._frame(f"{self._family}.partial", {"chunk": chunk})

    @property
    def _family(self) -> str:
        return "job" if self.work.run_id is None else "step"

    def _frame(self, kind: str, data: Any, progress: bytes | None = None, line: str | None = None) -> None:
        if self._replaying:
            return  # it was said when the handler first came here
        if self._frames is None:
            self._frames = Frames(self._send, lambda n: self._body("buffer.drop", {"dropped": n}), self._loop)
        self._frames.add(self._body(kind, data), progress, line)

    def _body(self, kind: str, data: Any) -> bytes:
        work = self.work
        meta: dict[str, Any] = {"attempt": work.claim.attempt}
        if work.n > 1:
            meta["n"] = work.n
        raw = msgspec.Raw(pack(data, kind))
        body = Body(kind, work.subject, None, work.step, None, work.shown_correlation, raw, meta)
        return work.recorder.encode(body)

    async def _send(self, said: Batch) -> None:
        events = [NewEvent(self.work.stream, body) for body in said.frames]
        unit = Unit(self._unit_id(), claim=self.work.claim, events=events, progress=said.progress, logs=said.logs)
        receipt = await self._committer.submit(Intent(lambda _v, _r: unit, patient=True))
        if isinstance(receipt, Fenced):
            # By loss or by cancel: the attempt's own last commit will be told which.
            self.interrupt("cancelled" if self.work.run_id is not None else LEASE_LOST)

    # The log of patches

    def written_before(self) -> bool:
        self._sets += 1
        return self._session is not None and self._sets <= self._session.journal.recorded.sets

    @property
    def _replaying(self) -> bool:
        return self._session is not None and self._session.journal.replaying

    def recall(self, name: str) -> bytes | None:
        return self.work.claim.memos.get(name)

    async def apply(self, write: StateWrite, name: str) -> bool:
        claim = self.work.claim
        assert write.value is not None
        unit = Unit(self._unit_id(), claim=claim, state=[write], memos=[Memo(claim.scope, name, write.value)])
        receipt = await self._committer.submit(Intent(lambda _v, _r: unit, patient=True))
        if isinstance(receipt, Fenced):
            raise StaleAttempt(f"attempt {claim.attempt} of {claim.job} lost its lease: nothing more can be recorded")
        return isinstance(receipt, Committed)


_FINAL = (PayloadError, WorkerLost, StaleAttempt, ReplayError, AwaitTimeout, ChildFailed)


def _in_vain(error: ErrorInfo, failures: int, attempts: int) -> ErrorInfo:
    """Whoever asks for another attempt and has none left is told why there was none."""
    used = f"{failures} of {attempts} attempt{'s are' if attempts > 1 else ' is'} used"
    return msgspec.structs.replace(error, error=f"{error.error} ({used}: `retry=` gives more)")


def _said_of_delay(error: ErrorInfo, said: str) -> ErrorInfo:
    """An error whose own word on when to try again cannot be used says so."""
    return msgspec.structs.replace(error, error=f"{error.error} ({said[:MAX_SAID]})") if said else error


def _swallowed(session: DurableSession, what: str) -> str:
    return (
        f"{session.journal.about} caught the exception by which a wait suspends it, and {what}: catch Exception, not "
        "BaseException, and do not return from a finally block around a wait"
    )


def _loggable(message: str, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """A log line never costs a step its work: what has no JSON form is shown as text, what is too long is cut."""
    text = message.encode("utf-8", "replace").decode()
    if len(text) > MAX_LOGGED:
        text = f"{text[:MAX_LOGGED]}… ({len(text):,} characters)"
    try:
        pack(fields, "log fields", MAX_LOGGED)
    except PayloadError:
        fields = {str(key): repr(value)[:500] for key, value in list(fields.items())[:20]}
    return text, fields
