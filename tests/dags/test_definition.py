"""Definitions of dags: what is accepted, and what every mistake says."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from penstock import RetryPolicy
from penstock.core.errors import DagInvalid
from penstock.core.retry import Backoff
from penstock.dags import DagBuilder
from penstock.dags.definition import Dag, Node, read_dag
from penstock.dags.warnings import find_warnings


def problems(data: Any) -> tuple[str, ...]:
    with pytest.raises(DagInvalid) as failure:
        read_dag(data)
    return failure.value.problems


def graph(*nodes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "d", "nodes": [{"type": "t", **one} for one in nodes], **fields}


@pytest.mark.spec("004-1.1")
def test_json_mapping_and_builder_are_the_same_dag() -> None:
    builder = DagBuilder("d", name="D", priority=3, delay="1s")
    builder.add("a", "t")
    builder.add("b", "t", after="a", config={"x": 1}, retry=3, timeout="5s", delay="2s", continue_on_fail=True)
    text = """{"id": "d", "name": "D", "priority": 3, "delay": "1s", "entryNodeId": null, "nodes": [
        {"id": "a", "type": "t", "outputs": ["b"]},
        {"id": "b", "type": "t", "config": {"x": 1}, "retry": 3, "timeout": "5s", "delay": "2s",
         "continueOnFail": true}]}"""
    assert read_dag(text) == builder.build()
    (first, second) = builder.build().nodes
    assert (first.inputs, second.inputs, second.timeout_ms, second.delay_ms) == ((), ("a",), 5000, 2000)
    assert second.retry is not None
    assert second.retry.attempts == 3


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([], "a dag must be an object with id and nodes, got []"),
        ({"id": "d", "nodes": []}, "nodes: must be a list of at least one node, got []"),
        (graph({"id": "a"}, tpyo=1), "tpyo: unknown field; known fields: delay, entryNodeId, id, maxConcurrency, name, nodes, priority, triggers"),
        (graph({"id": "a", "input": []}), "nodes[0].input: unknown field; did you mean 'inputs'?"),
        (
            graph({"id": "charge"}, {"id": "b", "inputs": ["charg"]}),
            "nodes[1].inputs[0]: no node 'charg'; did you mean 'charge'?",
        ),
        (graph({"id": "a"}, {"id": "a"}), "nodes[1].id: 'a' is the id of nodes[0] too"),
        (graph({"id": "a", "outputs": ["x"]}), "nodes[0].outputs[0]: no node 'x'"),
        (graph({"id": "a"}, {"id": "b", "inputs": ["a", "a"]}), "nodes[1].inputs[1]: 'a' is listed twice"),
        (graph({"id": "a"}, entryNodeId="b"), "entryNodeId: no node 'b'"),
        (
            graph({"id": "a"}, {"id": "b", "inputs": ["a"]}, entryNodeId="b"),
            "entryNodeId: node 'b' has inputs, so it is not an entry",
        ),
        (graph({"id": "a b"}), "nodes[0].id: invalid name 'a b'; use at most"),
        (graph({"id": "a", "inputs": "b"}), "nodes[0].inputs: must be a list of node ids, got 'b'"),
        (graph({"id": "a", "continueOnFail": "yes"}), "nodes[0].continueOnFail: must be true or false, got 'yes'"),
        (graph({"id": "a", "timeout": "soon"}), "nodes[0].timeout: "),
        (graph({"id": "a", "retry": "often"}), "nodes[0].retry: retry must be a number of attempts"),
        (graph({"id": "a", "rateLimit": 5}), "nodes[0].rateLimit: rateLimit must be a string such as"),
        (graph({"id": "a"}, triggers={}), "triggers: must be a list, got {}"),
        (graph({"id": "a"}, triggers=[{"schedul": "1h"}]), "triggers[0]: a trigger must be an object with one of "),
        (graph({"id": "a"}, triggers=[{"schedule": "61 * * * *"}]), "triggers[0]: "),
        (graph({"id": "a"}, triggers=[{"webhook": {"path": "a b"}}]), "triggers[0]: the path of a webhook must have"),
        (graph({"id": "a"}, triggers=[{"event": "Not A Kind"}]), "triggers[0]: "),
        (graph({"id": "a", "config": {"x": "{{ nodes. }}"}}), "nodes[0].config: {{ nodes. }}: expected a name after '.'"),
        (graph({"id": "a", "config": "{{ nodes.b.data }}"}), "nodes[0].config: no node 'b'"),
        (
            graph({"id": "a"}, {"id": "b", "config": "{{ nodes.a.data }}"}),
            "nodes[1].config: node 'a' does not come before 'b'; add it to inputs",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_shown_with_its_path(data: Any, expected: str) -> None:
    (found,) = problems(data)
    assert found.startswith(expected)


def test_a_cycle_is_shown_in_the_direction_of_its_edges() -> None:
    nodes = graph(
        {"id": "s"}, {"id": "a", "inputs": ["s", "c"]}, {"id": "b", "inputs": ["a"]}, {"id": "c", "inputs": ["b"]}
    )
    (found,) = problems(nodes)
    assert found.partition(": ")[2] in (
        "a cycle: a -> b -> c -> a",
        "a cycle: b -> c -> a -> b",
        "a cycle: c -> a -> b -> c",
    )


def test_a_graph_in_which_nothing_can_start() -> None:
    found = problems(graph({"id": "a", "inputs": ["b"]}, {"id": "b", "inputs": ["a"]}))
    assert found[0] == "nodes: no node without inputs, so none can start"


def test_every_mistake_is_reported_at_once() -> None:
    found = problems(graph({"id": "a", "inputs": ["x"]}, {"id": "b", "inputs": ["y"]}))
    assert len(found) == 2
    with pytest.raises(DagInvalid, match=r"nodes\[0\].inputs\[0\]: no node 'x'; nodes\[1\].inputs\[0\]: no node 'y'"):
        read_dag(graph({"id": "a", "inputs": ["x"]}, {"id": "b", "inputs": ["y"]}))


def test_warnings() -> None:
    alone = read_dag(graph({"id": "a"}, {"id": "b", "inputs": ["a"]}, {"id": "c"}))
    assert [str(one) for one in find_warnings(alone)] == [
        "nodes[2]: 'c' is connected to no other node; it starts with the run"
    ]
    entry = read_dag(graph({"id": "a"}, {"id": "b", "inputs": ["c"]}, {"id": "c"}, entryNodeId="a"))
    assert [one.path for one in find_warnings(entry)] == ["nodes[1]", "nodes[2]"]
    assert find_warnings(read_dag(graph({"id": "a"}))) == []


def branching(*cases: dict[str, Any], default: Any = (), **extra: Any) -> Any:
    after = [{"id": id, "type": "transform", "inputs": ["choose"]} for id in ("high", "low")]
    config = {"cases": list(cases), "default": list(default)}
    return {"id": "d", "nodes": [{"id": "choose", "type": "branch", "config": config}, *after], **extra}


def test_warnings_about_branches_and_unused_data() -> None:
    dag = read_dag(branching({"when": "{{ input.big }}", "next": ["high"]}))
    assert [str(one) for one in find_warnings(dag)] == [
        "nodes[2].inputs: no case of the branch 'choose' names 'low', so it never follows from there",
        "nodes[1]: no node uses the data of 'high', a transform node",
        "nodes[2]: no node uses the data of 'low', a transform node",
    ]
    by_expression = read_dag(branching({"when": True, "next": "{{ input.next }}"}))
    assert [one.path for one in find_warnings(by_expression)] == ["nodes[1]", "nodes[2]"]


def test_a_branch_names_nodes_that_follow_it() -> None:
    found = problems(branching({"when": True, "next": ["hihg"]}, default=["x"]))
    assert list(found) == [
        "nodes[0].config.cases[0].next[0]: 'hihg' does not follow 'choose'; did you mean 'high'?",
        "nodes[0].config.default[0]: 'x' does not follow 'choose'; nodes after it: high, low",
    ]


async def test_a_type_without_an_executor_and_a_config_that_does_not_fit(memory: Any) -> None:
    async with memory() as a:
        nodes = [
            {"id": "a", "type": "dely"},
            {"id": "b", "type": "transform", "config": {"outptu": 1}},
            {"id": "c", "type": "branch"},
        ]
        with pytest.raises(DagInvalid) as failure:
            await a.dags.register({"id": "d", "nodes": nodes})
        first, second, third = failure.value.problems
        assert first == "nodes[0].type: no executor for 'dely'; did you mean 'delay'?"
        assert second.startswith("nodes[1].config: the config of 'transform' does not match TransformConfig: ")
        assert third.startswith("nodes[2].config: the config of 'branch' does not match BranchConfig: ")
        assert await a.dags.list() == []


def test_a_dag_that_was_built_without_a_check_is_checked() -> None:
    cycle = Dag("d", (Node("a", "t", ("b",)), Node("b", "t", ("a",))))
    assert "so none can start" in problems(cycle)[0]
    retry = RetryPolicy(3, Backoff("fixed", 7, jitter=False), retriable_errors=("OSError",))
    node = Node("b", "t", ("a",), {"x": 1}, True, retry, 5000, 70)
    full = Dag("d", (Node("a", "t"), node), "title", 3, 9, "a")
    assert read_dag(full) == full


@pytest.mark.parametrize("shape", ["join", "chain with references"])
def test_a_large_dag_is_checked_in_one_pass(shape: str) -> None:
    """Counts the executed lines, not the time: they grow with the nodes and the edges."""

    def count_lines(size: int) -> int:
        if shape == "join":
            nodes: list[dict[str, Any]] = [{"id": f"n{n}"} for n in range(size)]
            nodes.append({"id": "z", "inputs": [f"n{n}" for n in range(size)]})
        else:
            config = "{{ nodes.n0.data }}"
            later = [{"id": f"n{n}", "inputs": [f"n{n - 1}"], "config": config} for n in range(1, size)]
            nodes = [{"id": "n0"}, *later]
        lines = 0

        def count(*_: Any) -> Any:
            nonlocal lines
            lines += 1
            return count

        sys.settrace(count)
        try:
            read_dag(graph(*nodes))
        finally:
            sys.settrace(None)
        return lines

    assert count_lines(400) < 5 * count_lines(100)


def test_a_long_cycle_is_shown_with_its_first_nodes() -> None:
    size = 2_000
    nodes: list[dict[str, Any]] = [{"id": f"n{n}", "inputs": [f"n{(n - 1) % size}"]} for n in range(size)]
    nodes[0]["inputs"].append("s")
    (found,) = problems(graph({"id": "s"}, *nodes))
    assert found.endswith("(2000 nodes)")
    assert len(found) < 200


def test_spellings_of_other_engines_in_the_config() -> None:
    policy = {"maxAttempts": 5, "backoff": {"type": "fixed", "delay": 250}, "continueOnFail": True}
    dag = read_dag(
        graph(
            {"id": "a", "config": {"retryPolicy": policy, "url": "u"}},
            {"id": "b", "type": "sub-workflow", "config": {"workflowId": "w", "continueOnFail": True}},
            {"id": "c", "type": "map", "config": {"items": [], "workflowId": "w", "continueOnFail": True}},
            {"id": "d", "retry": 2, "config": {"retryPolicy": policy}},
        )
    )
    first, second, third, fourth = dag.nodes
    assert (first.config, first.continue_on_fail) == ({"url": "u"}, True)
    assert first.retry is not None
    assert (first.retry.attempts, first.retry.backoff.type, first.retry.backoff.delay_ms) == (5, "fixed", 250)
    assert (second.config, second.continue_on_fail) == ({"workflowId": "w"}, True)
    assert (third.config["continueOnFail"], third.continue_on_fail) == (True, False)
    assert fourth.retry is not None
    assert fourth.retry.attempts == 2
