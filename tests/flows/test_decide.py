"""Decisions are pure: a record and a fact in, a record, events and starts out. No store, no clock, no worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.core.clock import to_iso
from penstock.core.events import EventBody
from penstock.core.payload import MAX_PAYLOAD_BYTES
from penstock.flows.decide import Decider, Decision, Emission, EndedStep, MappedInput, StepStart
from penstock.flows.run_record import MAX_FAILURES, RunRecord, decode, encode
from penstock.handlers.trigger_table import TableStep, TriggerTable

NOW = 1_700_000_000_000


def on(*kinds: str, mode: str = "once", **more: Any) -> TableStep:
    return TableStep("q", kinds, mode, **more)  # type: ignore[arg-type]


ENTRY = on()


class UnconditionalRouting:
    """Subscriptions without conditions and mappings."""

    def matches(self, step: str, kind: str, data: bytes) -> bool:
        return True

    def map_input(self, step: str, kind: str, data: bytes) -> MappedInput | None:
        return None


class FunctionRouting(UnconditionalRouting):
    """Subscriptions with functions of the test."""

    def __init__(
        self, wants: Callable[[str, str, Any], bool] | None = None, maps: Callable[[str, str, Any], Any] | None = None
    ) -> None:
        self._wants = wants
        self._maps = maps

    def matches(self, step: str, kind: str, data: bytes) -> bool:
        return True if self._wants is None else self._wants(step, kind, json.loads(data))

    def map_input(self, step: str, kind: str, data: bytes) -> MappedInput | None:
        return None if self._maps is None else MappedInput(encode(self._maps(step, kind, json.loads(data))))


class Run:
    """A run that is decided fact by fact. The record is encoded and decoded each time, as in a store."""

    def __init__(
        self, *, routing: UnconditionalRouting | None = None, max_steps: int = 1000, **steps: TableStep
    ) -> None:
        self.table = TriggerTable("shop", "a", {"a": ENTRY, **steps})
        self.record = RunRecord("shop", "r1", NOW)
        self.routing = routing or UnconditionalRouting()
        self.max_steps = max_steps
        self.now = NOW
        self.queued: list[StepStart] = []
        self.events: list[EventBody] = []

    def decide(self, fact: Callable[[Decider], Decision]) -> Decision:
        decider = Decider("r1", self.record, self.table, self.routing, self.now, self.max_steps)
        decision = fact(decider)
        self.record = decode(encode(decision.record))
        self.queued += decision.starts
        self.events += decision.events
        return decision

    def begin(self, input: Any = None) -> Decision:
        return self.decide(lambda d: d.on_start(encode(input), "start"))

    def completes(self, step: str, *emits: str | tuple[str, Any], result: Any = None, n: int = 1) -> Decision:
        self._take(step, n)
        emissions = [Emission(e, b"null") if isinstance(e, str) else Emission(e[0], encode(e[1])) for e in emits]
        return self.decide(lambda d: d.on_completed(ended(step, n), encode(result), emissions))

    def fails(self, step: str, error: str = "broken", *, n: int = 1, **more: Any) -> Decision:
        self._take(step, n)
        return self.decide(lambda d: d.on_failed(ended(step, n), {"error": error, **more}, 3))

    def emits(self, kind: str, data: Any = None) -> Decision:
        return self.decide(lambda d: d.on_event(Emission(kind, encode(data)), "outside"))

    def _take(self, step: str, n: int) -> None:
        """A step ends once, and only after it was started."""
        found = [s for s in self.queued if (s.step, s.n) == (step, n)]
        assert len(found) == 1, f"{step}#{n} was started {len(found)} times"
        self.queued.remove(found[0])

    @property
    def waiting(self) -> list[str]:
        return [f"{s.step}#{s.n}" if s.n > 1 else s.step for s in self.queued]

    def input_of(self, step: str, n: int = 1) -> Any:
        return next(json.loads(s.input) for s in self.queued if (s.step, s.n) == (step, n))


def ended(step: str, n: int = 1, attempt: int = 1) -> EndedStep:
    return EndedStep(step, n, f"r1.{step}.{n}", attempt, b'{"in":1}', 5)


def kinds(decision: Decision) -> list[str]:
    return [body.kind for body in decision.events]


def data(decision: Decision, kind: str) -> Any:
    found = [body.data for body in decision.events if body.kind == kind]
    assert len(found) == 1, f"{len(found)} events of kind {kind}"
    return json.loads(bytes(found[0] or b"null"))


def last(decision: Decision) -> tuple[str, Any]:
    body = decision.events[-1]
    return body.kind, json.loads(bytes(body.data or b"null"))


# Beginning


def test_a_run_starts_with_its_entry_step() -> None:
    run = Run()
    decision = run.begin({"order": 7})
    assert kinds(decision) == ["flow.started"]
    assert data(decision, "flow.started") == {"name": "shop", "queue": "q", "input": {"order": 7}}
    assert [(s.step, s.n, s.input, s.cause) for s in decision.starts] == [("a", 1, b'{"order":7}', "start")]
    assert (decision.record.status, decision.record.open) == ("running", 1)


def test_the_first_event_has_version_and_tags() -> None:
    run = Run()
    run.table.version = "2024-05"
    run.record.tags = {"tenant": "acme"}
    decision = run.begin()
    assert data(decision, "flow.started")["version"] == "2024-05"
    assert decision.events[0].meta == {"tags": {"tenant": "acme"}}


# What an event starts


def test_an_event_starts_its_listener_with_its_data() -> None:
    run = Run(b=on("paid"))
    run.begin()
    decision = run.completes("a", ("paid", {"sum": 3}), result="ok")
    assert kinds(decision) == ["paid", "step.completed"]
    assert data(decision, "step.completed") == {"result": "ok"}
    assert decision.events[1].meta == {"attempt": 1, "duration": 5, "starts": ["b"]}
    assert run.waiting == ["b"]
    assert run.input_of("b") == {"sum": 3}
    assert run.queued[0].cause == "r1.a.1"


def test_an_emission_has_its_cause_and_its_own_correlation() -> None:
    run = Run()
    run.begin()
    emissions = [Emission("x.y", b"1", "other"), Emission("x.z", b"2")]
    decision = run.decide(lambda d: d.on_completed(ended("a"), b"null", emissions))
    assert [(e.kind, e.step, e.correlation_id, e.meta) for e in decision.events[:2]] == [
        ("x.y", "a", "other", {"causationId": "r1.a.1", "attempt": 1}),
        ("x.z", "a", None, {"causationId": "r1.a.1", "attempt": 1}),
    ]


@pytest.mark.spec("000-8.3")
@pytest.mark.parametrize("times", [1, 2, 5])
def test_once_starts_at_the_first_match_only(times: int) -> None:
    run = Run(b=on("paid"))
    run.begin()
    run.completes("a", *[("paid", n) for n in range(times)])
    assert run.waiting == ["b"]
    assert run.input_of("b") == 0
    run.emits("paid", 99)
    assert run.waiting == ["b"]


def test_once_starts_once_for_all_its_kinds() -> None:
    run = Run(b=on("x", "y"))
    run.begin()
    run.completes("a", "y", "x")
    assert run.waiting == ["b"]


def test_once_does_not_start_again_after_the_step_has_ended() -> None:
    run = Run(b=on("x"), c=on("y"))
    run.begin()
    run.completes("a", "x", "y")
    run.completes("b")
    run.completes("c", "x")
    assert run.waiting == []
    assert run.record.status == "completed"


def test_each_starts_for_every_match_numbered_in_order() -> None:
    run = Run(b=on("x", "y", mode="each"))
    run.begin()
    run.completes("a", ("x", 1), ("y", 2), ("x", 3))
    assert run.waiting == ["b", "b#2", "b#3"]
    assert [run.input_of("b", n) for n in (1, 2, 3)] == [1, 2, 3]
    run.completes("b", n=2)
    assert run.emits("x", 4).starts[0].n == 4


@pytest.mark.parametrize("order", [("x", "y", "z"), ("z", "y", "x"), ("y", "z", "x")])
def test_all_waits_for_every_kind_in_any_order(order: tuple[str, ...]) -> None:
    run = Run(j=on("x", "y", "z", mode="all"))
    run.begin()
    for kind in order[:-1]:
        run.emits(kind, kind.upper())
        assert run.waiting == ["a"]
    run.completes("a", (order[-1], order[-1].upper()))
    assert run.waiting == ["j"]
    assert run.input_of("j") == {"x": "X", "y": "Y", "z": "Z"}


def test_all_takes_the_first_of_a_repeated_kind() -> None:
    run = Run(j=on("x", "y", mode="all"))
    run.begin()
    run.emits("x", 1)
    run.emits("x", 2)
    assert run.waiting == ["a"]
    run.emits("y", 3)
    assert run.input_of("j") == {"x": 1, "y": 3}


def test_all_starts_once_however_often_its_kinds_come_again() -> None:
    run = Run(j=on("x", "y", mode="all"))
    run.begin()
    for kind in ("x", "y", "x", "y", "y", "x"):
        run.emits(kind)
    assert run.waiting == ["a", "j"]
    assert run.record.pending_joins == {}


def test_a_join_of_one_kind_listed_twice_starts_with_it() -> None:
    run = Run(j=TableStep("q", ("x",), "all"))
    run.begin()
    run.completes("a", ("x", 1))
    assert run.input_of("j") == {"x": 1}


def test_one_event_starts_every_listener() -> None:
    run = Run(b=on("x"), c=on("x"), d=on("x", mode="each"), e=on("other"))
    run.begin()
    assert run.completes("a", "x").events[-1].meta["starts"] == ["b", "c", "d"]  # type: ignore[index]
    assert run.waiting == ["b", "c", "d"]


def test_an_event_from_outside_starts_its_listener_and_does_not_end_the_run() -> None:
    run = Run(b=on("x"))
    run.begin()
    decision = run.emits("x", 5)
    assert kinds(decision) == ["x"]
    assert (decision.events[0].step, decision.events[0].meta) == (None, {"causationId": "outside"})
    assert run.waiting == ["a", "b"]


# Conditions and mapping


def test_when_decides_whether_an_event_counts() -> None:
    run = Run(b=on("x", mode="each"), routing=FunctionRouting(wants=lambda step, kind, value: value > 1))
    run.begin()
    run.completes("a", ("x", 1), ("x", 2), ("x", 3))
    assert [run.input_of("b", n) for n in (1, 2)] == [2, 3]


def test_a_join_counts_only_matching_events() -> None:
    run = Run(j=on("x", "y", mode="all"), routing=FunctionRouting(wants=lambda step, kind, value: value != "no"))
    run.begin()
    run.emits("x", "no")
    run.emits("y", "yes")
    assert run.waiting == ["a"]
    run.emits("x", "yes")
    assert run.input_of("j") == {"x": "yes", "y": "yes"}


def test_map_builds_the_input_and_is_recorded() -> None:
    run = Run(b=on("x"), routing=FunctionRouting(maps=lambda step, kind, value: {"from": kind, "twice": value * 2}))
    run.begin()
    decision = run.completes("a", ("x", 4))
    assert run.input_of("b") == {"from": "x", "twice": 8}
    assert decision.starts[0].has_mapped_input, "the input is in no event, so step.started has to show it"


def broken(*_: Any) -> Any:
    raise KeyError("boom")


@pytest.mark.parametrize("routing", [FunctionRouting(wants=broken), FunctionRouting(maps=broken)], ids=["when", "map"])
def test_a_broken_subscription_fails_the_step_it_should_have_started(routing: FunctionRouting) -> None:
    run = Run(b=on("x"), routing=routing)
    run.begin()
    decision = run.completes("a", "x")
    assert kinds(decision) == ["x", "step.failed", "step.completed", "flow.failed"]
    failed = data(decision, "step.failed")
    assert failed["code"] == "subscription_failed"
    assert failed["willRetry"] is False
    assert "KeyError" in failed["error"]
    assert decision.events[1].step == "b"
    assert data(decision, "flow.failed")["failed"] == [
        {"step": "b", "n": 0, "error": failed["error"], "code": "subscription_failed"}
    ]


def test_a_broken_subscription_does_not_stop_the_other_listeners() -> None:
    run = Run(b=on("x"), c=on("x"), routing=FunctionRouting(wants=lambda step, *_: broken() if step == "b" else True))
    run.begin()
    run.completes("a", "x")
    assert run.waiting == ["c"]
    assert run.record.status == "running"
    run.completes("c")
    assert run.record.status == "failed"


def test_an_error_of_a_subscription_that_cannot_start_anything_is_ignored() -> None:
    run = Run(b=on("x"), routing=FunctionRouting(wants=lambda step, kind, value: broken() if value == 2 else True))
    run.begin()
    run.completes("a", ("x", 1), ("x", 2))
    run.completes("b")
    assert run.record.status == "completed"


def test_a_broken_subscription_of_each_does_not_affect_its_instances() -> None:
    run = Run(
        b=on("x", mode="each"),
        routing=FunctionRouting(wants=lambda step, kind, value: broken() if value == 2 else True),
    )
    run.begin()
    decision = run.completes("a", ("x", 1), ("x", 2))
    assert next(e.meta for e in decision.events if e.kind == "step.failed") == {"n": 0}
    assert run.waiting == ["b"]


# Ending


def test_a_run_completes_when_no_step_is_open() -> None:
    run = Run(b=on("x"), c=on("x"))
    run.begin()
    assert "flow.completed" not in kinds(run.completes("a", "x"))
    assert "flow.completed" not in kinds(run.completes("c"))
    run.now = NOW + 1234
    decision = run.completes("b", result="done")
    assert kinds(decision) == ["step.completed", "flow.completed"]
    assert data(decision, "flow.completed") == {"duration": 1234, "result": "done"}
    assert run.record.closed


def test_a_run_completes_exactly_once() -> None:
    run = Run(b=on("x", mode="each"))
    run.begin()
    run.completes("a", *["x"] * 20)
    for n in range(20, 0, -1):
        run.completes("b", n=n)
    assert [e.kind for e in run.events].count("flow.completed") == 1
    assert run.record.steps["b"].completed == 20


def test_an_unfinished_join_is_reported_at_the_end() -> None:
    run = Run(j=on("x", "y", "z", mode="all"))
    run.begin()
    decision = run.completes("a", "y")
    assert data(decision, "flow.completed")["unmet"] == {"j": ["x", "z"]}


def test_a_failure_ends_the_run_once_the_rest_has_ended() -> None:
    run = Run(b=on("x"), c=on("x"), d=on("c.done"))
    run.begin()
    run.completes("a", "x")
    decision = run.fails("b", "no money", name="CardError", code="declined")
    assert kinds(decision) == ["step.failed"]
    assert data(decision, "step.failed") == {
        "error": "no money",
        "name": "CardError",
        "code": "declined",
        "willRetry": False,
    }
    assert decision.events[0].meta == {"attempt": 1, "duration": 5, "maxAttempts": 3}
    run.completes("c", "c.done")
    assert run.waiting == ["d"], "steps that are independent of the failure continue"
    run.now = NOW + 9
    kind, end = last(run.completes("d"))
    assert kind == "flow.failed"
    assert end == {
        "error": "no money",
        "step": "b",
        "failed": [{"step": "b", "n": 1, "error": "no money", "code": "declined", "name": "CardError"}],
        "duration": 9,
    }


def test_a_failed_run_names_the_first_failure_and_lists_the_others() -> None:
    run = Run(b=on("x", mode="each"))
    run.begin()
    run.completes("a", *["x"] * 30)
    for n in range(1, 31):
        decision = run.fails("b", f"error {n}", n=n)
    end = data(decision, "flow.failed")
    assert (end["error"], end["step"]) == ("error 1", "b")
    assert [f["n"] for f in end["failed"]] == list(range(1, MAX_FAILURES + 1))
    assert run.record.failed == 30


def test_a_retry_appends_failed_and_retrying_and_changes_nothing_else() -> None:
    run = Run()
    run.begin()
    before = run.record
    due = NOW + 5000
    fact = ended("a", attempt=2)
    decision = run.decide(lambda d: d.on_retry(fact, {"error": "slow", "name": "Timeout"}, 3, due))
    assert [(e.kind, e.step) for e in decision.events] == [("step.failed", "a"), ("step.retry", "a")]
    failed, retry = decision.events
    assert data(decision, "step.failed") == {
        "error": "slow",
        "name": "Timeout",
        "willRetry": True,
        "nextRetryAt": to_iso(due),
    }
    assert failed.meta == {"attempt": 2, "duration": 5, "maxAttempts": 3}
    assert data(decision, "step.retry") == {"reason": "slow", "delayMs": 5000}
    assert retry.meta == {"attempt": 3, "scheduledAt": to_iso(due)}
    assert (decision.starts, run.record) == ([], before)


def test_a_retry_of_a_later_instance_has_its_number() -> None:
    run = Run(b=on("x", mode="each"))
    run.begin()
    run.completes("a", "x", "x")
    decision = run.decide(lambda d: d.on_retry(ended("b", 2), {"error": "e"}, 3, NOW))
    assert [e.meta["n"] for e in decision.events] == [2, 2]  # type: ignore[index]


def test_cancelling_closes_the_run_and_drops_open_steps() -> None:
    run = Run(b=on("x"), j=on("x", "y", mode="all"))
    run.begin()
    run.completes("a", "x")
    run.now = NOW + 7
    decision = run.decide(lambda d: d.on_cancel("enough"))
    assert kinds(decision) == ["flow.cancelled"]
    assert data(decision, "flow.cancelled") == {"reason": "enough", "duration": 7}
    assert (run.record.status, run.record.open, run.record.closed, run.record.pending_joins) == (
        "cancelled",
        0,
        True,
        {},
    )


# Results


@pytest.mark.parametrize("result", [None, 0, "", [], {"a": 1}, "text"])
def test_the_result_of_one_last_step(result: Any) -> None:
    run = Run(b=on("x"))
    run.begin()
    run.completes("a", "x", result="not the last")
    assert data(run.completes("b", result=result), "flow.completed")["result"] == result


def test_the_results_of_several_last_steps() -> None:
    run = Run(b=on("x"), c=on("x"))
    run.begin()
    run.completes("a", "x")
    run.completes("c", result="C")
    assert data(run.completes("b", result="B"), "flow.completed")["result"] == {"b": "B", "c": "C"}


def test_each_returns_a_list_in_the_order_of_its_instances() -> None:
    run = Run(b=on("x", mode="each"))
    run.begin()
    run.completes("a", *["x"] * 12)
    for n in (12, 3, 7, 1, 2, 11, 10, 9, 8, 4, 5):
        run.completes("b", n=n, result=n * 10)
    assert data(run.completes("b", n=6, result=60), "flow.completed")["result"] == [n * 10 for n in range(1, 13)]


@pytest.mark.parametrize("first", ["b", "c"])
def test_a_diamond_has_the_result_of_its_join_in_any_order(first: str) -> None:
    run = Run(b=on("x"), c=on("x"), j=on("b.done", "c.done", mode="all"))
    run.begin()
    run.completes("a", "x", result="A")
    for name in (first, "c" if first == "b" else "b"):
        run.completes(name, f"{name}.done", result=name)
    assert data(run.completes("j", result="joined"), "flow.completed")["result"] == "joined"


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_a_step_followed_by_a_once_step_is_not_a_last_step_in_any_order(order: tuple[int, ...]) -> None:
    run = Run(b=on("x", mode="each"), c=on("b.done"))
    run.begin()
    run.completes("a", "x", "x", "x")
    for n in order:
        run.completes("b", "b.done", n=n, result=n)
    assert data(run.completes("c", result="notified"), "flow.completed")["result"] == "notified"


def test_a_step_whose_event_has_no_listener_is_a_last_step() -> None:
    run = Run(b=on("x"), routing=FunctionRouting(wants=lambda *_: False))
    run.begin()
    assert data(run.completes("a", "x", result="rejected"), "flow.completed")["result"] == "rejected"


def test_results_above_the_limit_are_omitted() -> None:
    run = Run(b=on("x", mode="each"))
    run.begin()
    run.completes("a", "x", "x", "x")
    half = "h" * (MAX_PAYLOAD_BYTES // 2)
    run.completes("b", n=1, result=half)
    run.completes("b", n=2, result=half)
    assert len(encode(run.record)) < 1000, "the record does not grow with results that will not be given"
    assert "result" not in data(run.completes("b", n=3, result="small"), "flow.completed")


# Compensation


def undone(by: str, *kinds: str, also_on: tuple[str, ...] = (), mode: str = "once") -> TableStep:
    return on(*kinds, compensation=by, compensate_on=also_on, mode=mode)


def saga(**more: TableStep) -> Run:
    run = Run(
        book=undone("unbook", "x"), pay=undone("refund", "booked"), ship=on("paid"), unbook=on(), refund=on(), **more
    )
    run.begin()
    run.completes("a", "x")
    run.completes("book", "booked", result={"seat": 4})
    run.completes("pay", "paid", result={"receipt": 9})
    return run


def test_compensations_run_in_reverse_order_of_completion() -> None:
    run = saga()
    decision = run.fails("ship", "lorry broke")
    assert kinds(decision) == ["step.failed", "flow.compensating"]
    assert data(decision, "flow.compensating") == {"steps": ["pay", "book"]}
    assert run.waiting == ["refund"], "one at a time"
    assert run.input_of("refund") == {
        "step": "pay",
        "n": 1,
        "input": {"in": 1},
        "result": {"receipt": 9},
        "error": "lorry broke",
    }
    assert kinds(run.completes("refund")) == ["step.completed"]
    assert run.waiting == ["unbook"]
    assert run.input_of("unbook")["result"] == {"seat": 4}
    kind, end = last(run.completes("unbook"))
    assert (kind, end["step"], end["error"]) == ("flow.compensated", "ship", "lorry broke")
    assert (run.record.status, run.record.closed) == ("compensated", True)


def test_compensation_waits_for_running_steps() -> None:
    run = Run(book=undone("unbook", "x"), ship=on("x"), unbook=on())
    run.begin()
    run.completes("a", "x")
    assert kinds(run.fails("ship")) == ["step.failed"]
    assert run.waiting == ["book"]
    run.completes("book")
    assert run.waiting == ["unbook"], "what completed after the failure is undone too"


def test_a_compensating_run_starts_nothing_new() -> None:
    run = saga(other=on("refunded"))
    run.fails("ship")
    decision = run.completes("refund", "refunded")
    assert kinds(decision) == ["refunded", "step.completed"]
    run.emits("refunded")
    assert run.waiting == ["unbook"]


def test_a_failing_compensation_fails_the_run_but_the_others_run() -> None:
    run = saga()
    run.fails("ship", "first")
    assert "flow.failed" not in kinds(run.fails("refund", "second"))
    assert run.waiting == ["unbook"]
    kind, end = last(run.completes("unbook"))
    assert kind == "flow.failed"
    assert [f["step"] for f in end["failed"]] == ["ship", "refund"]
    assert end["error"] == "first"


def test_a_failure_without_compensations_fails_the_run() -> None:
    run = Run(book=undone("unbook", "x"), unbook=on())
    run.begin()
    assert kinds(run.fails("a")) == ["step.failed", "flow.failed"]


def test_a_completed_run_compensates_nothing() -> None:
    run = saga()
    kind, end = last(run.completes("ship", result="on its way"))
    assert (kind, end["result"]) == ("flow.completed", "on its way")


def test_every_instance_of_an_each_step_is_compensated() -> None:
    run = Run(b=undone("undo", "x", mode="each"), c=on("y"), undo=on())
    run.begin()
    run.completes("a", "x", "x", "y")
    run.completes("b", n=2, result=2)
    run.completes("b", n=1, result=1)
    run.fails("c")
    assert run.input_of("undo", 1)["n"] == 1
    run.completes("undo", n=1)
    assert run.input_of("undo", 2)["n"] == 2
    run.completes("undo", n=2)
    assert run.record.status == "compensated"


def test_compensate_on_runs_at_its_event_and_the_run_continues() -> None:
    run = Run(book=undone("unbook", "x", also_on=("changed.mind",)), ask=on("x"), unbook=on())
    run.begin()
    run.completes("a", "x")
    run.completes("book", result="seat 4")
    run.completes("ask", "changed.mind")
    assert run.waiting == ["unbook"]
    assert run.input_of("unbook") == {"step": "book", "n": 1, "input": {"in": 1}, "result": "seat 4", "error": None}
    run.completes("unbook")
    assert run.record.status == "completed"


def test_a_step_compensated_on_an_event_is_not_compensated_again() -> None:
    run = Run(book=undone("unbook", "x", also_on=("no",)), ask=on("x"), unbook=on(), late=on("late"))
    run.begin()
    run.completes("a", "x", "late")
    run.completes("book")
    run.completes("ask", "no", "no")
    run.completes("unbook")
    assert last(run.fails("late"))[0] == "flow.failed"
    assert [e.kind for e in run.events].count("flow.compensating") == 0


# Redriving


def test_a_redriven_step_reopens_its_run() -> None:
    run = Run(b=on("x"), c=on("b.done"))
    run.begin()
    run.completes("a", "x")
    run.fails("b")
    decision = run.decide(lambda d: d.on_redrive("b", 1, "r1.b.1.redrive-1"))
    assert kinds(decision) == ["step.redriven", "flow.reopened"]
    assert data(decision, "step.redriven") == {"jobId": "r1.b.1.redrive-1"}
    assert data(decision, "flow.reopened") == {"step": "b"}
    assert (run.record.status, run.record.open, run.record.failed) == ("running", 1, 0)
    run.queued.append(StepStart("b", 1, b"null", ""))
    run.completes("b", "b.done")
    assert run.waiting == ["c"]
    assert last(run.completes("c", result="fine")) == ("flow.completed", {"duration": 0, "result": "fine"})


def test_a_run_with_another_failure_stays_failed_after_a_redrive() -> None:
    run = Run(b=on("x"), c=on("x"))
    run.begin()
    run.completes("a", "x")
    run.fails("b", "one")
    run.fails("c", "two")
    run.decide(lambda d: d.on_redrive("b", 1, "again"))
    run.queued.append(StepStart("b", 1, b"null", ""))
    kind, end = last(run.completes("b"))
    assert (kind, end["error"], [f["step"] for f in end["failed"]]) == ("flow.failed", "two", ["c"])


def test_a_redrive_of_an_open_run_reopens_nothing() -> None:
    run = Run(b=on("x"), c=on("x"))
    run.begin()
    run.completes("a", "x")
    run.fails("b")
    assert kinds(run.decide(lambda d: d.on_redrive("b", 1, "again"))) == ["step.redriven"]


def test_redriving_every_failure_that_is_listed_leaves_the_others_failed() -> None:
    run = Run(b=on("x", mode="each"))
    run.begin()
    total = MAX_FAILURES + 1
    run.completes("a", *["x"] * total)
    for n in range(1, total + 1):
        run.fails("b", n=n)
    for n in range(1, MAX_FAILURES + 1):
        run.decide(lambda d, n=n: d.on_redrive("b", n, "again"))  # type: ignore[misc]
        run.queued.append(StepStart("b", n, b"null", ""))
    for n in range(1, MAX_FAILURES + 1):
        decision = run.completes("b", n=n)
    kind, end = last(decision)
    assert kind == "flow.failed"
    assert end["error"], "a failed run has an error"


# The limit


def test_a_run_that_exceeds_its_limit_fails_with_the_reason() -> None:
    run = Run(b=on("x", mode="each"), max_steps=3)
    run.begin()
    decision = run.completes("a", "x", "x", "x", "x")
    assert run.waiting == ["b", "b#2"]
    refused = [e for e in decision.events if e.kind == "step.failed"]
    assert [json.loads(bytes(e.data or b""))["code"] for e in refused] == ["run_limit", "run_limit"]
    assert {e.meta["n"] for e in refused} == {3}, "not an instance that runs"  # type: ignore[index]
    run.completes("b")
    assert last(run.completes("b", n=2))[0] == "flow.failed"


def test_the_limit_does_not_stop_compensation() -> None:
    run = Run(book=undone("unbook", "x"), more=on("x", mode="each"), unbook=on(), max_steps=2)
    run.begin()
    run.completes("a", "x")
    run.completes("book")
    assert run.waiting == ["unbook"]
    run.completes("unbook")
    assert run.record.status == "compensated"


# The record


def test_the_record_of_a_wide_run_stays_small() -> None:
    run = Run(b=on("x", mode="each"), c=on("y"))
    run.begin()
    run.completes("a", *["x"] * 500)
    small = len(encode(run.record))
    for n in range(1, 500):
        run.completes("b", "no.listener" if n % 2 else "y", n=n)
    assert len(encode(run.record)) < small + 200


def test_a_decision_on_a_record_of_an_older_version_reads_it() -> None:
    bare = msgspec.json.encode({"flow": "shop", "correlationId": "c", "startedMs": NOW, "unknown": True})
    assert decode(bare).status == "running"
