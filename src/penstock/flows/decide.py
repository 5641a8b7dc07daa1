"""Decisions: from a run record and a fact to the next record, the events to append and the steps to start.

Pure: no store, no clock, no randomness. The caller's functions (`when`, `map`) come in through `Conditions`.
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
    Compensation,
    FailedStep,
    RunRecord,
    encode,
)


class StepStart(msgspec.Struct):
    """A step instance to enqueue."""

    step: str
    n: int
    input: bytes
    cause: str
    has_mapped_input: bool = False  # the input is not the data of the event that caused it


class Emission(msgspec.Struct):
    """An event that was emitted, with the body to record it by."""

    kind: str
    data: bytes
    correlation_id: str | None = None


class EndedStep(msgspec.Struct):
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
    starts: list[StepStart] = []


class Conditions(Protocol):
    """The caller's own functions of a subscription."""

    def matches(self, step: str, kind: str, data: bytes) -> bool: ...

    def map_input(self, step: str, kind: str, data: bytes) -> bytes | None:
        """The mapped input, or None for the event's data as it is."""
        ...


class Decider:
    """Decides for one run. Each method takes a fact; the record given at the start is its own to change."""

    def __init__(
        self, run: str, record: RunRecord, table: TriggerTable, conditions: Conditions, now: int, max_steps: int
    ) -> None:
        self._run = run
        self._record = record
        self._shown = record.event_correlation(run)
        self._table = table
        self._conditions = conditions
        self._now = now
        self._max_steps = max_steps
        self._events: list[EventBody] = []
        self._starts: list[StepStart] = []
        self._heard = False  # whether a listener wanted what the ended step emitted

    # Facts

    def on_start(self, input: bytes, cause: str) -> Decision:
        """The run is new."""
        entry = self._table.entry
        data: dict[str, Any] = {
            "name": self._record.flow,
            "queue": self._table.steps[entry].queue,
            "input": msgspec.Raw(input),
        }
        if self._table.version is not None:
            data["version"] = self._table.version
        self._append_event("flow.started", data, meta={"tags": self._record.tags} if self._record.tags else None)
        self._start(entry, input, cause)
        return self._decision()

    def on_completed(
        self, ended: EndedStep, result: bytes, emitted: list[Emission], divert: str | None = None
    ) -> Decision:
        """A step instance returned, or waited in vain and `divert` is to take over."""
        record = self._record
        counts = record.counts_of(ended.step)
        counts.open -= 1
        counts.completed += 1
        self._remember_compensation(ended, result)
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
                record.mark_followed(ended.step)
        meta = self._attempt_meta(ended)
        if started:
            meta["starts"] = started
        self._append_event("step.completed", {"result": msgspec.Raw(result)}, ended.step, meta)
        self._settle()
        return self._decision()

    def on_failed(self, ended: EndedStep, error: dict[str, Any], max_attempts: int) -> Decision:
        """A step instance failed for good."""
        self._append_event(
            "step.failed", {**error, "willRetry": False}, ended.step, self._failure_meta(ended, max_attempts)
        )
        counts = self._record.counts_of(ended.step)
        counts.open -= 1
        self._remember_failure(ended.step, ended.n, str(error.get("error", "")), error.get("code"))
        self._settle()
        return self._decision()

    def on_retry(self, ended: EndedStep, error: dict[str, Any], max_attempts: int, due: int) -> Decision:
        """A step instance failed and will be tried again."""
        at = to_iso(due)
        meta = self._failure_meta(ended, max_attempts)
        self._append_event("step.failed", {**error, "willRetry": True, "nextRetryAt": at}, ended.step, meta)
        again = {"attempt": ended.attempt + 1, "scheduledAt": at, **_n(ended.n)}
        self._append_event(
            "step.retry", {"reason": error.get("error", ""), "delayMs": max(due - self._now, 0)}, ended.step, again
        )
        return self._decision()

    def on_suspended(self, ended: EndedStep, emitted: list[Emission]) -> Decision:
        """A step instance waits; what it has emitted so far counts."""
        for emission in emitted:
            self._record_emission(emission, ended.step, ended.job, ended.attempt)
            self._route(emission.kind, emission.data, ended.job)
        if self._heard:
            self._record.mark_followed(ended.step)  # so what it gives in the end is not what the run gives
        return self._decision()

    def on_event(self, emission: Emission, cause: str) -> Decision:
        """An event came from outside the run's own steps."""
        self._record_emission(emission, None, cause, None)
        self._route(emission.kind, emission.data, cause)
        return self._decision()

    def on_cancel(self, reason: str) -> Decision:
        """Someone stopped the run. What is running is told; what is queued is dropped with this very write."""
        for counts in self._record.steps.values():
            counts.open = 0
        self._record.status = CANCELLED
        self._record.paused = False
        self._record.arrived.clear()
        self._append_event("flow.cancelled", {"reason": reason, "duration": self._now - self._record.started_ms})
        return self._decision()

    def on_pause(self, reason: str) -> Decision:
        """Someone halted the run. What is running may end; nothing more of it is handed out."""
        self._record.paused = True
        self._append_event("flow.paused", {"reason": reason})
        return self._decision()

    def on_resume(self, reason: str) -> Decision:
        """The run goes on, with whatever has come meanwhile."""
        self._record.paused = False
        self._append_event("flow.resumed", {"reason": reason, "status": self._record.status})
        return self._decision()

    def on_redrive(self, step: str, n: int, job: str) -> Decision:
        """A dead letter goes back to work: the failure is taken back and the run is open again."""
        record = self._record
        counts = record.counts_of(step)
        counts.failed -= 1
        counts.open += 1
        record.failed -= 1
        record.failures = [f for f in record.failures if (f.step, f.n) != (step, n)]
        reopened = record.status == FAILED
        record.status = RUNNING
        self._append_event("step.redriven", {"jobId": job}, step, {"jobId": job, **_n(n)})
        if reopened:
            self._append_event("flow.reopened", {"step": step})
        return self._decision()

    # Routing

    def _route(self, kind: str, data: bytes, cause: str) -> list[str]:
        """Starts what listens to an event; gives the names of the steps started."""
        started: list[str] = []
        if self._record.status != RUNNING:
            return started  # a compensating run starts nothing new
        self._compensate_on(kind)
        for name in self._table.listeners(kind):
            try:
                if not self._conditions.matches(name, kind, data):
                    continue
                mapped = self._conditions.map_input(name, kind, data)
            except Exception as problem:
                if not self._cannot_start_again(name):
                    self._broken_subscription(name, kind, problem)
                continue
            self._heard = True  # also by a join still waiting: it follows, whoever comes last
            if self._join(
                name, self._table.steps[name], kind, data if mapped is None else mapped, cause, mapped is not None
            ):
                started.append(name)
        return started

    def _divert(self, name: str, ended: EndedStep) -> bool:
        """Starts the step that takes over, on the input of the one that waited in vain."""
        if self._record.status != RUNNING or name not in self._table.steps or self._cannot_start_again(name):
            return False
        self._heard = True
        self._start(name, ended.input, ended.job, True)
        return True

    def _join(self, name: str, step: TableStep, kind: str, data: bytes, cause: str, mapped: bool) -> bool:
        if step.mode == "each":
            self._start(name, data, cause, mapped)
            return True
        if self._cannot_start_again(name):
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

    def _cannot_start_again(self, name: str) -> bool:
        """Whether no event can start this step any more: the record says so, a queue forgets removed ids."""
        return self._table.steps[name].mode != "each" and self._record.counts_of(name).started > 0

    def _start(self, name: str, input: bytes, cause: str, has_mapped_input: bool = False) -> None:
        counts = self._record.counts_of(name)
        # What is being undone is undone to the end, however long the run was.
        limited = self._record.status == RUNNING
        if limited and sum(t.started for t in self._record.steps.values()) >= self._max_steps:
            n = counts.started + 1
            self._remember_failure(name, n, f"the run has started {self._max_steps:,} steps, its limit", "run_limit")
            self._append_event(
                "step.failed", {"error": "run limit", "code": "run_limit", "willRetry": False}, name, _n(n)
            )
            return
        counts.started += 1
        counts.open += 1
        self._starts.append(StepStart(name, counts.started, input, cause, has_mapped_input))

    def _broken_subscription(self, name: str, kind: str, problem: Exception) -> None:
        """A lost trigger would be silent: the step it should have started fails instead, and says why."""
        message = f"the subscription of {name} to {kind} raised {type(problem).__name__}: {problem}"
        self._remember_failure(name, 0, message, "subscription_failed")
        # No instance of its own failed: those that were started are not to look as if they had.
        meta = {"n": 0} if self._record.counts_of(name).started else {}
        self._append_event(
            "step.failed", {"error": message, "code": "subscription_failed", "willRetry": False}, name, meta
        )

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
            self._close(
                COMPENSATED if record.status == COMPENSATING and not self._has_failed_compensation() else FAILED
            )

    def _compensate(self) -> None:
        record = self._record
        if record.status == RUNNING:
            record.status = COMPENSATING
            record.arrived.clear()
            self._append_event("flow.compensating", {"steps": [undo.step for undo in reversed(record.undo)]})
        undo = record.undo.pop()
        self._start(undo.by, self._compensation_input(undo), undo.step, True)

    def _compensate_on(self, kind: str) -> None:
        """Compensates what asked to be compensated when this event comes."""
        for undo in reversed(self._record.undo[:]):
            step = self._table.steps.get(undo.step)
            if step is not None and kind in step.compensate_on:
                self._record.undo.remove(undo)
                self._start(undo.by, self._compensation_input(undo), undo.step, True)

    def _compensation_input(self, undo: Compensation) -> bytes:
        first = self._record.failures[0].error if self._record.failures else None
        return encode({"step": undo.step, "n": undo.n, "input": undo.input, "result": undo.result, "error": first})

    def _has_failed_compensation(self) -> bool:
        undoers = {step.compensation for step in self._table.steps.values()}
        return any(counts.failed for name, counts in self._record.steps.items() if name in undoers)

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
            self._append_event("flow.completed", data)
            return
        # Only so many failures are kept, and redriving takes its own away.
        first = record.failures[0] if record.failures else FailedStep("", 0, f"{record.failed} steps failed")
        kind = "flow.compensated" if status == COMPENSATED else "flow.failed"
        failed = [msgspec.to_builtins(failure) for failure in record.failures]
        self._append_event(kind, {"error": first.error, "step": first.step, "failed": failed, "duration": duration})

    def _missing(self, step: str) -> list[str]:
        """The kinds a join was still waiting for when nothing was left that could emit them."""
        return [kind for kind in self._table.steps[step].kinds if kind not in self._record.arrived[step]]

    # Notes

    def _remember_compensation(self, ended: EndedStep, result: bytes) -> None:
        step = self._table.steps.get(ended.step)
        if step is not None and step.compensation is not None and self._record.status == RUNNING:
            self._record.undo.append(
                Compensation(ended.step, ended.n, step.compensation, msgspec.Raw(ended.input), msgspec.Raw(result))
            )

    def _remember_failure(self, step: str, n: int, error: str, code: str | None) -> None:
        self._record.counts_of(step).failed += 1
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

    def _attempt_meta(self, ended: EndedStep) -> dict[str, Any]:
        return {"attempt": ended.attempt, "duration": ended.duration, **_n(ended.n)}

    def _failure_meta(self, ended: EndedStep, max_attempts: int) -> dict[str, Any]:
        return {**self._attempt_meta(ended), "maxAttempts": max_attempts}

    def _append_event(self, kind: str, data: Any, step: str | None = None, meta: dict[str, Any] | None = None) -> None:
        self._events.append(EventBody(kind, None, None, step, None, self._shown, msgspec.Raw(encode(data)), meta))

    def _decision(self) -> Decision:
        return Decision(self._record, self._events, self._starts)


def _n(n: int) -> dict[str, int]:
    return {"n": n} if n > 1 else {}
