"""The rules of one run: it starts and ends once, its steps end once, and every start has a cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ...core.events import Event
from .attempts import ATTEMPT_KINDS, Attempts, check_stream
from .records import RunHistory, Trigger, Violation, instance_of, is_final, is_user_kind, meta_of
from .wait_rules import WAIT_STARTED_KINDS, check_waits

TERMINAL = ("flow.completed", "flow.failed", "flow.cancelled", "flow.compensated")


def check_run(
    run: RunHistory,
    triggers: Mapping[str, Trigger] | None = None,
    *,
    is_finished: bool = True,
    is_undisturbed: bool = False,
) -> list[Violation]:
    """Check one run."""
    found = [*check_stream(run.id, run.events), *_check_ends(run, is_finished)]
    attempts = Attempts(run.id, is_undisturbed)
    for event in run.events:
        if event.kind == "step.started":
            found += attempts.check_start(event)
        elif event.kind in ATTEMPT_KINDS or is_user_kind(event.kind):
            found += attempts.check_record(event)
        if event.kind == "step.completed" or (
            event.kind == "step.failed" and is_final(event) and meta_of(event, "attempt")
        ):
            found += attempts.check_end(event)
    found += _check_instances(run)
    found += _check_causes(run)
    found += check_waits(run, is_undisturbed=is_undisturbed)
    if triggers is not None:
        found += _check_triggers(run, triggers)
    return found


def _check_ends(run: RunHistory, is_finished: bool) -> Iterator[Violation]:
    """Check that a run starts once, ends once and records nothing afterwards. Only a redrive reopens a failed run."""
    events = run.events
    if not events or events[0].kind != "flow.started" or events[0].seq != 1:
        yield Violation("terminal", run.id, "its stream does not start with flow.started")
    ended: Event | None = None
    for position, event in enumerate(events):
        if event.kind == "flow.started" and position:
            yield Violation("terminal", run.id, f"{event.id}: a second flow.started")
        if ended is not None:
            after = [e.kind for e in events[position : position + 2]]
            if ended.kind == "flow.failed" and after == ["step.redriven", "flow.reopened"]:
                ended = None
            else:
                yield Violation("terminal", run.id, f"{event.id} {event.kind} comes after {ended.kind} ({ended.id})")
        if event.kind in TERMINAL:
            ended = event
    status = ended.kind.removeprefix("flow.") if ended is not None else None
    if run.closed != (ended is not None) or (status is not None and run.status != status):
        yield Violation("terminal", run.id, f"its row is {run.status}, its stream {status or 'has not ended'}")
    if is_finished and not run.closed:
        yield Violation(
            "stuck", run.id, f"is still {run.status}; its last event is {events[-1].kind if events else 'none'}"
        )


def _check_instances(run: RunHistory) -> Iterator[Violation]:
    """Check that each step instance completes at most once, and that a completed or failed run leaves none running."""
    started: set[tuple[str, int]] = set()
    completed: Counter[tuple[str, int]] = Counter()
    ended: set[tuple[str, int]] = set()
    for event in run.events:
        instance = instance_of(event)
        match event.kind:
            case "step.started":
                started.add(instance)
            case "step.completed":
                completed[instance] += 1
                ended.add(instance)
            case "step.failed" if is_final(event):
                ended.add(instance)
            case "step.redriven":
                ended.discard(instance)
    for (step, n), times in completed.items():
        if times > 1:
            yield Violation("completion", run.id, f"{step}#{n} completed {times} times")
    if run.closed and run.status != "cancelled":
        for step, n in sorted(started - ended):
            yield Violation("completion", run.id, f"the run is {run.status}, but {step}#{n} never ended")
    if run.status == "completed":
        for step, n in sorted(started - completed.keys()):
            yield Violation("completion", run.id, f"the run is completed, but {step}#{n} is not")


def _check_causes(run: RunHistory) -> Iterator[Violation]:
    """Check that a completed step started exactly the steps that it recorded as its starts."""
    recorded: Counter[tuple[str, str]] = Counter()
    completed: set[str] = set()
    suspended: set[str] = set()  # a step that waited does not record what it started before the wait
    jobs: dict[tuple[str, int], str] = {}
    for event in run.events:
        job = jobs.get(instance_of(event), "")
        if event.kind == "step.started":
            jobs[instance_of(event)] = meta_of(event, "jobId")
        elif event.kind in WAIT_STARTED_KINDS:
            suspended.add(job)
        elif event.kind == "step.completed" and job not in suspended:
            completed.add(job)
            recorded.update((job, step) for step in (event.meta or {}).get("starts", ()))
    seen = Counter((cause, step) for (step, _), cause in _instances(run).items() if cause in completed)
    has_run_everything = run.closed and run.status != "cancelled"
    for pair in recorded.keys() | seen.keys():
        if seen[pair] > recorded[pair] or (has_run_everything and seen[pair] != recorded[pair]):
            yield Violation(
                "starts", run.id, f"{pair[0]} recorded {recorded[pair]} starts of {pair[1]}, but {seen[pair]} ran"
            )


def _check_triggers(run: RunHistory, triggers: Mapping[str, Trigger]) -> Iterator[Violation]:
    """Check how often each step ran against the events and the flow's trigger table."""
    arrived: Counter[str] = Counter()
    for event in run.events:
        if event.kind == "flow.compensating":
            break
        if is_user_kind(event.kind):
            arrived[event.kind] += 1
    ran = Counter(step for step, _ in _instances(run))
    has_run_everything = run.closed and run.status != "cancelled"
    for step, trigger in triggers.items():
        due = _due(trigger, arrived)
        if ran[step] > due or (has_run_everything and ran[step] != due):
            yield Violation(
                "starts",
                run.id,
                f"{step} ({trigger.mode} of {', '.join(trigger.kinds)}) is due {due} times, but ran {ran[step]} times",
            )


def _due(trigger: Trigger, arrived: Counter[str]) -> int:
    counts = [arrived[kind] for kind in trigger.kinds]
    if not trigger.kinds:
        return 1  # the entry step
    if trigger.mode == "each":
        return sum(counts)
    return int(all(counts) if trigger.mode == "all" else any(counts))


def _instances(run: RunHistory) -> dict[tuple[str, int], str]:
    """Return each step instance that ran, and the job or command that caused it."""
    out: dict[tuple[str, int], str] = {}
    for event in run.events:
        if event.kind == "step.started":
            out.setdefault(instance_of(event), meta_of(event, "causationId"))
    return out
