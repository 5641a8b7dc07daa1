"""Commands show where a failure happened in the user's code, and name the command that shows the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

LINE = 6
RAISES = 'raise ValueError("it does not work")'


@pytest.fixture
def run(penstock: Callable) -> str:
    assert penstock("run", "fails", "--key", "f-1").code == 1
    return "f-1"


def test_run_ends_with_the_traceback_of_user_code(penstock: Callable) -> None:
    answer = penstock("run", "fails", "--key", "f-1")
    lines = answer.err.splitlines()
    start = lines.index("Traceback (most recent call last):")
    assert lines[start + 1 :] == [
        f'  File "workers/fails.py", line {LINE}, in fails',
        f"    {RAISES}",
        "ValueError: it does not work",
        "`penstock dlq show f-1.fails.1.dlq` shows its input and its whole stack.",
    ]
    assert answer.err.count("Traceback") == 1


def test_run_with_json_has_the_frames(penstock: Callable, project: Path) -> None:
    answer = penstock("run", "fails", "--key", "f-1", "--json")
    step = answer.json["steps"]["fails"]
    assert (step["file"], step["line"]) == (str(project / "workers" / "fails.py"), LINE)
    assert step["frames"][0]["source"] == RAISES
    assert step["deadLetter"] == "f-1.fails.1.dlq"


@pytest.mark.parametrize("command", [("runs", "show", "f-1"), ("events", "f-1"), ("jobs", "show", "f-1.fails.1")])
def test_commands_show_the_frames(penstock: Callable, run: str, command: tuple[str, ...]) -> None:
    answer = penstock(*command)
    assert f'File "workers/fails.py", line {LINE}, in fails' in answer.out
    assert RAISES in answer.out
    assert "penstock dlq show f-1.fails.1.dlq" in answer.out
    assert "runners" not in answer.out


def test_doctor_names_the_line(penstock: Callable, run: str) -> None:
    answer = penstock("doctor", run)
    assert f"ValueError: it does not work at workers/fails.py:{LINE} in fails" in answer.out
    assert "penstock dlq show f-1.fails.1.dlq" in answer.out


def test_the_commands_in_json(penstock: Callable, run: str, project: Path) -> None:
    file = str(project / "workers" / "fails.py")
    assert penstock("jobs", "show", "f-1.fails.1", "--json").json["file"] == file
    letter = penstock("dlq", "show", "f-1.fails.1.dlq", "--json").json
    assert (letter["file"], letter["line"]) == (file, LINE)
