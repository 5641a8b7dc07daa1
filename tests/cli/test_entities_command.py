"""`penstock entities`: emit, list, show, history, diagram."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

TALLY = """
from penstock.entities import States, Transition, entity


def add(data, payload):
    data["sum"] = data.get("sum", 0) + payload


@entity("tally")
class Tally:
    events = {"add": int}
    states = States("open", idles=["open"], finals=["done"])
    transitions = [Transition("add", "open", "open", actions=[add]), Transition("finish", "open", "done")]
"""


@pytest.fixture
def tally(project: Path) -> Path:
    (project / "workers" / "tally.py").write_text(TALLY)
    return project


def test_entities_are_emitted_to_and_listed(tally: Path, penstock: Callable) -> None:
    assert "[not_found]" in penstock("entities").err
    assert penstock("entities", "types", "--json").json[0]["counts"] == {"open": 0, "done": 0}  # it needs no store
    assert not list(tally.glob("*.db"))
    penstock("start", "greet")
    assert "No entities." in penstock("entities").err
    assert penstock("entities", "emit", "urn:tally:1", "add", "--payload", "3").out == "Emitted add to urn:tally:1.\n"
    again = penstock("entities", "emit", "urn:tally:1", "add", "--payload", "4", "--key", "k", "--json")
    assert (again.json["n"], again.json["isNew"]) == (2, True)
    assert not penstock("entities", "emit", "urn:tally:1", "add", "--payload", "4", "--key", "k", "--json").json[
        "isNew"
    ]
    row = penstock("entities", "list", "--type", "tally", "--status", "open", "--json").json
    assert (row["urn"], row["waiting"]) == ("urn:tally:1", 2)
    shown = penstock("entities", "show", "urn:tally:1", "--json").json
    assert (shown["status"], shown["waiting"]) == ("open", {"1": "add", "2": "add"})
    assert "urn:tally:1" in penstock("entities", "show", "urn:tally:1").out
    assert "run `penstock entities show urn:tally:1`" in penstock("runs", "show", shown["id"]).err
    assert "No events." in penstock("entities", "history", "urn:tally:1").err
    assert "stateDiagram-v2" in penstock("entities", "diagram", "tally", "--urn", "urn:tally:1").out
    assert penstock("entities", "types", "--json").json[0]["counts"] == {"open": 1, "done": 0}
    wrong = penstock("entities", "emit", "urn:tally:1", "ad")
    assert wrong.code != 0
    assert "did you mean 'add'" in wrong.err
