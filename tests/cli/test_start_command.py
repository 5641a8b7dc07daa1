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
    assert penstock("start", "greet", "--key", "mine", "--json").json == {"id": "mine"}


def test_the_same_key_starts_once(penstock: Callable) -> None:
    for _ in range(2):
        assert penstock("start", "greet", "--key", "mine").out == "mine\n"
    assert len(penstock("runs").lines) == 1


def test_a_worker_file_that_prints_does_not_disturb_the_id(penstock: Callable, project: Path) -> None:
    (project / "workers" / "loud.py").write_text("print('hello from an import')\n")
    assert penstock("start", "greet", "--key", "mine").out == "mine\n"
