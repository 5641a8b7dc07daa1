"""Decisions on routes, whose conditions a worker evaluates, and on facts that come too late."""

from __future__ import annotations

from typing import Any

import msgspec
from test_decide import NOW, Run, UnconditionalRouting, data, ended, kinds, on

from penstock.flows.decide import Decider, MappedInput, RoutedEvent
from penstock.flows.run_record import CANCELLED, MAX_JOB_IDS, encode
from penstock.handlers.subscriptions import MapOptions
from penstock.ports.script_files import Deferred


class WorkerRouting(UnconditionalRouting):
    """Conditions in another language: a worker evaluates them."""

    def matches(self, step: str, kind: str, data: bytes) -> bool:
        raise Deferred


def routed_run() -> tuple[Run, Any]:
    """Return a run with one event that a worker evaluates, and its route."""
    run = Run(routing=WorkerRouting(), b=on("x"))
    run.begin()
    decision = run.completes("a", ("x", 7))
    (route,) = decision.routes
    assert (run.waiting, run.record.routing, run.record.status) == ([], 1, "running")
    return run, route


def test_a_route_that_takes_the_event_starts_the_step() -> None:
    run, route = routed_run()
    run.decide(lambda d: d.on_routed(RoutedEvent(route, MappedInput(b"8"), True)))
    assert (run.input_of("b"), run.record.routing) == (8, 0)


def test_a_route_of_an_event_from_outside_follows_no_step() -> None:
    run = Run(routing=WorkerRouting(), b=on("x"))
    run.begin()
    (route,) = run.emits("x", 7).routes
    assert route.emitter is None
    run.decide(lambda d: d.on_routed(RoutedEvent(route, MappedInput(b"7"))))
    assert run.waiting == ["a", "b"]


def test_a_route_that_does_not_take_the_event_ends_the_run() -> None:
    run, route = routed_run()
    decision = run.decide(lambda d: d.on_routed(RoutedEvent(route)))
    assert (run.waiting, kinds(decision)) == ([], ["flow.completed"])


def test_a_route_with_a_broken_condition_fails_the_step() -> None:
    run, route = routed_run()
    decision = run.decide(lambda d: d.on_routed(RoutedEvent(route, problem=ValueError("no"))))
    assert "no" in data(decision, "step.failed")["error"]
    assert run.record.status == "failed"


def test_a_route_of_a_cancelled_run_starts_nothing() -> None:
    run, route = routed_run()
    run.decide(lambda d: d.on_cancel("enough"))
    decision = run.decide(lambda d: d.on_routed(RoutedEvent(route, MappedInput(b"8"))))
    assert (run.waiting, kinds(decision), run.record.status) == ([], [], CANCELLED)


def test_an_event_for_a_step_that_was_started_needs_no_route() -> None:
    run, route = routed_run()
    run.decide(lambda d: d.on_routed(RoutedEvent(route, MappedInput(b"8"))))
    assert run.emits("x", 9).routes == []
    assert run.waiting == ["b"]


def test_a_run_records_its_first_call_only() -> None:
    run = Run()
    run.begin()
    assert run.decide(lambda d: d.on_call()).record.has_called  # type: ignore[arg-type, return-value]
    assert Decider("r1", run.record, run.table, run.routing, NOW, 10).on_call() is None


def test_a_redrive_of_a_failure_that_is_not_in_the_record() -> None:
    """The record could not be read when the step failed: it still counts the step as open."""
    run = Run(b=on("x"))
    run.begin()
    run.completes("a", "x")
    before = msgspec.structs.replace(run.record.counts_of("b"))
    run.decide(lambda d: d.on_redrive("b", 1, "again", is_undecided=True))
    assert (run.record.counts_of("b"), run.record.status) == (before, "running")


def test_a_timeout_step_that_cannot_start_is_left_out() -> None:
    run = Run(b=on("x"), late=on("y"))
    run.begin()
    run._take("a", 1)
    decision = run.decide(lambda d: d.on_completed(ended("a"), b"null", [], "nobody"))
    assert (run.waiting, kinds(decision)) == ([], ["step.completed", "flow.completed"])


class JobIdRouting(UnconditionalRouting):
    """Every event starts the step under a job id of its own."""

    def map_input(self, step: str, kind: str, data: bytes) -> MappedInput | None:
        return MappedInput(data, MapOptions(job_id=f"job-{data.decode()}"))


def test_a_step_with_too_many_job_ids_fails_the_run() -> None:
    run = Run(routing=JobIdRouting(), b=on("x", mode="each"), max_steps=10 * MAX_JOB_IDS)
    run.begin()
    run.record.job_ids["b"] = [f"job-{n}" for n in range(MAX_JOB_IDS)]
    decision = run.decide(lambda d: d.on_event(emission(MAX_JOB_IDS), "outside"))
    assert kinds(decision) == ["x", "step.failed"]
    assert f"its limit of {MAX_JOB_IDS:,} job ids" in run.record.failures[0].error
    assert run.waiting == ["a"]


def emission(value: int) -> Any:
    from penstock.flows.decide import Emission

    return Emission("x", encode(value))
