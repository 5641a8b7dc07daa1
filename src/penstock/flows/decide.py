"""Decisions: from a run record and a fact to the next record, the events to append and the steps to start.

Pure: no store, no clock, no randomness. The caller's functions (`when`, `map`) come in through `Routing`.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from ..core.clock import to_iso
from ..core.events import EventBody
from ..handlers.trigger_table import TableStep, TriggerTable
from .run_record import (
    CANCELLED,
    COMPENSATED,
    COMPENSATING,
    COMPLETED,
    FAILED,
    MAX_FAILURES,
    RUNNING,
    FailedStep,
    RunRecord,
    Undo,
    encode,
)


class Start(msgspec.Struct):
    """A step instance to enqueue."""

    step: str
    n: int
    input: bytes
    cause: str
    made_here: bool = False  # the input is not the data of the event that caused it


class Emission(msgspec.Struct):
    """An event that was emitted, with the body to record it by."""

    kind: str
    data: bytes
    correlation_id: str | None = None


class Ended(msgspec.Struct):
    """A step instance that ended for good, and by which job."""

    step: str
    n: int
    job: str
    attempt: int
    input: bytes
    duration: int


class Decision(msgspec.Struct):
    """What to write."""

    record: RunRecord
    events: list[EventBody] = []
    starts: list[Start] = []


class Routing(Protocol):
    """The caller's own functions of a subscription."""

    def wants(self, step: str, kind: str, data: bytes) -> bool: ...

    def input(self, step: str, kind: str, data: bytes) -> bytes | None:
        """The mapped input, or None for the event's data as it is."""
        ...


class Decider:
    """Decides for one run. Each method takes a fact; the record given at the start is its own to change."""

    def __init__(
        self, run: str, record: RunRecord, table: TriggerTable, routing: Routing, now: int, max_steps: int
    ) -> None:
        self._run = run
        self._record = record
        self._shown = record.shown_correlation(run)
        self._table = table
        self._routing = routing
        self._now = now
        self._max_steps = max_steps
        self._events: list[EventBody] = []
        self._starts: list[Start] = []
        self._heard = False  # whether a listener wanted what the ended step emitted

    # Facts

    def begin(self, input: bytes, cause: str) -> Decision:
        """The run is new."""
        entry = self._table.entry
        data: dict[str, Any] = {
            "name": self._record.flow,
            "queue": self._table.steps[entry].queue,
            "input": msgspec.Raw(input),
        }
        if self._table.version is not None:
            data["version"] = self._table.version
        self._say("flow.started", data, meta={"tags": self._record.tags} if self._record.tags else None)
        self._start(entry, input, cause)
        return self._decision()

    def completed(self, ended: Ended, result: bytes, emitted: list[Emission], divert: str | None = None) -> Decision:
        """A step instance returned, or waited in vain and `divert` is to take over."""
        record = self._record
        tally = record.tally(ended.step)
        tally.open -= 1
        tally.completed += 1
        self._note_undo(ended, result)
        started: list[str] = []
        for emission in emitted:
            self._record_emission(emission, ended.step, ended.job, ended.attempt)
            started += self._route(emission.kind, emission.data, ended.job)
        if divert is not None and self._divert(divert, ended):
            started.append(divert)
        if record.status == RUNNING:
            step = self._table.steps.get(ended.step)
            each = step is not None and step.mode == "each"
            if not self._heard:
                record.keep_result(ended.step, ended.n, result, each)
            elif each:
                record.follow(ended.step)
        meta = self._attempt_meta(ended)
        if started:
            meta["starts"] = started
        self._say("step.completed", {"result": msgspec.Raw(result)}, ended.step, meta)
        self._settle()
        return self._decision()

    def failed(self, ended: Ended, error: dict[str, Any], max_attempts: int) -> Decision:
        """A step instance failed for good."""
        self._say("step.failed", {**error, "willRetry": False}, ended.step, self._failure_meta(ended, max_attempts))
        tally = self._record.tally(ended.step)
        tally.open -= 1
        self._note_failure(ended.step, ended.n, str(error.get("error", "")), error.get("code"))
        self._settle()
        return self._decision()

    def retrying(self, ended: Ended, error: dict[str, Any], max_attempts: int, due: int) -> Decision:
        """A step instance failed and will be tried again."""
        at = to_iso(due)
        meta = self._failure_meta(ended, max_attempts)
        self._say("step.failed", {**error, "willRetry": True, "nextRetryAt": at}, ended.step, meta)
        again = {"attempt": ended.attempt + 1, "scheduledAt": at, **_n(ended.n)}
        self._say(
            "step.retry", {"reason": error.get("error", ""), "delayMs": max(due - self._now, 0)}, ended.step, again
        )
        return self._decision()

    def suspended(self, ended: Ended, emitted: list[Emission]) -> Decision:
        """A step instance waits; what it has emitted so far counts."""
        for emission in emitted:
            self._record_emission(emission, ended.step, ended.job, ended.attempt)
            self._route(emission.kind, emission.data, ended.job)
        if self._heard:
            self._record.follow(ended.step)  # so what it gives in the end is not what the run gives
        return self._decision()

    def emitted(self, emission: Emission, cause: str) -> Decision:
        """An event came from outside the run's own steps."""
        self._record_emission(emission, None, cause, None)
        self._route(emission.kind, emission.data, cause)
        return self._decision()

    def cancelled(self, reason: str) -> Decision:
        """Someone stopped the run. What is running is told; what is queued is dropped with this very write."""
        for tally in self._record.steps.values():
            tally.open = 0
        self._record.status = CANCELLED
        self._record.paused = False
        self._record.arrived.clear()
        self._say("flow.cancelled", {"reason": reason, "duration": self._now - self._record.started_ms})
        return self._decision()

    def paused(self, reason: str) -> Decision:
        """Someone halted the run. What is running may end; nothing more of it is handed out."""
        self._record.paused = True
        self._say("flow.paused", {"reason": reason})
        return self._decision()

    def resumed(self, reason: str) -> Decision:
        """The run goes on, with whatever has come meanwhile."""
        self._record.paused = False
        self._say("flow.resumed", {"reason": reason, "status": self._record.status})
        return self._decision()

    def redriven(self, step: str, n: int, job: str) -> Decision:
        """A dead letter goes back to work: the failure is taken back and the run is open again."""
        record = self._record
        tally = record.tally(step)
        tally.failed -= 1
        tally.open += 1
        record.failed -= 1
        record.failures = [f for f in record.failures if (f.step, f.n) != (step, n)]
        reopened = record.status == FAILED
        record.status = RUNNING
        self._say("step.redriven", {"jobId": job}, step, {"jobId": job, **_n(n)})
        if reopened:
            self._say("flow.reopened", {"step": step})
        return self._decision()

    # Routing

    def _route(self, kind: str, data: bytes, cause: str) -> list[str]:
        """Starts what listens to an event; gives the names of the steps started."""
        started: list[str] = []
        if self._record.status != RUNNING:
            return started  # a compensating run starts nothing new
        self._undo_on(kind)
        for name in self._table.listeners(kind):
            try:
                if not self._routing.wants(name, kind, data):
                    continue
                mapped = self._routing.input(name, kind, data)
            except Exception as problem:
                if not self._spent(name):
                    self._broken_subscription(name, kind, problem)
                continue
            self._heard = True  # also by a join still waiting: it follows, whoever comes last
            if self._arrive(
                name, self._table.steps[name], kind, data if mapped is None else mapped, cause, mapped is not None
            ):
                started.append(name)
        return started

    def _divert(self, name: str, ended: Ended) -> bool:
        """Starts the step that takes over, on the input of the one that waited in vain."""
        if self._record.status != RUNNING or name not in self._table.steps or self._spent(name):
            return False
        self._heard = True
        self._start(name, ended.input, ended.job, True)
        return True

    def _arrive(self, name: str, step: TableStep, kind: str, data: bytes, cause: str, mapped: bool) -> bool:
        if step.mode == "each":
            self._start(name, data, cause, mapped)
            return True
        if self._spent(name):
            return False
        if step.mode == "once":
            self._start(name, data, cause, mapped)
            return True
        waiting = self._record.arrived.setdefault(name, {})
        waiting.setdefault(kind, msgspec.Raw(data))
        if len(waiting) < len(step.kinds):
            return False
        del self._record.arrived[name]
        self._start(name, encode({k: waiting[k] for k in step.kinds}), cause, True)
        return True

    def _spent(self, name: str) -> bool:
        """Whether no event can start this step any more: the record says so, a queue forgets removed ids."""
        return self._table.steps[name].mode != "each" and self._record.tally(name).started > 0

    def _start(self, name: str, input: bytes, cause: str, made_here: bool = False) -> None:
        tally = self._record.tally(name)
        # What is being undone is undone to the end, however long the run was.
        limited = self._record.status == RUNNING
        if limited and sum(t.started for t in self._record.steps.values()) >= self._max_steps:
            n = tally.started + 1
            self._note_failure(name, n, f"the run has started {self._max_steps:,} steps, its limit", "run_limit")
            self._say("step.failed", {"error": "run limit", "code": "run_limit", "willRetry": False}, name, _n(n))
            return
        tally.started += 1
        tally.open += 1
        self._starts.append(Start(name, tally.started, input, cause, made_here))

    def _broken_subscription(self, name: str, kind: str, problem: Exception) -> None:
        """A lost trigger would be silent: the step it should have started fails instead, and says why."""
        message = f"the subscription of {name} to {kind} raised {type(problem).__name__}: {problem}"
        self._note_failure(name, 0, message, "subscription_failed")
        # No instance of its own failed: those that were started are not to look as if they had.
        meta = {"n": 0} if self._record.tally(name).started else {}
        self._say("step.failed", {"error": message, "code": "subscription_failed", "willRetry": False}, name, meta)

    # Ending

    def _settle(self) -> None:
        """Ends the run, or takes its compensation one step further, once nothing of it is open."""
        record = self._record
        if record.open or self._starts:
            return
        record.undo = [undo for undo in record.undo if undo.by in self._table.steps]
        if not record.failed:
            self._close(COMPLETED)
        elif record.undo:
            self._compensate()
        else:
            self._close(COMPENSATED if record.status == COMPENSATING and not self._undo_failed() else FAILED)

    def _compensate(self) -> None:
        record = self._record
        if record.status == RUNNING:
            record.status = COMPENSATING
            record.arrived.clear()
            self._say("flow.compensating", {"steps": [undo.step for undo in reversed(record.undo)]})
        undo = record.undo.pop()
        self._start(undo.by, self._undo_input(undo), undo.step, True)

    def _undo_on(self, kind: str) -> None:
        """Compensates what asked to be compensated when this event comes."""
        for undo in reversed(self._record.undo[:]):
            step = self._table.steps.get(undo.step)
            if step is not None and kind in step.compensate_on:
                self._record.undo.remove(undo)
                self._start(undo.by, self._undo_input(undo), undo.step, True)

    def _undo_input(self, undo: Undo) -> bytes:
        first = self._record.failures[0].error if self._record.failures else None
        return encode({"step": undo.step, "n": undo.n, "input": undo.input, "result": undo.result, "error": first})

    def _undo_failed(self) -> bool:
        undoers = {step.compensation for step in self._table.steps.values()}
        return any(tally.failed for name, tally in self._record.steps.items() if name in undoers)

    def _close(self, status: str) -> None:
        record = self._record
        record.status, record.paused = status, False
        duration = self._now - record.started_ms
        if status == COMPLETED:
            result = record.result()
            data: dict[str, Any] = {"duration": duration}
            if result is not None:
                data["result"] = msgspec.Raw(result)
            if record.arrived:
                data["unmet"] = {step: self._missing(step) for step in record.arrived}
            self._say("flow.completed", data)
            return
        # Only so many failures are kept, and redriving takes its own away.
        first = record.failures[0] if record.failures else FailedStep("", 0, f"{record.failed} steps failed")
        kind = "flow.compensated" if status == COMPENSATED else "flow.failed"
        failed = [msgspec.to_builtins(failure) for failure in record.failures]
        self._say(kind, {"error": first.error, "step": first.step, "failed": failed, "duration": duration})

    def _missing(self, step: str) -> list[str]:
        """The kinds a join was still waiting for when nothing was left that could emit them."""
        return [kind for kind in self._table.steps[step].kinds if kind not in self._record.arrived[step]]

    # Notes

    def _note_undo(self, ended: Ended, result: bytes) -> None:
        step = self._table.steps.get(ended.step)
        if step is not None and step.compensation is not None and self._record.status == RUNNING:
            self._record.undo.append(
                Undo(ended.step, ended.n, step.compensation, msgspec.Raw(ended.input), msgspec.Raw(result))
            )

    def _note_failure(self, step: str, n: int, error: str, code: str | None) -> None:
        self._record.tally(step).failed += 1
        self._record.failed += 1
        if len(self._record.failures) < MAX_FAILURES:
            self._record.failures.append(FailedStep(step, n, error[:500], code))

    def _record_emission(self, emission: Emission, step: str | None, cause: str, attempt: int | None) -> None:
        meta: dict[str, Any] = {"causationId": cause}
        if attempt is not None:
            meta["attempt"] = attempt
        corr = emission.correlation_id if emission.correlation_id != self._run else None
        raw = msgspec.Raw(emission.data)
        self._events.append(EventBody(emission.kind, None, None, step, None, corr or self._shown, raw, meta))

    def _attempt_meta(self, ended: Ended) -> dict[str, Any]:
        return {"attempt": ended.attempt, "duration": ended.duration, **_n(ended.n)}

    def _failure_meta(self, ended: Ended, max_attempts: int) -> dict[str, Any]:
        return {**self._attempt_meta(ended), "maxAttempts": max_attempts}

    def _say(self, kind: str, data: Any, step: str | None = None, meta: dict[str, Any] | None = None) -> None:
        self._events.append(EventBody(kind, None, None, step, None, self._shown, msgspec.Raw(encode(data)), meta))

    def _decision(self) -> Decision:
        return Decision(self._record, self._events, self._starts)


def _n(n: int) -> dict[str, int]:
    return {"n": n} if n > 1 else {}
