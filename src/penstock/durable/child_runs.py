"""`ctx.call` and `ctx.call_many`: start runs and wait for their end. The waiting step uses no memory and no slot.

The commit that registers the wait also adds the internal job that starts the child. The commit that ends the child adds
the internal job that resolves the wait. A call of many children is one wait: each end looks whether a child is open.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar, get_args

import msgspec

from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument, ChildCancelled, ChildFailed, HistoryLimit
from ..core.payload import unpack
from ..core.text import shorten
from ..ports.unit import CANCEL_RUN, CHILD_ENDED, DELIVERIES, NewJob, NewWait
from .call_recorder import CallRecorder
from .journal import MAX_JOURNAL_BYTES, JournalCall, PendingWrites, encode
from .wait_records import CALL, WaitSession, expire_wait, read_end, timeout_fields
from .waits import RecordedWait

T = TypeVar("T")
OnChildFailure = Literal["raise", "return"]
OnCallTimeout = Literal["cancel", "abandon"]
RESULTS = "~results:"  # memos with the outcomes of a call of many children, in pages
STARTED = "~started:"  # memos: which children of a call of many were started
PAGE_BYTES = 48 * 1024
CANCELLED, COMPLETED = "cancelled", "completed"


class ChildFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a child run failed: what `ctx.call(..., on_failure="return")` returns in place of a result.

    Attributes:
        run: The id of the child run.
        flow: The name of its flow.
        status: failed, compensated or cancelled.
        error: The error, or the reason of the cancellation.
        code: The code of the error.
    """

    run: str
    flow: str
    status: str
    error: str = ""
    code: str | None = None


class ChildOutcome(msgspec.Struct, omit_defaults=True):
    """How a child run ended, as its parent records it."""

    run: str
    flow: str
    status: str
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    code: str | None = None

    def failure(self) -> ChildFailure | None:
        """Return the failure, None if the run completed."""
        if self.status == COMPLETED:
            return None
        return ChildFailure(self.run, self.flow, self.status, self.error, self.code)

    def value(self) -> Any:
        """Return the recorded result."""
        return unpack(bytes(self.result))


_NESTED = re.compile(r"(?:run '[^']*' of flow '[^']*' failed: )+(?=run ')")


def _shorten_nested(error: str) -> str:
    """Leave out the runs between the one that was called and the one that failed, so that the reason stays."""
    return _NESTED.sub("", error, count=1)


def child_error(failure: ChildFailure) -> ChildFailed:
    """Build the exception of a failed child."""
    kind = ChildCancelled if failure.status == CANCELLED else ChildFailed
    error = _shorten_nested(failure.error)
    problem = kind(f"run {failure.run!r} of flow {failure.flow!r} {failure.status}: {error}")
    problem.failure = failure
    return problem


decode_outcome = msgspec.json.Decoder(ChildOutcome).decode
_decode_outcomes = msgspec.json.Decoder(list[ChildOutcome]).decode


class ChildRequest(msgspec.Struct, frozen=True):
    """The arguments of a call, besides the flow and its input."""

    flow: Any
    inputs: list[Any]
    is_many: bool = False
    key: str | None = None
    priority: int | None = None
    correlation_id: str | None = None
    tags: dict[str, str] | None = None
    result: Any = None  # the type of the results; None: what the flow declares


class ChildLaunch(msgspec.Struct, frozen=True):
    """What starts the children: one job for each page of them."""

    flow: str
    run: str  # the id of the child; of many children, the start of their ids
    count: int
    jobs: list[NewJob]


class ChildCallSession(WaitSession, Protocol):
    """The attempt, as calls of child runs see it."""

    def launch_children(self, request: ChildRequest, key: str, call: str) -> ChildLaunch:
        """Validate a call and build what starts its children. `call` is the wait that they resolve."""
        ...

    def find_flow_name(self, flow: Any) -> str:
        """Return the name of the called flow. Raise if it is unknown."""
        ...

    def convert_result(self, request: ChildRequest, value: Any, run: str) -> Any:
        """Return the result of a child as a value of its type. Raise SchemaViolation if it does not match."""
        ...

    async def read_outcomes(self, call: str, prefix: str, count: int) -> list[ChildOutcome]:
        """Return how the children of a call ended, in order."""
        ...

    async def read_outcome(self, run: str) -> ChildOutcome | None:
        """Return how a child has ended by now; None if it is gone or open."""
        ...


class ChildCall(RecordedWait[T]):
    """One child run, or many with one wait for all of them."""

    kind = CALL

    def __init__(
        self,
        calls: CallRecorder,
        session: ChildCallSession,
        call: JournalCall,
        request: ChildRequest,
        timeout_ms: int | None,
        on_failure: OnChildFailure,
        on_timeout: OnCallTimeout,
    ) -> None:
        super().__init__(calls, session, call)
        self._calls_session = session
        self._request = request
        self._timeout_ms = timeout_ms
        self._on_failure = on_failure
        self._on_timeout = on_timeout
        self._outcomes: list[ChildOutcome] | None = None
        self._added_to: PendingWrites | None = None

    async def start(self) -> None:
        now = self._calls.now_ms
        if self._started is None:
            due = now + self._timeout_ms if self._timeout_ms is not None else None
            self._launch(due)
        elif self._result is None and self.due is not None and self.due <= now:
            if self._on_timeout == "cancel":
                self._cancel_children("its caller stopped waiting for it")
            await expire_wait(self._session, self.record_result, self._new_wait(), self._started["at"])
        ended = self._result
        if self._request.is_many and ended is not None and not (ended.timeout or ended.cancelled or ended.manual):
            await self._load_outcomes()

    def result(self) -> Any:
        assert self._result is not None
        value = read_end(self._result, self.name, self._started)
        if self._result.manual is not None:
            return self._convert_manual(unpack(value))
        if not self._request.is_many:
            outcome = decode_outcome(value)
            failure = outcome.failure()
            if failure is not None and self._on_failure == "raise":
                raise child_error(failure)
            return self._read_outcome(outcome)
        outcomes = self._outcomes or []
        failed = [failure for one in outcomes if (failure := one.failure()) is not None]
        if failed and self._on_failure == "raise":
            problem = child_error(failed[0])
            if len(failed) > 1:
                problem.args = (f"{problem} (and {len(failed) - 1:,} more of {len(outcomes):,} children failed)",)
            raise problem
        return [self._read_outcome(one) for one in outcomes]

    def _read_outcome(self, outcome: ChildOutcome) -> Any:
        """Return the result of a child as a value of its type, or its failure."""
        failure = outcome.failure()
        if failure is not None:
            return failure
        return self._calls_session.convert_result(self._request, outcome.value(), outcome.run)

    def _convert_manual(self, value: Any) -> Any:
        """Return what was supplied by hand as a value of its type; of a call of many, each item."""
        convert, request, run = self._calls_session.convert_result, self._request, self._started_run()
        if request.is_many and isinstance(value, list):
            return [convert(request, one, run) for one in value]
        return convert(request, value, run)

    def suspend(self) -> None:
        self.register()
        assert self._started is not None
        shown: dict[str, Any] = {"wait": self.name, "flow": self._started["flow"]}
        shown |= {"runs": self._started["count"]} if self._request.is_many else {"run": self._started["run"]}
        shown |= timeout_fields(self._timeout_ms, self.due)
        self._session.add_step_event("step.await.call", shown)

    def register(self) -> None:
        # Register it again with each suspension: the store refuses it if the child has ended meanwhile.
        writes = self._journal.writes
        if self._added_to is not writes:
            writes.waits.append(self._new_wait())
            self._added_to = writes
        if ".redrive-" in self._session.job:
            # The call was cancelled when the step failed: the child may have ended, and nobody would notice.
            writes.jobs.append(child_ended_job(self._id, self._started_run(), self._session.job))

    def cancel(self) -> None:
        if self._started is not None and self._result is None:
            self._cancel_children("another call was done first")
        super().cancel()

    def cancel_if_pending(self) -> None:
        if self._result is None:
            self._journal.writes.waits.append(self._new_wait())  # refused if the child has ended
            self.cancel()

    def _launch(self, due: int | None) -> None:
        """Record the call. The wait and what starts the child are in the same commit, whichever comes first."""
        session, id = self._calls_session, self._new_id()
        launch = session.launch_children(self._request, self._call.key, id)
        self._calls.begin(self._call)
        self._started = {
            "at": self._calls.now_ms,
            "due": due,
            "id": id,
            "run": launch.run,
            "flow": launch.flow,
            "count": launch.count,
            "pages": len(launch.jobs),
        }
        self._calls.record(self._call, self._started)
        self._added_to = self._journal.writes
        self._journal.writes.waits.append(self._new_wait())
        self._journal.writes.jobs += launch.jobs

    def _started_run(self) -> str:
        assert self._started is not None
        return str(self._started["run"])

    def _new_wait(self) -> NewWait:
        session, body = self._session, self._new_body()
        assert self._started is not None
        body.name, body.many = self._started["flow"], self._started["count"] if self._request.is_many else None
        body.children, body.pages = self._started["run"], self._started["pages"]
        body.abandon = self._on_timeout == "abandon"
        return NewWait(self._id, session.run, self._journal.scope, CALL, encode(body), self.due, session.job)

    def _cancel_children(self, reason: str) -> None:
        self._journal.writes.jobs.append(cancel_job(self._id, reason))

    async def _load_outcomes(self) -> None:
        """Read how the children ended, and record it in pages: later runs of the handler do not depend on them."""
        assert self._started is not None
        key, count = self._call.key, self._started["count"]
        pages = self._journal.list_memos(f"{RESULTS}{key}.")
        found = [one for name in sorted(pages) for one in _decode_outcomes(pages[name])]
        if len(found) < count:
            found = await self._calls_session.read_outcomes(self._id, self._started["run"], count)
            self._record_outcomes(key, found)
        self._outcomes = found

    def _record_outcomes(self, key: str, outcomes: Sequence[ChildOutcome]) -> None:
        pages: list[list[ChildOutcome]] = [[]]
        size = total = 0
        for one in outcomes:
            length = len(bytes(one.result)) + len(one.error) + 100
            if pages[-1] and size + length > PAGE_BYTES:
                pages.append([])
                size = 0
            pages[-1].append(one)
            size, total = size + length, total + length
        if total > MAX_JOURNAL_BYTES:
            raise self._journal.make_error(
                HistoryLimit,
                f"the results of {key} have {total:,} bytes; a step records at most {MAX_JOURNAL_BYTES:,}. Let the "
                "children return less, such as the key of a file or a row",
            )
        for n, page in enumerate(pages):
            self._journal.add_memo(f"{RESULTS}{key}.{n:05}", page)
        self._journal.is_urgent = True  # after a crash, the handler must not act on other results


def cancel_job(call: str, reason: str) -> NewJob:
    """Build the internal job that cancels the open children of a call."""
    return NewJob(f"cancel.{call}", DELIVERIES, CANCEL_RUN, encode({"call": call, "reason": reason}))


def child_ended_job(call: str, run: str, part: str) -> NewJob:
    """Build the internal job that resolves a call if its children have ended. `part` makes its id unique."""
    return NewJob(f"ended.{part}.{call}", DELIVERIES, CHILD_ENDED, encode({"call": call, "run": run}))


def has_call(waits: Sequence[Any]) -> bool:
    """Return whether a commit registers a call of a child run."""
    return any(isinstance(wait, NewWait) and wait.kind == CALL for wait in waits)


class ChildCalls:
    """Builds the calls of child runs of one attempt."""

    def __init__(self, calls: CallRecorder, session: ChildCallSession) -> None:
        self._calls = calls
        self._session = session

    def call(
        self,
        request: ChildRequest,
        *,
        name: str | None,
        timeout: Duration | None,
        on_failure: OnChildFailure,
        on_timeout: OnCallTimeout,
    ) -> ChildCall[Any]:
        """Build a call of one child run or, if the request has many inputs, of many."""
        _check_choice("on_failure", on_failure, get_args(OnChildFailure))
        _check_choice("on_timeout", on_timeout, get_args(OnCallTimeout))
        timeout_ms = to_ms(timeout) if timeout is not None else None
        flow = self._session.find_flow_name(request.flow)
        calls, default = self._calls, f"{'call_many' if request.is_many else 'call'} {flow}"
        call = calls.next_call(name, CALL) if name is not None else calls.next_call_by_order(default, CALL)
        return ChildCall(calls, self._session, call, request, timeout_ms, on_failure, on_timeout)


def _check_choice(option: str, value: Any, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise BadArgument(f"{option} must be {' or '.join(map(repr, choices))}, got {shorten(value)}")
