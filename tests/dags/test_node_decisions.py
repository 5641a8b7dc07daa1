"""Decisions about dags are pure: random graphs end, and end as a plain sequential interpreter says."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.dags.decide import Decider, Decision, EndedNode
from penstock.dags.definition import Dag, Node
from penstock.dags.plan import Plan
from penstock.dags.run_record import DagRecord, decode, encode, has_bit

OK, SKIP, FAIL, CHOOSE = "ok", "skip", "fail", "choose"


class Behaviour(msgspec.Struct):
    """What the executor of a node does."""

    does: str
    chosen: tuple[str, ...] = ()


@st.composite
def dags(draw: st.DrawFn) -> tuple[Dag, dict[str, Behaviour]]:
    size = draw(st.integers(1, 9))
    names = [f"n{n}" for n in range(size)]
    nodes = []
    for n, name in enumerate(names):
        inputs = draw(st.lists(st.sampled_from(names[:n]), unique=True, max_size=3)) if n else []
        nodes.append(Node(name, "any", tuple(inputs), continue_on_fail=draw(st.booleans())))
    children = {name: [node.id for node in nodes if name in node.inputs] for name in names}
    behaviours = {}
    for name in names:
        does = draw(st.sampled_from([OK, OK, OK, SKIP, FAIL, CHOOSE]))
        chosen = draw(st.lists(st.sampled_from(children[name]), unique=True)) if children[name] else []
        behaviours[name] = Behaviour(does, tuple(chosen))
    limit = draw(st.one_of(st.none(), st.integers(1, 3)))
    return Dag("random", tuple(draw(st.permutations(nodes))), max_concurrency=limit), behaviours


def interpret(dag: Dag, behaviours: Mapping[str, Behaviour]) -> dict[str, Any]:
    """Run a dag one node after the other, with nothing but the rules."""
    inputs: dict[str, Any] = {}
    skipped, blocked, failed, data = set[str](), set[str](), set[str](), dict[str, Any]()
    dead_edges: set[tuple[str, str]] = set()
    left = {node.id: node for node in dag.nodes}
    while left:
        node = next(one for one in left.values() if not any(parent in left for parent in one.inputs))
        del left[node.id]
        if any(parent in blocked or parent in failed for parent in node.inputs):
            blocked.add(node.id)
            continue
        live = [p for p in node.inputs if p not in skipped and (p, node.id) not in dead_edges]
        if node.inputs and not live:
            skipped.add(node.id)
            continue
        if not node.inputs:
            inputs[node.id] = "input"
        elif len(node.inputs) == 1:
            inputs[node.id] = data[node.inputs[0]]
        else:
            inputs[node.id] = {p: data[p] if p in live else None for p in node.inputs}
        behaviour = behaviours[node.id]
        if behaviour.does == SKIP:
            skipped.add(node.id)
        elif behaviour.does == FAIL and not node.continue_on_fail:
            failed.add(node.id)
        elif behaviour.does == FAIL:
            data[node.id] = {"error": {"error": "no"}}
        else:
            data[node.id] = make_data(node.id)
            if behaviour.does == CHOOSE:
                dead_edges |= {
                    (node.id, c.id) for c in dag.nodes if node.id in c.inputs and c.id not in behaviour.chosen
                }
    parents = {parent for node in dag.nodes for parent in node.inputs}
    ends = {node.id: data[node.id] for node in dag.nodes if node.id not in parents and node.id in data}
    result = next(iter(ends.values())) if len(ends) == 1 else ends or None
    status = "failed" if failed else "completed"
    return {"inputs": inputs, "skipped": skipped, "status": status, "result": None if failed else result}


def make_data(node: str) -> str:
    """Return the data of a node: of some it is too large to wait in the record."""
    return f"from {node}" + "x" * (200 if node in ("n1", "n4") else 0)


class Simulation:
    """Runs a dag with the decider, with the record encoded and decoded after each fact, as a store does."""

    def __init__(self, dag: Dag, behaviours: Mapping[str, Behaviour], order: random.Random) -> None:
        self.plan, self.behaviours, self.order = Plan(dag, 1), behaviours, order
        self.kept: dict[tuple[int, int], Any] = {}
        self.queue: list[tuple[int, Any]] = []
        self.inputs: dict[str, Any] = {}
        self.skipped: set[str] = set()
        self.ends = 0

    def run(self) -> DagRecord:
        record = DagRecord("random", 1, "r", 0)
        record = self._apply(Decider("r", record, self.plan, 0).on_start(b'"input"', "start"))
        while self.queue:
            node, payload = self.queue.pop(self.order.randrange(len(self.queue)))
            record = self._execute(record, node, payload)
        return record

    def _execute(self, record: DagRecord, n: int, payload: Any) -> DagRecord:
        node, parents = self.plan.nodes[n], self.plan.parents[n]
        assert node.id not in self.inputs, f"{node.id} was executed twice"
        if self.plan.limit is not None:
            assert payload is None  # what it receives is state of the run
            payload = {} if len(parents) > 1 else self.kept[parents[0], n] if parents else "input"
        if len(parents) > 1:
            known = {p: self.kept.get((p, n)) for p in parents}
            payload = {self.plan.nodes[p].id: payload.get(self.plan.nodes[p].id, known[p]) for p in parents}
        self.inputs[node.id] = payload
        behaviour, ended = self.behaviours[node.id], EndedNode(n, f"r.{node.id}.1", 1, 0)
        decider = Decider("r", record, self.plan, 0)
        if behaviour.does == SKIP:
            decision = decider.on_skipped(ended, "why not")
        elif behaviour.does == FAIL:
            decision = decider.on_failed(ended, {"error": "no"}, 1)
        else:
            chosen = behaviour.chosen if behaviour.does == CHOOSE else None
            decision = decider.on_completed(ended, encode(make_data(node.id)), chosen)
        assert decision is not None
        return self._apply(decision)

    def _apply(self, decision: Decision) -> DagRecord:
        for kept in decision.kept:
            self.kept[kept.node, kept.reader] = msgspec.json.decode(kept.data)
        self.queue += [(start.node, msgspec.json.decode(start.input)) for start in decision.starts]
        self.skipped |= {event.step for event in decision.events if event.kind == "node.skipped" and event.step}
        if self.plan.limit is not None:
            assert len(self.queue) <= self.plan.limit
            assert decision.record.open_count == len(self.queue)
        self.ends += sum(event.kind in ("flow.completed", "flow.failed") for event in decision.events)
        return decode(encode(decision.record))


@pytest.mark.spec("004-5.4")
@given(dags(), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_a_random_dag_ends_as_a_sequential_interpreter_says(
    case: tuple[Dag, dict[str, Behaviour]], order: random.Random
) -> None:
    check_random_dag(case, order)


def check_random_dag(case: tuple[Dag, dict[str, Behaviour]], order: random.Random) -> None:
    dag, behaviours = case
    expected = interpret(dag, behaviours)
    simulation = Simulation(dag, behaviours, order)
    record = simulation.run()
    assert record.status == expected["status"]
    assert simulation.inputs == expected["inputs"]
    assert simulation.skipped == expected["skipped"]
    assert simulation.ends == 1
    if not record.failed_count:
        assert msgspec.json.decode(record.result() or b"") == expected["result"]
        assert not record.joins
    for n, node in enumerate(dag.nodes):
        assert has_bit(record.started, n) == (node.id in simulation.inputs)


@given(dags(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_a_node_that_has_ended_ends_once(case: tuple[Dag, dict[str, Behaviour]], order: random.Random) -> None:
    dag, behaviours = case
    simulation = Simulation(dag, behaviours, order)
    record = simulation.run()
    for n in range(len(dag.nodes)):
        ended = EndedNode(n, "job", 1, 0)
        for decide in (
            lambda d, e=ended: d.on_completed(e, b"1"),
            lambda d, e=ended: d.on_skipped(e, ""),
            lambda d, e=ended: d.on_failed(e, {}, 1),
            lambda d, e=ended: d.on_retry(e, {}, 1, 0),
            lambda d, e=ended: d.on_suspended(e),
        ):
            assert decide(Decider("r", decode(encode(record)), simulation.plan, 0)) is None


def test_a_cancelled_run_starts_nothing_more() -> None:
    plan = Plan(Dag("d", (Node("a", "t"), Node("b", "t", ("a",)))), 1)
    record = Decider("r", DagRecord("d", 1, "r", 0), plan, 0).on_start(b"1", "start").record
    record = Decider("r", record, plan, 0).on_cancel("enough").record
    assert record.status == "cancelled"
    assert Decider("r", record, plan, 0).on_completed(EndedNode(0, "r.a.1", 1, 0), b"1") is None


def test_a_failed_node_is_retried_and_the_run_goes_on() -> None:
    plan = Plan(Dag("d", (Node("a", "t"), Node("b", "t"), Node("c", "t", ("a", "b")))), 1)
    record = Decider("r", DagRecord("d", 1, "r", 0), plan, 0).on_start(b"1", "start").record
    steps = [
        lambda d: d.on_completed(EndedNode(0, "r.a.1", 1, 0), b'"A"'),
        lambda d: d.on_failed(EndedNode(1, "r.b.1", 1, 0), {"error": "no"}, 1),
    ]
    for step in steps:
        record = step(Decider("r", record, plan, 0)).record
    assert (record.status, record.failures[0].step) == ("failed", "b")
    assert Decider("r", record, plan, 0).on_retry_failed(0, "x") is None  # it has completed
    record = Decider("r", record, plan, 0).on_retry_failed(1, "r.b.2").record  # type: ignore[union-attr]
    assert (record.status, record.job_number(1), record.failures) == ("running", 2, [])
    decision = Decider("r", record, plan, 0).on_completed(EndedNode(1, "r.b.2", 1, 0), b'"B"')
    assert decision is not None
    assert [(start.node, start.input) for start in decision.starts] == [(2, b'{"a":"A","b":"B"}')]


@pytest.mark.parametrize("shape", ["chain", "fan-out", "grid"])
def test_the_record_of_a_large_dag_stays_small(shape: str) -> None:
    """A commit of a dag of ten thousand nodes writes at most two bits for each node more."""
    nodes = {
        "chain": [Node(f"n{n}", "t", (f"n{n - 1}",) if n else ()) for n in range(10_000)],
        "fan-out": [Node("a", "t"), *(Node(f"n{n}", "t", ("a",)) for n in range(9_998)), Node("z", "t", tuple(f"n{n}" for n in range(9_998)))],
        "grid": [
            Node(f"n{x}-{y}", "t", tuple(f"n{p}-{q}" for p, q in ((x - 1, y), (x, y - 1)) if p >= 0 and q >= 0))
            for x in range(100)
            for y in range(100)
        ],
    }[shape]  # fmt: skip
    plan = Plan(Dag("d", tuple(nodes)), 1)
    record = DagRecord("d", 1, "r", 0)
    queue = list(Decider("r", record, plan, 0).on_start(b"1", "start").starts)
    largest = 0
    for executed in range(len(nodes)):
        start = queue.pop(0)
        decision = Decider("r", record, plan, 0).on_completed(EndedNode(start.node, "j", 1, 0), b"1")
        assert decision is not None
        queue += decision.starts
        if executed % 500 == 0:
            largest = max(largest, len(encode(record)))
    assert record.status == "completed"
    assert largest < 2 * 10_000 / 8 * 4 / 3 + 5_000  # two bits in base64, and the joins of one diagonal with small data
