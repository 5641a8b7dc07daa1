"""Text from data cannot control the terminal: no command prints it as it is."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock.cli

HOSTILE = "\x1b]0;owned\x07\x9b31m\u202e\x7f\x85"
CONTROL = frozenset("\x1b\x07\x9b\u202e\x7f\x85")
# The sequences that rich and the live view write themselves.
OWN = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")
FAILS = f"""
import json
from penstock import Context, flow

@flow("evil")
async def evil(input, ctx: Context):
    ctx.log(json.loads({json.dumps(HOSTILE)!a}), field=input)
    await ctx.state.set("evil" + input, input)
    raise ValueError(input)
"""
COMMANDS = [
    *(
        ["runs"],
        ["runs", "show", "mine"],
        ["events", "mine"],
        ["tail", "mine"],
        ["jobs", "default", "--state", "failed"],
    ),
    *(
        ["dlq"],
        ["dlq", "list", "default"],
        ["dlq", "show", "mine.evil.1"],
        ["jobs", "show", "mine.evil.1"],
        ["export", "mine"],
    ),
    *(
        ["state", "list", "--run", "mine"],
        ["doctor"],
        ["doctor", "mine"],
        ["runs", "show", HOSTILE],
        ["runs", "--flow", HOSTILE],
    ),
    *(["emit", HOSTILE], ["schedules", "add", HOSTILE, "--flow", "evil", "--every", HOSTILE], ["run", HOSTILE]),
    *(
        ["queues", "pause", HOSTILE],
        ["no-such-command", HOSTILE],
        ["runs", HOSTILE],
        [HOSTILE],
        ["events", "mine", "--json"],
    ),
    *(
        ["runs", "show", "mine", "--json"],
        ["runs", "show", HOSTILE, "--json"],
        ["state", "list", "--run", "mine", "--json"],
    ),
]


@pytest.fixture
def evil(penstock: Callable, project: Path) -> None:
    (project / "workers" / "evil.py").write_text(FAILS)
    answer = penstock("run", "evil", "--key", "mine", "--input", json.dumps(HOSTILE + "\n"))
    assert answer.code == 1
    assert not CONTROL & {*answer.out, *answer.err}


@pytest.mark.usefixtures("evil")
@pytest.mark.parametrize("args", COMMANDS, ids=lambda args: ascii(" ".join(args)))
def test_no_output_has_control_characters(penstock: Callable, args: list[str]) -> None:
    answer = penstock(*args)
    if args[0] == "export":  # in a pipe, a run as it is
        assert json.loads(answer.out)
        return
    assert not CONTROL & {*answer.out, *answer.err}


@pytest.mark.usefixtures("evil")
@pytest.mark.parametrize(
    "args", COMMANDS[:4] + COMMANDS[7:10] + COMMANDS[13:14], ids=lambda args: ascii(" ".join(args))
)
def test_no_output_on_a_terminal_has_control_characters(terminal: type, args: list[str]) -> None:
    screen = terminal(*args)
    screen.end()
    assert "mine" in screen.seen or "owned" in screen.seen
    shown = OWN.sub("", screen.seen)
    assert not CONTROL & {*shown}


def test_an_export_on_a_terminal_is_the_same_run(evil: None, terminal: type, penstock: Callable) -> None:
    screen = terminal("export", "mine")
    assert screen.end() == 0
    assert json.loads(screen.seen) == penstock("export", "mine").json


def test_every_command_prints_with_the_functions_that_escape() -> None:
    folder = Path(penstock.cli.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        if file.name in ("output.py", "errors.py", "processes.py"):  # the last one forwards what workers printed
            continue
        names = {
            node.func.id
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert "print" not in names, f"{file.name}: use print_text, print_json or warn"
