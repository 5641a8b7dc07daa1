"""The history check itself: a good history passes, and each rule finds the history that breaks it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.core.clock import to_iso
from penstock.core.events import Event
from penstock.testing.history import Effect, History, RunHistory, Trigger, check

MS = 1_700_000_000_000
TRIGGERS = {"shop": {"order": Trigger(()), "charge": Trigger(("order.made",)), "ship": Trigger(("paid",), "each")}}


def event(seq: int, kind: str, step: str | None = None, data: Any = None, *, ms: int = MS, **meta: Any) -> Event:
    return Event(f"{ms}-{seq}", to_iso(ms), kind, "r1", "r1", step, data=data, meta=meta or None)


def good() -> list[Event]:
    """order, then charge (twice: the first attempt is lost), then two shipments."""
    return [
        event(1, "flow.started", data={}),
        event(2, "step.started", "order", jobId="r1.order.1", causationId="start", attempt=1),
        event(3, "order.made", "order", data={}, causationId="r1.order.1", attempt=1),
        event(4, "step.completed", "order", attempt=1, starts=["charge"]),
        event(5, "step.started", "charge", jobId="r1.charge.1", causationId="r1.order.1", attempt=1),
        event(6, "step.started", "charge", jobId="r1.charge.1", causationId="r1.order.1", attempt=2),
        event(7, "log", "charge", data={"msg": "paying"}, attempt=2),
        event(8, "paid", "charge", data={}, causationId="r1.charge.1", attempt=2),
        event(9, "paid", "charge", data={}, causationId="r1.charge.1", attempt=2),
        event(10, "step.completed", "charge", attempt=2, starts=["ship", "ship"]),
        event(11, "step.started", "ship", jobId="r1.ship.1", causationId="r1.charge.1", attempt=1),
        event(12, "step.started", "ship", jobId="r1.ship.2", causationId="r1.charge.1", attempt=1, n=2),
        event(13, "step.completed", "ship", attempt=1),
        event(14, "step.completed", "ship", attempt=1, n=2),
        event(15, "flow.completed", data={}),
    ]


def effects() -> list[Effect]:
    jobs = [("order", "r1.order.1", 1), ("charge", "r1.charge.1", 1), ("charge", "r1.charge.1", 2)]
    jobs += [("ship", "r1.ship.1", 1), ("ship", "r1.ship.2", 1)]
    return [Effect("r1", step, job, attempt, job) for step, job, attempt in jobs]


def history(events: list[Event], status: str = "completed", closed: bool = True, **more: Any) -> History:
    given = {"effects": effects(), "acknowledged": ["r1"], "triggers": TRIGGERS, **more}
    return History([RunHistory("r1", "shop", status, closed, events)], **given)


def renumbered(events: list[Event]) -> list[Event]:
    return [msgspec.structs.replace(e, id=f"{MS}-{n}") for n, e in enumerate(events, 1)]


def rules(found: History) -> set[str]:
    return {violation.rule for violation in check(found)}


def test_a_good_history_has_no_violations() -> None:
    assert check(history(good())) == []


def test_an_empty_history_has_none_either() -> None:
    assert check(History()) == []


def without(*seqs: int) -> list[Event]:
    return renumbered([e for e in good() if e.seq not in seqs])


def repeated(seq: int, **changes: Any) -> list[Event]:
    out = good()
    out.insert(seq, msgspec.structs.replace(out[seq - 1], **changes))
    return renumbered(out)


BROKEN: list[tuple[str, History]] = [
    ("seq", history([e for e in good() if e.seq != 7])),
    ("seq", history([*good()[:7], good()[6], *good()[7:]])),
    ("time", history([*good()[:14], event(15, "flow.completed", data={}, ms=MS - 1)])),
    ("terminal", history(without(1))),
    ("terminal", history(repeated(1))),
    ("terminal", history(repeated(15))),
    ("terminal", history([*good(), event(16, "log", "ship", attempt=1)])),
    ("terminal", history(good(), "failed")),
    ("terminal", history(without(15), "completed", True)),
    ("stuck", history(without(15), "running", False)),
    ("completion", history(repeated(10))),
    ("completion", history(without(13))),
    ("attempts", history(repeated(5))),
    ("attempts", history(without(5))),
    ("attempts", history(repeated(6, meta={**(good()[5].meta or {}), "attempt": 4}))),
    ("attempts", history([*good()[:10], event(11, "step.started", "charge", jobId="r1.charge.1", attempt=3)])),
    ("fence", history(repeated(7, meta={"attempt": 1}))),
    ("fence", history(renumbered([*good()[:10], good()[6], *good()[10:]]))),
    ("starts", history(without(11, 13))),
    ("starts", history(without(3))),
    ("executions", history(good(), effects=[*effects(), effects()[0]])),
    ("executions", history(good(), effects=[*effects(), Effect("r1", "ship", "r1.ship.1", 2, "r1.ship.1")])),
    ("lost", history(good(), acknowledged=["r1", "r2"])),
    ("wasted", history(good(), is_undisturbed=True)),
]


@pytest.mark.parametrize(("rule", "broken"), BROKEN, ids=[f"{rule}-{n}" for n, (rule, _) in enumerate(BROKEN)])
def test_each_rule_finds_what_breaks_it(rule: str, broken: History) -> None:
    assert rule in rules(broken)


def failed() -> list[Event]:
    return [
        event(1, "flow.started", data={}),
        event(2, "step.started", "order", jobId="r1.order.1", causationId="start", attempt=1),
        event(3, "step.failed", "order", data={"willRetry": False}, attempt=1),
        event(4, "flow.failed", data={}),
    ]


def redriven() -> list[Event]:
    return [
        *failed(),
        event(5, "step.redriven", "order", data={}, jobId="r1.order.1.redrive-1"),
        event(6, "flow.reopened", data={}),
        event(7, "step.started", "order", jobId="r1.order.1.redrive-1", causationId="r1.order.1.dlq", attempt=1),
        event(8, "step.completed", "order", attempt=1),
        event(9, "flow.completed", data={}),
    ]


def test_a_redrive_reopens_a_failed_run() -> None:
    assert check(history(failed(), "failed", effects=[])) == []
    assert check(history(redriven(), effects=[])) == []


def test_only_a_redrive_reopens_a_run() -> None:
    reopened = renumbered([e for e in redriven() if e.kind != "step.redriven"])
    assert "terminal" in rules(history(reopened, effects=[]))
    cancelled = [
        msgspec.structs.replace(e, kind="flow.cancelled") if e.kind == "flow.failed" else e for e in redriven()
    ]
    assert "terminal" in rules(history(cancelled, effects=[]))


def job_event(seq: int, kind: str, job: str = "j1", data: Any = None, **meta: Any) -> Event:
    return Event(f"{MS}-{seq}", to_iso(MS), kind, job, data=data, meta=meta or None)


def job_events() -> list[Event]:
    return [
        job_event(1, "job.added"),
        job_event(2, "job.active", attempt=1),
        job_event(3, "job.failed", data={"willRetry": True}, attempt=1),
        job_event(4, "job.active", attempt=2),
        job_event(5, "job.progress", attempt=2),
        job_event(6, "job.completed", attempt=2),
    ]


def jobs(events: list[Event], **more: Any) -> History:
    return History(queues={"nq:queue:q": events}, acknowledged=["j1"], **more)


def test_a_good_job_has_no_violations() -> None:
    assert check(jobs(job_events(), is_undisturbed=True)) == []


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        ("stuck", job_events()[:5]),
        ("completion", renumbered([*job_events(), job_events()[5]])),
        ("completion", renumbered([job_events()[0], *job_events()])),
        ("attempts", renumbered([*job_events(), job_event(7, "job.active", attempt=3)])),
        ("fence", renumbered([*job_events()[:4], job_event(5, "job.completed", attempt=1)])),
        ("seq", [*job_events()[:3], *job_events()[4:]]),
    ],
)
def test_each_rule_finds_the_job_that_breaks_it(rule: str, events: list[Event]) -> None:
    assert rule in rules(jobs(events))


def waited() -> list[Event]:
    """order waits for an event and a trigger; charge, which it started before, waits for an event that never comes."""
    await_event = {"wait": "paid#1", "eventKind": "paid"}
    return [
        event(1, "flow.started", data={}),
        event(2, "step.started", "order", jobId="r1.order.1", causationId="start", attempt=1),
        event(3, "order.made", "order", data={}, causationId="r1.order.1", attempt=1),
        event(4, "step.await.event", "order", await_event, attempt=1),
        event(5, "step.started", "charge", jobId="r1.charge.1", causationId="r1.order.1", attempt=1),
        event(6, "step.await.event", "charge", {"wait": "never#1"}, attempt=1),
        event(7, "step.resumed", "order", {"wait": "paid#1"}, awaitType="event"),
        event(8, "step.started", "order", jobId="r1.order.1", causationId="start", attempt=2),
        event(9, "step.await.trigger", "order", {"wait": "approval#1"}, attempt=2),
        event(10, "step.started", "charge", jobId="r1.charge.1", causationId="r1.order.1", attempt=2),
        event(11, "step.await.timeout", "charge", {"wait": "never#1"}, attempt=2),
        event(12, "step.completed", "charge", attempt=2),
        event(13, "step.resumed", "order", {"wait": "approval#1"}, awaitType="trigger"),
        event(14, "step.started", "order", jobId="r1.order.1", causationId="start", attempt=3),
        event(15, "step.completed", "order", attempt=3),
        event(16, "flow.completed", data={}),
    ]


def test_a_good_history_of_waits_has_no_violations() -> None:
    assert check(history(waited(), effects=[], is_undisturbed=True)) == []


def without_waited(*seqs: int) -> list[Event]:
    return renumbered([e for e in waited() if e.seq not in seqs])


def with_waited(place: int, *more: Event) -> list[Event]:
    return renumbered([*waited()[:place], *more, *waited()[place:]])


BROKEN_WAITS: list[tuple[str, list[Event]]] = [
    ("waits", with_waited(7, waited()[6])),  # opened twice
    (
        "waits",
        with_waited(11, event(0, "step.resumed", "charge", {"wait": "never#1"})),
    ),  # by an event after its timeout
    ("waits", with_waited(8, waited()[3])),  # suspended on again after it was resolved
    ("waits", with_waited(12, event(0, "step.resumed", "charge", {"wait": "other#1"}))),  # after its step's end
    ("terminal", with_waited(16, event(0, "step.resumed", "order", {"wait": "other#1"}))),  # after the run's end
    ("fence", with_waited(8, event(0, "step.await.time", "order", {"wait": "time#1"}, attempt=1))),
    ("stuck", waited()[:9]),
    ("wasted", without_waited(7)),
]


@pytest.mark.parametrize(("rule", "events"), BROKEN_WAITS, ids=[f"{r}-{n}" for n, (r, _) in enumerate(BROKEN_WAITS)])
def test_each_rule_finds_the_wait_that_breaks_it(rule: str, events: list[Event]) -> None:
    status, closed = ("running", False) if rule == "stuck" else ("completed", True)
    assert rule in rules(history(events, status, closed, effects=[], is_undisturbed=True))


@pytest.mark.parametrize(
    "kinds",
    [
        ("trigger.fired",),
        ("trigger.registered", "trigger.registered"),
        ("trigger.registered", "trigger.fired", "trigger.fired"),
        ("trigger.registered", "trigger.fired", "trigger.timeout"),
    ],
)
def test_a_trigger_is_registered_and_ends_once(kinds: tuple[str, ...]) -> None:
    stream = [event(n, kind) for n, kind in enumerate(kinds, 1)]
    assert rules(History(trigger_streams={"nq:trigger:t": stream})) == {"trigger"}


def test_a_delivery_that_fails_for_good_is_a_violation() -> None:
    failed = [job_event(1, "job.failed", data={"willRetry": True}), job_event(2, "job.failed", data={})]
    assert rules(History(queues={"nq:queue:penstock-events": failed[:1]})) == set()
    assert rules(History(queues={"nq:queue:penstock-events": failed})) == {"stuck"}
