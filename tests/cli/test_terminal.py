"""Output on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def test_a_run_is_drawn_live(terminal: type, project: Path) -> None:
    screen = terminal("run", "gated", "--key", "mine")
    screen.until(lambda: "running" in screen.seen and "● " in screen.seen)
    assert "completed" not in screen.seen
    (project / "gate").touch()
    assert screen.end() == 0
    assert "the handler prints this" in screen.seen
    assert "✓ " in screen.seen
    assert screen.seen.rstrip().endswith("through\r\n\x1b[?25h")


def test_ctrl_c_keeps_the_run_and_prints_how_to_continue(
    terminal: type, penstock: Callable, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_GRACE", "100ms")
    screen = terminal("run", "gated", "--key", "mine")
    screen.until((project / "began").exists)
    screen.press_ctrl_c()
    assert screen.end() == 130
    assert "Run mine is kept; continue it with `penstock worker` or `penstock run gated --key mine`" in screen.seen
    assert "Traceback" not in screen.seen
    (project / "gate").touch()
    answer = penstock("run", "gated", "--key", "mine", "--json")
    assert (answer.code, answer.json["steps"]["gated"]["attempt"]) == (0, 2)


def test_the_hint_repeats_the_options(
    terminal: type, penstock: Callable, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_GRACE", "100ms")
    options = ["--dir", "workers", "--url", "sqlite:///a b.db"]
    screen = terminal("run", "gated", "--key", "mine", *options)
    screen.until((project / "began").exists)
    screen.press_ctrl_c()
    assert screen.end() == 130
    assert "penstock run gated --key mine --dir workers --url 'sqlite:///a b.db'`" in screen.seen.replace("\r\n", "")


def test_a_second_ctrl_c_stops_at_once(terminal: type, project: Path) -> None:
    screen = terminal("run", "gated", "--key", "mine")
    screen.until((project / "began").exists)
    screen.press_ctrl_c()
    screen.until(lambda: "Press Ctrl-C again to stop immediately" in screen.seen)
    screen.press_ctrl_c()
    assert screen.end() == 130
    assert "Run mine is kept" in screen.seen


def test_a_run_that_ends_while_stopping_is_shown(terminal: type, project: Path) -> None:
    screen = terminal("run", "gated", "--key", "mine")
    screen.until((project / "began").exists)
    screen.press_ctrl_c()
    screen.until(lambda: "Stopping" in screen.seen)
    (project / "gate").touch()
    assert screen.end() == 0
    assert "through" in screen.seen


def test_json_is_the_only_output(terminal: type) -> None:
    screen = terminal("run", "greet", "--input", '"Ada"', "--key", "mine", "--json")
    assert screen.end() == 0
    assert screen.seen.rpartition("\x1b[2K")[2].startswith('{"id": "mine"')


def test_start_prints_the_next_commands(terminal: type) -> None:
    screen = terminal("start", "greet", "--key", "mine")
    assert screen.end() == 0
    assert "Work on it with `penstock worker`" in screen.seen


def test_a_run_is_shown_in_colour(terminal: type, penstock: Callable) -> None:
    penstock("run", "greet", "--key", "mine", "--input", '"Ada"')
    screen = terminal("runs", "show", "mine")
    assert screen.end() == 0
    assert "\x1b[32mcompleted" in screen.seen
    assert "input Ada" in screen.seen
