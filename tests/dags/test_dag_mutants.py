"""The checks of decisions fail on the bugs they guard against."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from test_node_decisions import CHOOSE, FAIL, OK, SKIP, Behaviour, check_random_dag

from penstock.dags.decide import Decider, EndedNode
from penstock.dags.definition import Dag, Node
from penstock.dags.plan import Plan
from penstock.dags.run_record import DagRecord, Join

DIAMOND = Dag(
    "d", (Node("a", "t"), Node("b", "t", ("a",)), Node("c", "t", ("a",)), Node("e", "t", ("b", "c")), Node("f", "t"))
)
LIMITED = Dag("d", tuple(Node(f"n{n}", "t") for n in range(5)), max_concurrency=2)


def ok(dag: Dag, **others: Behaviour) -> dict[str, Behaviour]:
    return {node.id: others.get(node.id, Behaviour(OK)) for node in dag.nodes}


CASES = [
    (DIAMOND, ok(DIAMOND)),
    (DIAMOND, ok(DIAMOND, b=Behaviour(SKIP))),
    (DIAMOND, ok(DIAMOND, b=Behaviour(SKIP), c=Behaviour(SKIP))),
    (DIAMOND, ok(DIAMOND, a=Behaviour(CHOOSE, ("c",)))),
    (DIAMOND, ok(DIAMOND, b=Behaviour(FAIL))),
    (LIMITED, ok(LIMITED)),
]


def check_all() -> None:
    for case in CASES:
        for seed in range(20):
            check_random_dag(case, random.Random(seed))


def join_at_once(self: Any, child: int, parent: int, data: bytes | None, cause: str) -> bool:
    """A join that starts with its first input, and again with the next one."""
    self._record.joins[child] = Join(1)
    return original_arrive(self, child, parent, data, cause)


def skip_with_one_parent(self: Any, child: int, parent: int, data: bytes | None, cause: str) -> bool:
    """A node that is skipped although only one of its parents was."""
    return True if data is None else original_arrive(self, child, parent, data, cause)


def end_early(self: Any, cause: str) -> None:
    """A run that completes while nodes of it are open."""
    count, self._record.open_count = self._record.open_count, 0
    original_settle(self, cause)
    self._record.open_count = count


def forget_held(self: Any, cause: str) -> None:
    """Nodes that were held are never started."""


def never_full(self: Any, limit: int) -> bool:
    return False


original_arrive, original_settle = Decider._arrive, Decider._settle
MUTANTS: list[tuple[str, Callable[..., Any]]] = [
    ("_arrive", join_at_once),
    ("_arrive", skip_with_one_parent),
    ("_settle", end_early),
    ("_start_held", forget_held),
    ("_is_full", never_full),
]


def test_the_cases_hold() -> None:
    check_all()


@pytest.mark.parametrize(("name", "mutant"), MUTANTS, ids=lambda one: getattr(one, "__name__", one))
def test_a_mutant_is_seen(name: str, mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decider, name, mutant)
    with pytest.raises((AssertionError, KeyError)):
        check_all()


def test_a_decider_that_ends_a_node_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers report the same node: the second one must change nothing."""

    def complete_twice() -> list[Any]:
        plan = Plan(Dag("d", (Node("a", "t"), Node("b", "t", ("a",)))), 1)
        record = Decider("r", DagRecord("d", 1, "r", 0), plan, 0).on_start(b"1", "start").record
        decisions = []
        for _ in range(2):
            decision = Decider("r", record, plan, 0).on_completed(EndedNode(0, "r.a.1", 1, 0), b"1")
            decisions.append(decision)
            record = decision.record if decision is not None else record
        return decisions

    assert complete_twice()[1] is None
    monkeypatch.setattr(Decider, "_end", lambda _self, _node: True)
    assert complete_twice()[1] is not None
