"""Where an option stands and which of its names is used is no reason to be refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.argv import split_command_line
from penstock.cli.commands import build_parser


@pytest.fixture
def ran(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "mine", "--input", '"Ada"', "--url", "sqlite:///other.db")


@pytest.mark.parametrize(
    "args",
    [
        ["--url", "sqlite:///other.db", "--json", "runs", "list"],
        ["--url=sqlite:///other.db", "runs", "--json", "list"],
        ["--json", "runs", "--url", "sqlite:///other.db"],
        ["runs", "--json", "--dir", "workers", "list", "--url", "sqlite:///other.db"],
    ],
)
@pytest.mark.usefixtures("ran")
def test_common_options_may_come_first(penstock: Callable, args: list[str]) -> None:
    answer = penstock(*args)
    assert (answer.code, answer.json["id"], answer.err) == (0, "mine", "")


def test_a_value_is_not_taken_for_a_command(penstock: Callable, project: Path) -> None:
    (project / "workers").rename(project / "runs")
    assert penstock("--dir", "runs", "--json", "flows").lines[0].startswith('{"flow')


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--limit", "5", "runs"], "options come after it: penstock COMMAND --limit. Try: penstock --help"),
        (["--json"], "options come after it: penstock COMMAND --json."),
        (["jobs", "--limit", "5"], "options come after it: penstock jobs COMMAND --limit."),
        (["runs", "--limit", "5", "list"], "list is a command, which comes before options: penstock runs list --limit"),
        (["--url", "sqlite:///other.db", "runs", "shw"], "There is no command runs shw: did you mean 'show'?"),
        (["--url", "runs"], "options come after it: penstock COMMAND --url."),
    ],
)
def test_what_cannot_come_first(penstock: Callable, args: list[str], says: str) -> None:
    answer = penstock(*args)
    assert (answer.code, answer.out) == (2, "")
    assert says in answer.err


@pytest.mark.parametrize(("option", "equals"), [("--input", False), ("--payload", False), ("--data", True)])
def test_what_is_given_has_three_names(penstock: Callable, project: Path, option: str, equals: bool) -> None:
    (project / "workers" / "add.py").write_text("from penstock import job\n\n@job()\ndef add(order): ...\n")
    given = [f"{option}=7"] if equals else [option, "7"]
    started = penstock("start", "greet", *given).lines[0]
    assert json.loads(penstock("runs", "show", started, "--json").out)["input"] == 7
    assert penstock("emit", "a.b", *given, "--json").json["data"] == 7
    added = penstock("enqueue", "add", *given).lines[0]
    assert penstock("jobs", "show", added, "--json").json["payload"] == 7
    added = penstock("schedules", "add", "s", "--flow", "greet", "--every", "1d", *given, "--json")
    assert added.json["input"] == 7
    assert "no trigger has this token" in penstock("fire", "nope", *given).err
    assert "there is no dead letter" in penstock("dlq", "redrive", "nope", *given).err
    again = penstock("runs", "replay", started, *given).lines[-1]
    assert json.loads(penstock("runs", "show", again, "--json").out)["input"] == 7


def test_the_help_has_one_of_them(penstock: Callable) -> None:
    for command, own in {"start": "--input", "emit": "--data", "fire": "--payload"}.items():
        shown = penstock(command, "--help").out
        assert [name for name in ("--input", "--payload", "--data") if name in shown] == [own]


def test_the_rest_is_left_alone() -> None:
    for args in (
        ["state", "set", "a", "--data"],
        ["fire", "x", "--", "--data"],
        ["runs", "--data", "7"],
        [],
        ["--help"],
    ):
        assert split_command_line(args, build_parser()).args == args
