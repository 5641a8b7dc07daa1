"""`penstock dags`: definitions from files, their versions, and what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

NODES = """
from penstock.dags import Fail, node

@node("greet")
async def greet(input):
    return f"Hello, {input}!"

@node("fail")
async def fail(input):
    return Fail("out of stock", retry=False)
"""
GREETING = {"id": "greeting", "name": "A greeting", "nodes": [{"id": "a", "type": "greet"}]}
YAML = """
id: greeting
name: A greeting
nodes:
  - {id: a, type: greet}
  - {id: b, type: greet, inputs: [a], timeout: 5s}
"""


@pytest.fixture
def dags(project: Path) -> Path:
    (project / "workers" / "nodes.py").write_text(NODES)
    (project / "greeting.json").write_text(json.dumps(GREETING))
    (project / "greeting.yaml").write_text(YAML)
    return project


@pytest.mark.spec("004-4.6")
def test_definitions_are_registered_shown_and_compared(dags: Path, penstock: Callable) -> None:
    first = penstock("dags", "register", "greeting.json", "--notes", "first")
    assert first.out == "Dag greeting is registered as version 1.\n"
    assert penstock("dags", "register", "greeting.yaml", "--notes", "two greetings", "--json").json["version"] == 2
    row = penstock("dags", "--json").json
    assert [(one["version"], one["notes"]) for one in row["versions"]] == [(1, "first"), (2, "two greetings")]
    shown = penstock("dags", "show", "greeting")
    assert "two greetings" in shown.out
    assert penstock("dags", "show", "greeting", "--version", "1", "--json").json["definition"]["nodes"] == [
        {"id": "a", "type": "greet"}
    ]
    changes = penstock("dags", "compare", "greeting", "1", "2", "--json").json
    assert changes == {"added": ["b"], "removed": [], "changed": {}, "fields": []}
    assert "added" in penstock("dags", "compare", "greeting", "1", "2").out


def test_a_mistake_names_its_path_and_stores_nothing(dags: Path, penstock: Callable) -> None:
    nodes = [{"id": "charge", "type": "greet"}, {"id": "b", "type": "gret", "inputs": ["charg"]}]
    (dags / "bad.json").write_text(json.dumps({"id": "bad", "nodes": nodes}))
    answer = penstock("dags", "check", "bad.json")
    assert answer.code == 2
    assert "nodes[1].inputs[0]: no node 'charg'; did you mean 'charge'?" in answer.err
    nodes[1]["inputs"] = ["charge"]
    (dags / "bad.json").write_text(json.dumps({"id": "bad", "nodes": nodes}))
    answer = penstock("dags", "register", "bad.json")
    assert (answer.code, "nodes[1].type: no executor for 'gret'; did you mean 'greet'?" in answer.err) == (2, True)
    assert "No dags." in penstock("dags").err
    assert penstock("dags", "check", "none.json").code == 2


def test_check_prints_warnings_and_creates_no_store(dags: Path, penstock: Callable) -> None:
    nodes = [{"id": "a", "type": "greet"}, {"id": "b", "type": "greet"}]
    (dags / "loose.json").write_text(json.dumps({"id": "loose", "nodes": nodes}))
    answer = penstock("dags", "check", "loose.json")
    assert answer.out == "Dag loose with 2 nodes is valid.\n"
    assert "Warning: loose.json: nodes[0]: 'a' is connected to no other node" in answer.err
    assert not (dags / ".penstock").exists()


def test_a_deactivated_dag_starts_nothing(dags: Path, penstock: Callable) -> None:
    penstock("dags", "register", "greeting.json")
    assert penstock("dags", "deactivate", "greeting").out == "Dag greeting is deactivated.\n"
    answer = penstock("start", "greeting", "--input", '"Ada"')
    assert (answer.code, "dag 'greeting' is deactivated" in answer.err) == (2, True)
    assert penstock("dags", "activate", "greeting", "--json").json == {
        "id": "greeting", "active": True, "changed": True,
    }  # fmt: skip
    assert penstock("dags", "activate", "greeting").out == "Dag greeting is active already.\n"
    assert penstock("run", "greeting", "--input", '"Ada"').code == 0


def test_run_runs_and_events_show_a_dag(dags: Path, penstock: Callable) -> None:
    penstock("dags", "register", "greeting.yaml")
    ran = penstock("run", "greeting", "--input", '"Ada"', "--key", "r1", "--json")
    assert ran.code == 0
    assert "Hello, Hello, Ada!!" in ran.out
    shown = penstock("runs", "show", "r1")
    assert "greeting" in shown.out
    kinds = [json.loads(line)["kind"] for line in penstock("events", "r1", "--json").lines]
    assert kinds[0] == "flow.started"
    assert kinds.count("node.completed") == 2


def test_a_failed_node_is_retried(dags: Path, penstock: Callable) -> None:
    (dags / "failing.json").write_text(json.dumps({"id": "failing", "nodes": [{"id": "a", "type": "fail"}]}))
    penstock("dags", "register", "failing.json")
    assert penstock("run", "failing", "--key", "r1").code == 1
    assert penstock("dags", "retry", "r1").out == "Enqueued r1.a.2.\n"


def test_a_diagram_is_drawn(dags: Path, penstock: Callable) -> None:
    penstock("dags", "register", "greeting.yaml")
    graph = penstock("diagram", "greeting", "--json").json
    assert graph == {
        "nodes": [{"id": "a", "type": "greet"}, {"id": "b", "type": "greet"}],
        "edges": [{"from": "a", "to": "b", "type": "input"}],
    }
    assert "n0 --> n1" in penstock("diagram", "greeting", "--format", "mermaid").out
    assert penstock("diagram", "greeting", "--format", "svg").out.startswith("<svg")
    missing = penstock("diagram", "greting")
    assert missing.code == 2


def test_a_definition_beside_the_workers_is_registered_once(dags: Path, penstock: Callable) -> None:
    file = dags / "workers" / "greeting.dag.json"
    file.write_text(json.dumps(GREETING))
    assert json.loads(penstock("run", "greeting", "--input", '"Ada"', "--json").out.splitlines()[-1])
    assert penstock("dags", "--json").json["version"] == 1
    assert penstock("dags", "register", "greeting.yaml").code == 0
    penstock("run", "greeting", "--input", '"Ada"')  # the file has the older version: it stays so
    row = penstock("dags", "--json").json
    assert [one["notes"] for one in row["versions"]] == ["from greeting.dag.json", ""]
    file.write_text(json.dumps({"id": "greeting", "nodes": [{"id": "a", "type": "gret"}]}))
    checked = penstock("check")
    assert "Error: greeting.dag.json: nodes[0].type: no executor for 'gret'; did you mean 'greet'?" in checked.err
    assert checked.code == 1


def test_check_and_diagram_read_a_file_that_is_not_registered(dags: Path, penstock: Callable) -> None:
    nodes = [{"id": "a", "type": "greet"}, {"id": "b", "type": "greet"}]
    (dags / "workers" / "loose.dag.json").write_text(json.dumps({"id": "loose", "nodes": nodes}))
    penstock("dags", "register", "greeting.json")
    checked = penstock("check", "--json")
    assert checked.code == 0
    assert [(one["file"], one["isWarning"]) for one in checked.json["dags"]] == [("loose.dag.json", True)] * 2
    assert [one["id"] for one in penstock("diagram", "loose", "--json").json["nodes"]] == ["a", "b"]


def write_file(dags: Path, name: str, title: str, id: str = "greeting") -> None:
    definition = {"id": id, "name": title, "nodes": [{"id": "a", "type": "greet"}]}
    (dags / "workers" / f"{name}.dag.json").write_text(json.dumps(definition))


def test_a_file_that_is_reverted_is_the_newest_version_again(dags: Path, penstock: Callable) -> None:
    for title in ("one", "two"):
        write_file(dags, "greeting", title)
        penstock("run", "greeting", "--input", '"Ada"')
    write_file(dags, "greeting", "one")
    ran = penstock("run", "greeting", "--input", '"Ada"')
    assert "version 1 of dag 'greeting' again: registered it as version 3" in ran.err
    versions = penstock("dags", "--json").json["versions"]
    assert [one["notes"] for one in versions] == [
        "from greeting.dag.json",
        "from greeting.dag.json",
        "from greeting.dag.json, again version 1",
    ]
    assert "again" not in penstock("run", "greeting", "--input", '"Ada"').err


def test_a_version_that_was_registered_by_hand_is_not_undone_by_a_file(dags: Path, penstock: Callable) -> None:
    write_file(dags, "greeting", "one")
    penstock("run", "greeting", "--input", '"Ada"')
    penstock("dags", "register", "greeting.json")
    ran = penstock("run", "greeting", "--input", '"Ada"')
    assert "has version 1 of dag 'greeting', and runs start with version 2, which was registered by hand" in ran.err


def test_two_files_with_one_id_are_a_mistake_and_check_needs_no_store(dags: Path, penstock: Callable) -> None:
    write_file(dags, "first", "one")
    write_file(dags, "second", "one")  # the same
    checked = penstock("check")
    assert (checked.code, "No store at" in checked.err) == (0, True), checked.err
    write_file(dags, "second", "two")
    checked = penstock("check")
    assert checked.code == 1
    assert "Error: second.dag.json: dag 'greeting' is defined twice, first in workers/first.dag.json" in checked.err
    assert not list(dags.glob("*.db"))
    ran = penstock("run", "greeting", "--input", '"Ada"')
    assert "is defined twice" in ran.err
    assert penstock("dags", "--json").json["name"] == "one"


def test_check_reports_a_broken_file_without_a_store(dags: Path, penstock: Callable) -> None:
    (dags / "workers" / "bad.dag.json").write_text("{")
    checked = penstock("check", "--json")
    assert (checked.code, checked.json["ok"]) == (1, False)
