"""Decisions: from a run record and a fact to the next record, the events to append and the steps to start.

Pure: no store, no clock, no randomness. User functions (`when`, `map`) are called through `Conditions`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

import msgspec

from ..core.clock import to_iso
from ..core.event_tags import add_tags
from ..core.events import EventBody
from ..core.retry import Backoff
from ..core.tracebacks import describe_error
from ..handlers.subscriptions import MapOptions
from ..handlers.trigger_table import TableStep, TriggerTable
from ..ports.script_files import Deferred
from ..ports.unit import NewJob, StateWrite
from .record_parts import LoadedParts, LoadedWhat, PartLoad, compensations_key, move_parts, results_key
from .run_record import (
    CANCELLED,
    COMPENSATED,
    COMPENSATING,
    COMPLETED,
    FAILED,
    MAX_FAILURES,
    MAX_JOB_IDS,
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
    options: MapOptions | None = None


class Emission(msgspec.Struct):
    """An event that was emitted."""

    kind: str
    data: bytes
    correlation_id: str | None = None
    tags: list[str] = []
    trace: str | None = None  # the `traceparent` of what emitted it


class EndedStep(msgspec.Struct):
    """A step instance whose attempt ended, and its job."""

    step: str
    n: int
    job: str
    attempt: int
    input: bytes
    duration: int


class Route(msgspec.Struct, omit_defaults=True):
    """An event for a step whose `when` or `map` a worker must evaluate."""

    n: int
    step: str
    kind: str
    data: msgspec.Raw
    cause: str
    emitter: str | None = None  # the step that emitted the event


class Decision(msgspec.Struct):
    """The next run record, the events to append, the steps to start, the events to route, and the parts of the record
    that are written and that are to be read."""

    record: RunRecord
    events: list[EventBody] = []
    starts: list[StepStart] = []
    routes: list[Route] = []
    parts: list[StateWrite] = []
    loads: list[PartLoad] = []
    jobs: list[NewJob] = []  # of steps that were started before


class MappedInput(msgspec.Struct, frozen=True):
    """The input that `map` returned, and the options of the job."""

    input: bytes
    options: MapOptions | None = None


class RoutedEvent(msgspec.Struct):
    """What the `when` and `map` of a route returned: no input if the step does not take the event."""

    route: Route
    mapped: MappedInput | None = None
    is_mapped: bool = False
    problem: Exception | None = None


class Conditions(Protocol):
    """The `when` and `map` of subscriptions. Both may raise Deferred."""

    def matches(self, step: str, kind: str, data: bytes) -> bool: ...

    def map_input(self, step: str, kind: str, data: bytes) -> MappedInput | None:
        """Return the mapped input, or None if the step takes the event's data unchanged."""
        ...


class Decider:
    """Decides for one run. Each `on_*` method takes one fact and changes the record passed to the constructor.

    With `keeps_all`, no part of the record is moved out of it."""

    def __init__(
        self,
        run: str,
        record: RunRecord,
        table: TriggerTable,
        conditions: Conditions,
        now: int,
        max_steps: int,
        *,
        keeps_all: bool = False,
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
        self._routes: list[Route] = []
        self._parts: list[StateWrite] = []
        self._loads: list[PartLoad] = []
        self._keeps_all = keeps_all
        self._jobs: list[NewJob] = []
        self._has_listener = False  # whether a step listens to what the ended step emitted

    # Facts

    def on_start(
        self, input: bytes, cause: str, parent: str | None = None, options: MapOptions | None = None
    ) -> Decision:
        """Start the run with its entry step. `parent` is the run or job whose handler started it."""
        entry = self._table.entry
        data: dict[str, Any] = {
            "name": self._record.flow,
            "queue": self._table.steps[entry].queue,
            "input": msgspec.Raw(input),
        }
        if self._table.version is not None:
            data["version"] = self._table.version
        meta: dict[str, Any] = {"tags": self._record.tags} if self._record.tags else {}
        if self._record.attributes:
            meta["attributes"] = self._record.attributes
        if parent is not None:
            meta["parent"] = parent
        if (up := self._record.parent) is not None:
            meta |= {"root": up.root, **({"depth": up.depth} if up.depth else {})}
        self._append_event("flow.started", data, meta=meta or None)
        self._start(entry, input, cause, options=options)
        return self._decision()

    def on_completed(
        self, ended: EndedStep, result: bytes, emitted: list[Emission], timeout_step: str | None = None
    ) -> Decision:
        """Complete a step instance. `timeout_step` is set if its declared wait expired and that step takes over."""
        record = self._record
        record.unmark_waiting(ended.step, ended.n)
        record.count_completed(ended.step)
        self._remember_compensation(ended, result)
        started: list[str] = []
        for emission in emitted:
            self._record_emission(emission, ended.step, ended.job, ended.attempt)
            started += self._route(emission.kind, emission.data, ended.job, ended.step)
        if timeout_step is not None and self._start_timeout_step(timeout_step, ended):
            started.append(timeout_step)
        if record.status == RUNNING:
            step = self._table.steps.get(ended.step)
            each = step is not None and step.mode == "each"
            if not self._has_listener:
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
        """Fail a step instance whose failure is final."""
        self._append_event(
            "step.failed", {**error, "willRetry": False}, ended.step, self._failure_meta(ended, max_attempts)
        )
        self._record.unmark_waiting(ended.step, ended.n)
        counts = self._record.counts_of(ended.step)
        counts.open -= 1
        self._remember_failure(ended.step, ended.n, str(error.get("error", "")), error.get("code"), error.get("name"))
        self._settle()
        return self._decision()

    def on_retry(
        self, ended: EndedStep, error: dict[str, Any], max_attempts: int, due: int, backoff: Backoff | None = None
    ) -> Decision:
        """Record the failure of an attempt that will be retried."""
        self._record.unmark_waiting(ended.step, ended.n)
        at = to_iso(due)
        meta = self._failure_meta(ended, max_attempts)
        if backoff is not None:
            meta["backoff"] = {"type": backoff.type, "delayMs": backoff.delay_ms}
        self._append_event("step.failed", {**error, "willRetry": True, "nextRetryAt": at}, ended.step, meta)
        retry_meta = {"attempt": ended.attempt + 1, "scheduledAt": at, **_instance_meta(ended.n)}
        retry = {"reason": error.get("error", ""), "delayMs": max(due - self._now, 0)}
        self._append_event("step.retry", retry, ended.step, retry_meta)
        return self._decision()

    def on_suspended(self, ended: EndedStep, emitted: list[Emission], has_called: bool = False) -> Decision:
        """Record that a step instance is suspended, what it has emitted so far, and whether it called a run."""
        self._record.has_called = self._record.has_called or has_called
        self._record.mark_waiting(ended.step, ended.n)
        for emission in emitted:
            self._record_emission(emission, ended.step, ended.job, ended.attempt)
            self._route(emission.kind, emission.data, ended.job, ended.step)
        if self._has_listener:
            self._record.mark_followed(ended.step)  # its result is then not a result of the run
        return self._decision()

    def on_resumed(self, step: str, n: int) -> Decision | None:
        """Record that a suspended step instance runs again; None if the record has it so already."""
        return self._decision() if self._record.unmark_waiting(step, n) else None

    def on_event(self, emission: Emission, cause: str) -> Decision:
        """Append an event that came from outside the run's own steps."""
        self._record_emission(emission, None, cause, None)
        self._route(emission.kind, emission.data, cause)
        return self._decision()

    def on_routed(self, routed: RoutedEvent) -> Decision:
        """Start the step of a route, if it takes the event: as if the event had been decided at once."""
        route, record = routed.route, self._record
        record.routing -= 1
        if record.status == RUNNING and not self._cannot_start_again(route.step):
            if routed.problem is not None:
                self._fail_subscription(route.step, route.kind, routed.problem)
            elif routed.mapped is not None:
                if route.emitter is not None:
                    record.mark_followed(route.emitter)
                self._start_or_join(route.step, route.kind, routed.mapped, route.cause, routed.is_mapped)
        self._settle()
        return self._decision()

    def on_loaded(self, loaded: LoadedParts) -> Decision:
        """Continue with parts of the record that a job of the run has read."""
        load, record = loaded.load, self._record
        record.routing -= 1
        if loaded.problem is not None:
            self._fail_load(load, loaded.problem)
        if load.what == "results":
            self._restore_results(loaded)
        elif load.what == "compensations":
            self._restore_compensations(loaded)
        else:
            self._compensate_loaded(loaded)
        self._settle()
        return self._decision()

    def on_job(self, job: NewJob) -> Decision:
        """Add the job of a step instance that was started: its rate key is known now."""
        self._jobs.append(job)
        return self._decision()

    def on_cancel(self, reason: str) -> Decision:
        """Cancel the run. Running attempts are notified; this commit drops the queued ones."""
        for counts in self._record.steps.values():
            counts.open = 0
        self._record.routing = 0
        self._record.status = CANCELLED
        self._record.paused, self._record.paused_by = False, None
        self._record.waiting.clear()
        self._record.pending_joins.clear()
        if self._record.parent is not None:
            self._record.cancel_reason = reason[:500]
        self._append_event("flow.cancelled", {"reason": reason, "duration": self._duration_ms()})
        return self._decision()

    def on_call(self) -> Decision | None:
        """Record that the run calls another one; None if the record has it so already."""
        if self._record.has_called:
            return None
        self._record.has_called = True
        return self._decision()

    def on_pause(self, reason: str, by: str | None = None) -> Decision:
        """Pause the run. Running attempts may end; no other job of it is claimed."""
        self._record.paused = True
        self._record.paused_by = by
        self._append_event("flow.paused", {"reason": reason})
        return self._decision()

    def on_resume(self, reason: str, ready: Collection[str] = ()) -> Decision:
        """Resume the run, with the events that arrived meanwhile. The waits of the instances `ready` were resolved."""
        self._record.paused = False
        self._record.paused_by = None
        self._record.waiting = [instance for instance in self._record.waiting if instance not in ready]
        self._append_event("flow.resumed", {"reason": reason, "status": self._record.status})
        return self._decision()

    def on_redrive(self, step: str, n: int, job: str, *, is_undecided: bool = False) -> Decision:
        """Redrive a dead step: undo the record of its failure and reopen the run.

        The record could not be read when an undecided one failed, and still counts it as open."""
        record = self._record
        if not is_undecided:
            counts = record.counts_of(step)
            counts.failed -= 1
            counts.open += 1
            record.failed -= 1
            record.failures = [f for f in record.failures if (f.step, f.n) != (step, n)]
        reopened = record.status == FAILED
        record.status = RUNNING
        self._append_event("step.redriven", {"jobId": job}, step, {"jobId": job, **_instance_meta(n)})
        if reopened:
            self._append_event("flow.reopened", {"step": step})
        return self._decision()

    # Routing

    def _route(self, kind: str, data: bytes, cause: str, emitter: str | None = None) -> list[str]:
        """Start the steps that listen to an event and return their names."""
        started: list[str] = []
        if self._record.status != RUNNING:
            return started  # a compensating run starts nothing new
        self._compensate_on(kind)
        for name in self._table.listeners(kind):
            try:
                if not self._conditions.matches(name, kind, data):
                    continue
                mapped = self._conditions.map_input(name, kind, data)
            except Deferred:
                self._defer(name, kind, data, cause, emitter)
                continue
            except Exception as problem:
                if not self._cannot_start_again(name):
                    self._fail_subscription(name, kind, problem)
                continue
            self._has_listener = True  # a join counts even while it waits for other events
            if self._start_or_join(name, kind, mapped or MappedInput(data), cause, mapped is not None):
                started.append(name)
        return started

    def _defer(self, name: str, kind: str, data: bytes, cause: str, emitter: str | None) -> None:
        """Let a worker evaluate the conditions of a listener. The run stays open until it has."""
        if not self._cannot_start_again(name):
            self._record.routed += 1
            self._record.routing += 1
            self._routes.append(Route(self._record.routed, name, kind, msgspec.Raw(data), cause, emitter))

    def _start_timeout_step(self, name: str, ended: EndedStep) -> bool:
        """Start the step that takes over, with the input of the step whose wait expired."""
        if self._record.status != RUNNING or name not in self._table.steps or self._cannot_start_again(name):
            return False
        self._has_listener = True
        self._start(name, ended.input, ended.job, True)
        return True

    def _start_or_join(self, name: str, kind: str, mapped: MappedInput, cause: str, is_mapped: bool) -> bool:
        """Start a listener, or keep the event for a join. Return whether the listener started."""
        step, options = self._table.steps[name], mapped.options
        if step.mode == "all":
            return self._join(name, step, kind, mapped, cause)
        if _is_deduplicated(step, options) and self._has_started(name, options):
            return False
        self._start(name, mapped.input, cause, is_mapped, options)
        return True

    def _has_started(self, name: str, options: MapOptions | None) -> bool:
        """Return whether the step was started, or was started with the same `job_id`."""
        if options is not None and options.job_id is not None:
            return options.job_id in self._record.job_ids.get(name, ())
        return self._record.started_of(name) > 0

    def _join(self, name: str, step: TableStep, kind: str, mapped: MappedInput, cause: str) -> bool:
        """Keep an event for a join, and start the step with the last one, whose options apply."""
        if self._cannot_start_again(name):
            return False
        if mapped.options is not None and (mapped.options.job_id is not None or mapped.options.dedupe is not None):
            problem = ValueError("opts.jobId and opts.dedupe do not apply to a step with mode 'all', which starts once")
            self._fail_subscription(name, kind, problem)
            return False
        received = self._record.pending_joins.setdefault(name, {})
        received.setdefault(kind, msgspec.Raw(mapped.input))
        if len(received) < len(step.kinds):
            return False
        del self._record.pending_joins[name]
        self._start(name, encode({k: received[k] for k in step.kinds}), cause, True, mapped.options)
        return True

    def _cannot_start_again(self, name: str) -> bool:
        """Return whether the step runs once and was started. Only the record knows: queues forget removed ids."""
        return self._table.steps[name].mode != "each" and self._record.started_of(name) > 0

    def _start(
        self,
        name: str,
        input: bytes,
        cause: str,
        has_mapped_input: bool = False,
        options: MapOptions | None = None,
    ) -> None:
        counts = self._record.counts_of(name)
        # The limit does not apply to compensation: it always runs to its end.
        is_limited = self._record.status == RUNNING
        if is_limited and self._record.started >= self._max_steps:
            self._exceed_limit(name, f"the run reached its limit of {self._max_steps:,} steps")
            return
        if (
            options is not None
            and options.job_id is not None
            and not self._record.remember_job_id(name, options.job_id)
        ):
            self._exceed_limit(name, f"the run reached its limit of {MAX_JOB_IDS:,} job ids for the step")
            return
        counts.started += 1
        counts.open += 1
        self._starts.append(StepStart(name, counts.started, input, cause, has_mapped_input, options))

    def _exceed_limit(self, name: str, message: str) -> None:
        """Fail the next instance of a step: it would exceed a limit of the run."""
        n = self._record.started_of(name) + 1
        self._remember_failure(name, n, message, "run_limit")
        error = {"error": "run limit", "code": "run_limit", "willRetry": False}
        self._append_event("step.failed", error, name, _instance_meta(n))

    def _fail_subscription(self, name: str, kind: str, problem: Exception) -> None:
        """Fail the step whose `when` or `map` raised. Ignoring the event would lose it silently."""
        message = f"the subscription of {name} to {kind} raised {describe_error(type(problem).__name__, str(problem))}"
        self._remember_failure(name, 0, message, "subscription_failed")
        # Instance 0: the instances that were started did not fail and must not look as if they had.
        meta = {"n": 0} if self._record.started_of(name) else {}
        self._append_event(
            "step.failed", {"error": message, "code": "subscription_failed", "willRetry": False}, name, meta
        )

    # Ending

    def _settle(self) -> None:
        """End the run, or start its next compensation, once no step of it is open."""
        record = self._record
        if record.open or self._starts:
            return
        record.compensations = [one for one in record.compensations if one.compensated_by in self._table.steps]
        if not record.failed:
            if record.moved_results and not record.dropped_results:
                self._load("results")
            else:
                self._close(COMPLETED)
        elif record.compensations:
            self._compensate()
        elif record.moved_compensations is not None:
            self._load("compensations", record.moved_compensations.parts)
        else:
            self._close(
                COMPENSATED if record.status == COMPENSATING and not self._has_failed_compensation() else FAILED
            )

    def _compensate(self) -> None:
        record = self._record
        if record.status == RUNNING:
            record.status = COMPENSATING
            record.pending_joins.clear()
            steps = [one.step for one in reversed(record.compensations)]
            data: dict[str, Any] = {"steps": steps}
            if (moved := record.moved_compensations) is not None:
                steps += reversed(moved.steps)
                if moved.count > len(moved.steps):
                    data["more"] = moved.count - len(moved.steps)
            self._append_event("flow.compensating", data)
        self._start_compensation(record.compensations.pop())

    def _compensate_on(self, kind: str) -> None:
        """Compensate the steps that declare this event in `compensate_on`."""
        if kind not in self._table.compensating_kinds:
            return
        self._record.compensations = self._compensate_declared(kind, self._record.compensations)
        if (moved := self._record.moved_compensations) is not None:
            moved.kinds.append((kind, moved.parts))
            if len(moved.kinds) == 1:
                self._load("kind", moved.parts, kind)

    def _compensate_declared(self, kind: str, compensations: list[Compensation]) -> list[Compensation]:
        """Compensate those whose step declares this event, the newest first. Return the others."""
        steps = self._table.steps
        due = [one for one in compensations if one.step in steps and kind in steps[one.step].compensate_on]
        for compensation in reversed(due):
            self._start_compensation(compensation)
        return [one for one in compensations if one not in due] if due else compensations

    def _start_compensation(self, compensation: Compensation) -> None:
        input = {
            "step": compensation.step,
            "n": compensation.n,
            "input": compensation.input,
            "result": compensation.result,
            "error": self._record.failures[0].error if self._record.failures else None,
        }
        self._start(compensation.compensated_by, encode(input), compensation.step, True)

    # Parts of the record

    def _load(self, what: LoadedWhat, part: int = 0, kind: str = "") -> None:
        """Let a worker read parts of the record. The run stays open until it has."""
        self._record.routed += 1
        self._record.routing += 1
        self._loads.append(PartLoad(self._record.routed, what, part, kind))

    def _fail_load(self, load: PartLoad, problem: str) -> None:
        record, step = self._record, self._table.entry
        record.lost_compensations = record.lost_compensations or load.what != "results"
        if load.what == "results":
            step = next(iter(record.moved_results), step)
        elif record.moved_compensations is not None and record.moved_compensations.steps:
            step = record.moved_compensations.steps[-1]
        record.failed += 1
        if len(record.failures) < MAX_FAILURES:
            record.failures.append(FailedStep(step, 0, problem[:500], "unreadable_record", "UnreadableRecord"))

    def _restore_results(self, loaded: LoadedParts) -> None:
        moved, self._record.moved_results = self._record.moved_results, {}
        for step, one in moved.items():
            results = loaded.results.get(step, {}) | self._record.results.get(step, {})
            self._record.results[step] = results
            self._parts += [StateWrite(results_key(self._run, step, n), None) for n in range(1, one.parts + 1)]

    def _restore_compensations(self, loaded: LoadedParts) -> None:
        """Take back the last part."""
        record, moved = self._record, self._record.moved_compensations
        assert moved is not None
        record.compensations = loaded.compensations + record.compensations
        self._parts.append(StateWrite(compensations_key(self._run, loaded.load.part), None))
        moved.parts -= 1
        moved.count -= len(loaded.compensations)
        moved.steps = moved.steps[: -len(loaded.compensations)] if loaded.compensations else moved.steps
        if not moved.parts:
            record.moved_compensations = None

    def _compensate_loaded(self, loaded: LoadedParts) -> None:
        """Compensate what a part has for an event's kind, and look into the part before it."""
        load, moved = loaded.load, self._record.moved_compensations
        assert moved is not None
        rest = self._compensate_declared(load.kind, loaded.compensations)
        if len(rest) < len(loaded.compensations):
            self._parts.append(StateWrite(compensations_key(self._run, load.part), encode(rest)))
            moved.count -= len(loaded.compensations) - len(rest)
            steps = self._table.steps
            moved.steps = [one for one in moved.steps if one not in steps or load.kind not in steps[one].compensate_on]
        moved.kinds[:1] = [(load.kind, load.part - 1)] if load.part > 1 else []
        if moved.kinds:
            kind, part = moved.kinds[0]
            self._load("kind", part, kind)

    def _has_failed_compensation(self) -> bool:
        compensating = {step.compensation for step in self._table.steps.values()}
        failed = (counts.failed for name, counts in self._record.steps.items() if name in compensating)
        return self._record.lost_compensations or any(failed)

    def _duration_ms(self) -> int:
        return max(self._now - self._record.started_ms, 0)  # the store's clock may go back

    def _close(self, status: str) -> None:
        record = self._record
        record.status, record.paused, record.paused_by = status, False, None
        duration = self._duration_ms()
        if status == COMPLETED:
            result = record.result()
            data: dict[str, Any] = {"duration": duration}
            if result is not None:
                data["result"] = msgspec.Raw(result)
            if record.pending_joins:
                data["unmet"] = {step: self._missing_kinds(step) for step in record.pending_joins}
            self._append_event("flow.completed", data)
            return
        # The record keeps at most MAX_FAILURES failures, and a redrive removes its own.
        first = record.failures[0] if record.failures else FailedStep("", 0, f"{record.failed} steps failed")
        kind = "flow.compensated" if status == COMPENSATED else "flow.failed"
        failed = [msgspec.to_builtins(failure) for failure in record.failures]
        self._append_event(kind, {"error": first.error, "step": first.step, "failed": failed, "duration": duration})

    def _missing_kinds(self, step: str) -> list[str]:
        """Return the kinds a join was still waiting for when no step was left that could emit them."""
        return [kind for kind in self._table.steps[step].kinds if kind not in self._record.pending_joins[step]]

    # Recording

    def _remember_compensation(self, ended: EndedStep, result: bytes) -> None:
        step = self._table.steps.get(ended.step)
        if step is not None and step.compensation is not None and self._record.status == RUNNING:
            self._record.compensations.append(
                Compensation(ended.step, ended.n, step.compensation, msgspec.Raw(ended.input), msgspec.Raw(result))
            )

    def _remember_failure(self, step: str, n: int, error: str, code: str | None, name: str | None = None) -> None:
        self._record.counts_of(step).failed += 1
        self._record.failed += 1
        if len(self._record.failures) < MAX_FAILURES:
            self._record.failures.append(FailedStep(step, n, error[:500], code, name))

    def _record_emission(self, emission: Emission, step: str | None, cause: str, attempt: int | None) -> None:
        meta: dict[str, Any] = {"causationId": cause}
        if attempt is not None:
            meta["attempt"] = attempt
        if emission.trace is not None:
            meta["traceparent"] = emission.trace
        corr = emission.correlation_id if emission.correlation_id != self._run else None
        raw, tagged = msgspec.Raw(emission.data), add_tags(meta, emission.tags)
        self._events.append(EventBody(emission.kind, None, None, step, None, corr or self._shown, raw, tagged))

    def _attempt_meta(self, ended: EndedStep) -> dict[str, Any]:
        return {"attempt": ended.attempt, "duration": ended.duration, **_instance_meta(ended.n)}

    def _failure_meta(self, ended: EndedStep, max_attempts: int) -> dict[str, Any]:
        return {**self._attempt_meta(ended), "maxAttempts": max_attempts}

    def _append_event(self, kind: str, data: Any, step: str | None = None, meta: dict[str, Any] | None = None) -> None:
        self._events.append(EventBody(kind, None, None, step, None, self._shown, msgspec.Raw(encode(data)), meta))

    def _decision(self) -> Decision:
        if self._record.status == RUNNING and not self._keeps_all:
            self._parts += move_parts(self._run, self._record)
        return Decision(self._record, self._events, self._starts, self._routes, self._parts, self._loads, self._jobs)


def _is_deduplicated(step: TableStep, options: MapOptions | None) -> bool:
    """Return whether a step starts once: in its run, or for each `job_id`."""
    if options is None:
        return step.mode == "once"
    if options.dedupe is not None:
        return options.dedupe
    return options.job_id is not None or step.mode == "once"


def _instance_meta(n: int) -> dict[str, int]:
    return {"n": n} if n > 1 else {}
