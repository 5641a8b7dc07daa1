"""No command ends in an internal error or writes control characters, whatever its arguments are.

The commands and their options come from the parser, so a new one is covered.
"""

from __future__ import annotations

import io
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_every_command import EVERY, MORE, call_of

from penstock.cli import session
from penstock.cli.command_table import build_parser
from penstock.cli.errors import EXIT_BUG, UsageError
from penstock.core.text import escape_lines
from penstock.http.server import Server
from penstock.worker.worker import Worker

FULL = os.environ.get("PENSTOCK_FAULTS") == "full"
VALUES_PER_OPTION = None if FULL else 1
SEED = 2030
SHARED = ("--dir", "--url", "--token", "--json", "--debug")  # options of every command
LONG = "".join(map(chr, random.Random(7).choices(range(0x4E00, 0x9FA5), k=2_000)))
TEXTS = [
    *("", " ", "-", "--", "@", "@nowhere", "=", "a=b", "0", "-1", "1.5", "nan", "1e400", "99999999999999999999"),
    *("1" * 5_000, "a" * 5_000, "a" * 501, LONG, "1h" * 500, "." * 8_000, "é" * 300, "😀"),
    *("\x1b]0;title\x07", "\x1b[31mred", "\x9b31m", "a\nb\rc", "\u202egpj.exe", "\ud800", "\udcff", "a\0b"),
    *("{", "[" * 10_000, '{"a":' * 200, '{"a": NaN}', '"\\ud800"', '"\\u0000"', "[1e999]", "null", "{}", "%s{0}"),
    *("2030-99-99", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0 0 31 2 *", "Mars/Base", "redis://[:x"),
    *(
        "sqlite:///%00",
        "postgresql://h:" + "9" * 5_000,
        "redis://h:" + "9" * 5_000,
        "sqlite://",
        "mode=ro",
        "nq:global",
    ),
]


def calls(name: str, rng: random.Random) -> Iterator[list[str]]:
    """Yield calls of a command with one bad argument each."""
    parser = build_parser()
    for word in name.split():
        parser = parser[word]
    usual, count = call_of(name), len(name.split())
    words = len(usual) - count - len(MORE.get(name, []))
    options = [
        one.names[-1] for one in parser.assemble_argument_collection() if one.names and one.names[-1][:2] == "--"
    ]
    for place in range(count, count + words):
        for text in TEXTS if VALUES_PER_OPTION is None else rng.sample(TEXTS, VALUES_PER_OPTION):
            yield [*usual[:place], text, *usual[place + 1 :]]
    if VALUES_PER_OPTION is not None:  # every command reads these in the same way: each tries one of them
        shared = rng.choice(SHARED)
        options = [option for option in options if option not in SHARED or option == shared]
    for option in options:
        for text in TEXTS if VALUES_PER_OPTION is None else rng.sample(TEXTS, VALUES_PER_OPTION):
            yield [*usual, f"{option}={text}"]


async def stop(*_: object) -> None:
    """Press Ctrl-C as soon as the worker runs."""
    os.kill(os.getpid(), signal.SIGINT)


async def serve_nothing(*_: object) -> None:
    return None


async def measure_nothing(*_: object) -> None:
    raise UsageError("not measured here")


@pytest.mark.parametrize("name", sorted(EVERY))
def test_every_option(penstock: Callable, project: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(session, "CONNECT_TIMEOUT_S", 0.01)
    monkeypatch.setenv("PENSTOCK_GRACE", "10ms")
    monkeypatch.setattr(Worker, "run", stop)
    # `dev` runs both: a second Ctrl-C would end this process.
    monkeypatch.setattr(Server, "run", serve_nothing if name == "dev" else stop)
    monkeypatch.setattr("penstock.cli.commands.bench._bench", measure_nothing)
    (project / "runs.jsonl").write_text("")
    penstock("start", "greet", "--key", "some-id")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    found = []
    for args in calls(name, random.Random(f"{SEED} {name}")):
        answer = penstock(*args)
        shown = f"penstock {' '.join(ascii(arg)[:60] for arg in args)}: {answer.code} {ascii(answer.err)[-300:]}"
        is_explained = answer.code != 2 or re.search(r"error: .+ \[[a-z_]+\]$", answer.err.rstrip(), re.S)
        if answer.code == EXIT_BUG or "Traceback" in answer.err or not is_explained:
            found.append(shown)
        elif escape_lines(answer.out + answer.err) != answer.out + answer.err:
            found.append(f"control characters: {shown} {ascii(answer.out)[-300:]}")
    assert found == [], "\n".join(["", *found])
