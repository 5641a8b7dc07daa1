"""`penstock start`: a run for someone else to work on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def test_it_prints_the_id_and_starts_only(penstock: Callable) -> None:
    answer = penstock("start", "greet", "--input", '"Ada"')
    assert answer.code == 0
    id = answer.out.strip()
    run = penstock("runs", "show", id, "--json").json
    assert (run["status"], run["steps"]) == ("running", {})


def test_json(penstock: Callable) -> None:
    assert penstock("start", "greet", "--key", "mine", "--json").json == {"id": "mine", "existing": False}


def test_the_same_key_starts_once(penstock: Callable) -> None:
    for _ in range(2):
        assert penstock("start", "greet", "--key", "mine").out == "mine\n"
    assert len(penstock("runs", "--json").lines) == 1


def test_a_run_that_was_there_is_said(penstock: Callable) -> None:
    assert penstock("start", "greet", "--key", "mine", "--input", '"Ada"').err == ""
    again = penstock("start", "greet", "--key", "mine", "--input", '"Ada"', "--json")
    assert again.json == {"id": "mine", "existing": True}
    assert again.err == ("Run mine was started before: no other one was started. `penstock runs show mine` shows it.\n")
    other = penstock("start", "greet", "--key", "mine", "--input", '"Bob"')
    assert (other.code, other.out) == (0, "mine\n")
    assert "run 'mine' exists and was started with another input: it goes on with that one" in other.err
    run = penstock("run", "greet", "--key", "mine", "--input", '"Bob"')
    assert "was started with another input" in run.err
    assert "Hello, Ada!" in run.out


def test_a_key_that_the_flow_makes_is_found_too(penstock: Callable, project: Path) -> None:
    (project / "workers" / "bill.py").write_text(
        "from penstock import flow\n@flow('bill', key=lambda o: f'bill-{o}')\ndef bill(o): ...\n"
    )
    assert penstock("start", "bill", "--input", "7", "--json").json == {"id": "bill-7", "existing": False}
    assert penstock("start", "bill", "--input", "7", "--json").json == {"id": "bill-7", "existing": True}


def test_a_worker_file_that_prints_does_not_disturb_the_id(penstock: Callable, project: Path) -> None:
    (project / "workers" / "loud.py").write_text("print('hello from an import')\n")
    assert penstock("start", "greet", "--key", "mine").out == "mine\n"
