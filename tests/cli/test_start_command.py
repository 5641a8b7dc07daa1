"""`penstock start` starts a run for a worker."""

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


def test_an_existing_run_is_reported(penstock: Callable) -> None:
    assert penstock("start", "greet", "--key", "mine", "--input", '"Ada"').err == ""
    again = penstock("start", "greet", "--key", "mine", "--input", '"Ada"', "--json")
    assert again.json == {"id": "mine", "existing": True, "differs": False}
    assert again.err == "Run mine already exists; nothing was started. Show it with `penstock runs show mine`.\n"
    other = penstock("start", "greet", "--key", "mine", "--input", '"Bob"')
    assert (other.code, other.out) == (0, "mine\n")
    assert "run 'mine' already exists with a different input; the new input is ignored" in other.err
    assert "Run mine already exists with another input; nothing was started." in other.err
    assert penstock("start", "greet", "--key", "mine", "--input", '"Bob"', "--json").json["differs"] is True
    run = penstock("run", "greet", "--key", "mine", "--input", '"Bob"')
    assert "already exists with a different input" in run.err
    assert "Hello, Ada!" in run.out


def test_a_key_of_the_flow_is_found_too(penstock: Callable, project: Path) -> None:
    (project / "workers" / "bill.py").write_text(
        "from penstock import flow\n@flow('bill', key=lambda o: f'bill-{o}')\ndef bill(o): ...\n"
    )
    assert penstock("start", "bill", "--input", "7", "--json").json == {"id": "bill-7", "existing": False}
    assert penstock("start", "bill", "--input", "7", "--json").json == {
        "id": "bill-7",
        "existing": True,
        "differs": False,
    }


def test_output_of_a_worker_file_stays_out_of_the_answer(penstock: Callable, project: Path) -> None:
    (project / "workers" / "loud.py").write_text("print('hello from an import')\n")
    assert penstock("start", "greet", "--key", "mine").out == "mine\n"
