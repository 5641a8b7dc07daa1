"""A run with events that cannot be read: every command that shows it marks them and shows the rest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import App
from penstock.core.ids import new_token
from penstock.ports.unit import NewEvent, Unit
from penstock.testing.contracts.unreadable import JUNK, WRONG_SHAPES

BAD = [*WRONG_SHAPES, *JUNK]


@pytest.fixture
def damaged(penstock: Callable) -> int:
    """Run a flow, and change every event but the first: return how many it has."""
    penstock("run", "greet", "--key", "mine", "--input", '"Ada"')

    async def damage() -> int:
        async with App(handlers=()) as app:
            events = [NewEvent("nq:flow:mine", body) for body in BAD]
            await app.store.commit([Unit(new_token(), events=events)])
            return len(await app.events.read_all("nq:flow:mine"))

    return asyncio.run(damage())


def test_events(penstock: Callable, damaged: int) -> None:
    answer = penstock("events", "mine")
    assert (answer.code, len(answer.lines)) == (0, damaged)
    assert sum("unreadable" in line for line in answer.lines) == len(BAD)
    found = [json.loads(line) for line in penstock("events", "mine", "--json").lines]
    assert [event["kind"] for event in found].count("unreadable") == len(BAD)
    followed = penstock("events", "mine", "--follow")
    assert (followed.code, len(followed.lines)) == (0, damaged)


@pytest.mark.parametrize("command", ["runs show mine", "tail mine", "runs show mine --json", "doctor mine"])
def test_a_run(penstock: Callable, damaged: int, command: str) -> None:
    answer = penstock(*command.split())
    assert answer.code == 0
    assert "completed" in answer.out + answer.err


def test_the_run_names_them(penstock: Callable, damaged: int) -> None:
    assert "; `penstock events mine` shows what is stored" in penstock("runs", "show", "mine").out
    assert len(penstock("runs", "show", "mine", "--json").json["unreadableEvents"]) == len(BAD)


def test_doctor(penstock: Callable, damaged: int) -> None:
    answer = penstock("doctor")
    assert answer.code == 2
    assert f"✗ events        {len(BAD)} unreadable events: " in answer.out
    assert "1 of 11 checks failed" in answer.err


def test_an_export_is_imported_with_the_marks(penstock: Callable, project: Path, damaged: int) -> None:
    other = ("--url", "sqlite:///other.db")
    assert penstock("export", "--all", "all.jsonl").code == 0
    assert penstock("import", "all.jsonl", *other).code == 0
    assert penstock("events", "mine", *other).out == penstock("events", "mine").out
