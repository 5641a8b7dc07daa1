"""With --json, an error is one JSON object on stderr; stdout stays empty, the exit code the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.commands import run


def error_of(answer: Any) -> dict[str, str]:
    """Return the error on stderr, which has no other line."""
    (line,) = answer.err.splitlines()
    found = json.loads(line)
    assert list(found) == ["error"]
    return found["error"]


@pytest.mark.parametrize(
    ("args", "message", "code"),
    [
        (["run", "gret"], "no flow named 'gret'; did you mean 'greet'?", "unknown_flow"),
        (["run", "greet", "--input", "{"], "the value of --input is not valid JSON", "not_json"),
        (["run", "greet", "--priority", "high"], 'unable to convert "high" into int', "usage"),
        (["run"], "`penstock run` needs FLOW", "usage"),
        (["runs", "shw"], "no command named 'runs shw'; did you mean 'show'?", "usage"),
        (["rnu"], 'Did you mean "run"', "usage"),
        (["run", "greet", "--nope"], "--nope", "usage"),
        (["run", "greet", "--url", "nonsense"], "unsupported store URL", "bad_setting"),
        (["runs"], "no store at", "not_found"),
        (["schedules", "run-now"], "`penstock schedules run-now` needs ID", "usage"),
    ],
)
@pytest.mark.parametrize("first", [False, True])
def test_an_error_is_one_object(penstock: Callable, args: list[str], message: str, code: str, first: bool) -> None:
    answer = penstock(*(["--json", *args] if first else [*args, "--json"]))
    assert (answer.code, answer.out) == (2, "")
    error = error_of(answer)
    assert error["code"] == code
    assert message in error["message"]
    assert not error["message"].endswith("]")
    assert set(error) == {"code", "message", "hint"} if code == "usage" else {"code", "message"}
    if code == "usage":
        assert error["hint"].startswith("Try: penstock ")
        assert "--help" not in error["message"]


def test_doctor_prints_its_checks_and_the_error(penstock: Callable) -> None:
    answer = penstock("doctor", "--dir", "nowhere", "--json")
    assert (answer.code, answer.json["ok"]) == (2, False)
    assert error_of(answer)["code"] == "checks_failed"


def test_debug_adds_a_traceback(penstock: Callable) -> None:
    error = error_of(penstock("run", "gret", "--json", "--debug"))
    assert error["traceback"].startswith("Traceback")
    assert error["code"] == "unknown_flow"


def test_an_internal_error(penstock: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(run, "build_worker_app", broken)
    answer = penstock("run", "greet", "--json")
    error = error_of(answer)
    assert (answer.code, answer.out, error["code"]) == (70, "", "internal")
    assert "ZeroDivisionError: oh" in error["message"]
    assert "--debug" in error["hint"]


def test_a_flag_after_two_hyphens_is_an_argument(penstock: Callable) -> None:
    assert penstock("runs", "show", "--", "--json").err.startswith("error: ")


def test_a_terminal_without_unicode(child: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters it cannot show are escaped, so that the line stays valid JSON."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    answer = child("run", "größe", "--json").end()
    assert "'größe'" in error_of(answer)["message"]


def test_worker_processes_that_cannot_start(child: Callable, project: Path) -> None:
    (project / "bad.db").write_bytes(b"this is not a database" * 100)
    answer = child("worker", "--processes", "2", "--url", "sqlite:///bad.db", "--json").end()
    errors = [json.loads(line)["error"] for line in answer.err.splitlines() if line.startswith("{")]
    assert answer.code == 2
    assert errors
    assert {error["code"] for error in errors} == {"store_corrupt"}
