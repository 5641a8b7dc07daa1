"""The rules of one run: one beginning and one end, steps that end once, and starts that have a cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ...core.events import Event
from .attempts import OWN_KINDS, Attempts, check_stream
from .event_facts import instance, is_final, is_users, meta_of
from .facts import RunHistory, Trigger, Violation
from .wait_rules import AWAITS, check_waits

TERMINAL = ("flow.completed", "flow.failed", "flow.cancelled", "flow.compensated")


def check_run(
    run: RunHistory, triggers: Mapping[str, Trigger] | None = None, *, settled: bool = True, calm: bool = False
) -> list[Violation]:
    """The rules of one run."""
    found = [*check_stream(run.id, run.events), *_check_ends(run, settled)]
    attempts = Attempts(run.id, calm)
    for event in run.events:
        if event.kind == "step.started":
            found += attempts.started(event)
        elif event.kind in OWN_KINDS or is_users(event.kind):
            found += attempts.spoke(event)
        if event.kind == "step.completed" or (
            event.kind == "step.failed" and is_final(event) and meta_of(event, "attempt")
        ):
            found += attempts.end(event)
    found += _check_instances(run)
    found += _check_causes(run)
    found += check_waits(run, calm=calm)
    if triggers is not None:
        found += _check_triggers(run, triggers)
    return found


def _check_ends(run: RunHistory, settled: bool) -> Iterator[Violation]:
    """One beginning, one end, and nothing after it. Only a redrive takes a failure back, and says so."""
    events = run.events
    if not events or events[0].kind != "flow.started" or events[0].seq != 1:
        yield Violation("terminal", run.id, "its stream does not begin with flow.started")
    ended: Event | None = None
    for place, event in enumerate(events):
        if event.kind == "flow.started" and place:
            yield Violation("terminal", run.id, f"{event.id}: a second flow.started")
        if ended is not None:
            after = [e.kind for e in events[place : place + 2]]
            if ended.kind == "flow.failed" and after == ["step.redriven", "flow.reopened"]:
                ended = None
            else:
                yield Violation("terminal", run.id, f"{event.id} {event.kind} comes after {ended.kind} ({ended.id})")
        if event.kind in TERMINAL:
            ended = event
    status = ended.kind.removeprefix("flow.") if ended is not None else None
    if run.closed != (ended is not None) or (status is not None and run.status != status):
        yield Violation("terminal", run.id, f"its row says {run.status}, its stream {status or 'that it goes on'}")
    if settled and not run.closed:
        yield Violation(
            "stuck", run.id, f"is still {run.status}; its last event is {events[-1].kind if events else 'none'}"
        )


def _check_instances(run: RunHistory) -> Iterator[Violation]:
    """Each step instance completes at most once, and none is left open by a run that says it is complete or failed."""
    begun: set[tuple[str, int]] = set()
    completed: Counter[tuple[str, int]] = Counter()
    ended: set[tuple[str, int]] = set()
    for event in run.events:
        here = instance(event)
        match event.kind:
            case "step.started":
                begun.add(here)
            case "step.completed":
                completed[here] += 1
                ended.add(here)
            case "step.failed" if is_final(event):
                ended.add(here)
            case "step.redriven":
                ended.discard(here)
    for (step, n), times in completed.items():
        if times > 1:
            yield Violation("completion", run.id, f"{step}#{n} completed {times} times")
    if run.closed and run.status != "cancelled":
        for step, n in sorted(begun - ended):
            yield Violation("completion", run.id, f"the run is {run.status}, but {step}#{n} never ended")
    if run.status == "completed":
        for step, n in sorted(begun - completed.keys()):
            yield Violation("completion", run.id, f"the run is completed, but {step}#{n} is not")


def _check_causes(run: RunHistory) -> Iterator[Violation]:
    """What a completed step says it started was started by it, and nothing else was."""
    said: Counter[tuple[str, str]] = Counter()
    enders: set[str] = set()
    slept: set[str] = set()  # what a step started before it waited is told by its events alone
    jobs: dict[tuple[str, int], str] = {}
    for event in run.events:
        job = jobs.get(instance(event), "")
        if event.kind == "step.started":
            jobs[instance(event)] = meta_of(event, "jobId")
        elif event.kind in AWAITS:
            slept.add(job)
        elif event.kind == "step.completed" and job not in slept:
            enders.add(job)
            said.update((job, step) for step in (event.meta or {}).get("starts", ()))
    seen = Counter((cause, step) for (step, _), cause in _instances(run).items() if cause in enders)
    everything_ran = run.closed and run.status != "cancelled"
    for pair in said.keys() | seen.keys():
        if seen[pair] > said[pair] or (everything_ran and seen[pair] != said[pair]):
            yield Violation(
                "starts", run.id, f"{pair[0]} says it started {pair[1]} {said[pair]} times, {seen[pair]} ran"
            )


def _check_triggers(run: RunHistory, triggers: Mapping[str, Trigger]) -> Iterator[Violation]:
    """Steps counted again from the events alone, by the flow's own table."""
    arrived: Counter[str] = Counter()
    for event in run.events:
        if event.kind == "flow.compensating":
            break
        if is_users(event.kind):
            arrived[event.kind] += 1
    ran = Counter(step for step, _ in _instances(run))
    everything_ran = run.closed and run.status != "cancelled"
    for step, trigger in triggers.items():
        due = _due(trigger, arrived)
        if ran[step] > due or (everything_ran and ran[step] != due):
            yield Violation(
                "starts",
                run.id,
                f"{step} ({trigger.mode} of {', '.join(trigger.kinds)}) is due {due} times, {ran[step]} ran",
            )


def _due(trigger: Trigger, arrived: Counter[str]) -> int:
    counts = [arrived[kind] for kind in trigger.kinds]
    if not trigger.kinds:
        return 1  # the entry step
    if trigger.mode == "each":
        return sum(counts)
    return int(all(counts) if trigger.mode == "all" else any(counts))


def _instances(run: RunHistory) -> dict[tuple[str, int], str]:
    """Each step instance that ran, and the job or command that caused it."""
    out: dict[tuple[str, int], str] = {}
    for event in run.events:
        if event.kind == "step.started":
            out.setdefault(instance(event), meta_of(event, "causationId"))
    return out
