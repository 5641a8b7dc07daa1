"""Common options may come anywhere, and --input, --payload and --data are interchangeable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.argv import split_command_line
from penstock.cli.command_table import build_parser


@pytest.fixture
def finished_run(penstock: Callable) -> None:
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
@pytest.mark.usefixtures("finished_run")
def test_common_options_before_the_command(penstock: Callable, args: list[str]) -> None:
    answer = penstock(*args)
    assert (answer.code, answer.json["id"], answer.err) == (0, "mine", "")


def test_an_option_value_is_not_taken_for_a_command(penstock: Callable, project: Path) -> None:
    (project / "workers").rename(project / "runs")
    assert penstock("--dir", "runs", "--json", "flows").lines[0].startswith('{"flow')


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--limit", "5", "runs"], "options come after the command: penstock COMMAND --limit. Try: penstock --help"),
        (["--json"], "options come after the command: penstock COMMAND --json."),
        (["jobs", "--limit", "5"], "options come after the command: penstock jobs COMMAND --limit."),
        (["runs", "--limit", "5", "list"], "the command list must come before its options: penstock runs list --limit"),
        (["--url", "sqlite:///other.db", "runs", "shw"], "no command named 'runs shw'; did you mean 'show'?"),
        (["--url", "runs"], "options come after the command: penstock COMMAND --url."),
    ],
)
def test_other_options_before_the_command_are_refused(penstock: Callable, args: list[str], message: str) -> None:
    answer = penstock(*args)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


@pytest.mark.parametrize(("option", "equals"), [("--input", False), ("--payload", False), ("--data", True)])
def test_an_input_has_three_option_names(penstock: Callable, project: Path, option: str, equals: bool) -> None:
    (project / "workers" / "add.py").write_text("from penstock import job\n\n@job()\ndef add(order): ...\n")
    options = [f"{option}=7"] if equals else [option, "7"]
    started = penstock("start", "greet", *options).lines[0]
    assert json.loads(penstock("runs", "show", started, "--json").out)["input"] == 7
    assert penstock("emit", "a.b", *options, "--json").json["data"] == 7
    added = penstock("enqueue", "add", *options).lines[0]
    assert penstock("jobs", "show", added, "--json").json["input"] == 7
    added = penstock("schedules", "add", "s", "--flow", "greet", "--every", "1d", *options, "--json")
    assert added.json["input"] == 7
    assert "no trigger has this token" in penstock("fire", "nope", *options).err
    assert "no dead letter with id" in penstock("dlq", "redrive", "nope", *options).err
    again = penstock("runs", "replay", started, *options).lines[-1]
    assert json.loads(penstock("runs", "show", again, "--json").out)["input"] == 7


def test_the_help_lists_one_of_them(penstock: Callable) -> None:
    for command, own in {"start": "--input", "emit": "--data", "fire": "--data", "dlq redrive": "--input"}.items():
        shown = penstock(*command.split(), "--help").out
        assert [name for name in ("--input", "--payload", "--data") if name in shown] == [own]


def test_other_arguments_are_not_changed() -> None:
    for args in (
        ["state", "set", "a", "--data"],
        ["fire", "x", "--", "--data"],
        ["runs", "--data", "7"],
        [],
        ["--help"],
    ):
        assert split_command_line(args, build_parser()).args == args


@pytest.mark.parametrize("word", ["\udcff", "a\0b"])
def test_an_argument_that_is_not_text_is_refused(penstock: Callable, word: str) -> None:
    for args in (["runs", "fork", "some-id", "--at", "0-1", "--key", word], ["start", word], [word]):
        answer = penstock(*args)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.startswith(f"error: argument {len(args)} must ")
        assert answer.err.endswith(" [bad_argument]\n")
