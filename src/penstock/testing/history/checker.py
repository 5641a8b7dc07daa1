"""Check all rules, including those across streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .queue_rules import check_queue
from .records import History, Violation, meta_of, started_job
from .run_rules import check_run
from .wait_rules import check_trigger


def check(history: History) -> list[Violation]:
    """Return every violation of a rule; an empty list means that all rules hold."""
    found: list[Violation] = []
    for run in history.runs:
        found += check_run(
            run,
            history.triggers.get(run.flow),
            is_finished=history.is_finished,
            is_undisturbed=history.is_undisturbed,
        )
    for stream, events in history.queues.items():
        found += check_queue(stream, events, is_finished=history.is_finished, is_undisturbed=history.is_undisturbed)
    for stream, events in history.trigger_streams.items():
        found += check_trigger(stream, events)
    found += _check_executions(history)
    found += _check_acknowledged(history)
    return found


def _check_executions(history: History) -> Iterator[Violation]:
    """Check that every execution was recorded first. A resume after a wait records its attempt again."""
    recorded: Counter[tuple[str, int]] = Counter()
    for events in (*(run.events for run in history.runs), *history.queues.values()):
        for event in events:
            if event.kind in ("step.started", "job.active"):
                recorded[started_job(event), meta_of(event, "attempt")] += 1
    executed = Counter((effect.job, effect.attempt) for effect in history.effects)
    for (job, attempt), times in executed.items():
        if (job, attempt) not in recorded:
            yield Violation("executions", job, f"attempt {attempt} ran but is not recorded")
        elif times > recorded[job, attempt]:
            starts = recorded[job, attempt]
            yield Violation("executions", job, f"attempt {attempt} ran {times} times, but {starts} starts are recorded")


def _check_acknowledged(history: History) -> Iterator[Violation]:
    """Check that every acknowledged run and job exists."""
    known = {run.id for run in history.runs}
    known |= {event.subject for events in history.queues.values() for event in events if event.kind == "job.added"}
    for id in sorted(set(history.acknowledged) - known):
        yield Violation("lost", id, "was acknowledged but does not exist")
