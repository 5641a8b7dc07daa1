"""An error is one sentence on stderr with a code, never a traceback."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli import main
from penstock.cli.commands import run


@pytest.mark.parametrize(
    ("args", "message", "code"),
    [
        (["run", "gret"], "no flow named 'gret'; did you mean 'greet'?", "unknown_flow"),
        (["start", "gret"], "did you mean 'greet'?", "unknown_flow"),
        (["run", "greet", "--input", "{"], "the value of --input is not valid JSON", "not_json"),
        (["run", "greet", "--input", '{"a": NaN}'], "NaN is not valid JSON", "not_json"),
        (["run", "greet", "--input", '{"a": 1, "a": 2}'], "the key 'a' occurs twice", "not_json"),
        (["run", "greet", "--input", "Ada"], "--input '\"Ada\"'", "not_json"),
        (["run", "greet", "--input", '"\\ud800"'], "lone surrogate", "not_json"),
        (["run", "greet", "--input", "[" * 70 + "]" * 70], "nested deeper", "payload_too_deep"),
        (["run", "greet", "--input", '"' + "x" * 70_000 + '"'], "the limit is 65,536", "payload_too_large"),
        (["run", "greet", "--input", "@nope.json"], "cannot read the input file nope.json", "usage"),
        (["run", "greet", "--input", "@workers"], "Is a directory", "usage"),
        (["run", "greet", "--delay", "soon"], "invalid duration 'soon'", "usage"),
        (["run", "greet", "--tag", "x"], "--tag customer=ada", "usage"),
        (["run", "greet", "--priority", "high"], 'unable to convert "high" into int', "usage"),
        (["run", "greet", "--key", "a b"], "invalid idempotency key 'a b'", "bad_id"),
        (["run", "greet", "--key", "7"], "but not digits alone", "bad_id"),
        (["run"], "`penstock run` needs FLOW", "usage"),
        (["run", "greet", "more"], "more", "usage"),
        (["run", "greet", "--nope"], "--nope", "usage"),
        (["rnu"], 'Did you mean "run"', "usage"),
        (["run", "greet", "--dir", "nope"], "folder 'nope' not found", "config_error"),
        (["run", "greet", "--url", "nonsense"], "unsupported store URL", "bad_setting"),
        (
            ["run", "greet", "--url", "sqlite:///workers"],
            "workers is a folder, not a file; name a file in it",
            "store_unavailable",
        ),
        (["runs", "--url", "sqlite:///nope.db"], "no store at nope.db", "not_found"),
        (["worker", "--concurrency", "0"], "at least 1", "bad_setting"),
        (["events", "x", "--after", "7"], "invalid event id '7'", "bad_id"),
        (["events", "x", "--limit", "0"], "at least 1", "usage"),
    ],
)
def test_usage_errors(penstock: Callable, args: list[str], message: str, code: str) -> None:
    answer = penstock(*args)
    assert answer.code == 2
    assert answer.out == ""
    assert message in answer.err
    assert answer.err.startswith("error: ")
    assert answer.err.endswith(f"[{code}]\n")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("args", [["run", "greet"], ["runs"], ["runs", "show", "x"], ["events", "x"], ["worker"]])
def test_a_file_that_is_not_a_database(penstock: Callable, project: Path, args: list[str]) -> None:
    (project / "bad.db").write_bytes(b"this is not a database, whatever its name is" * 100)
    answer = penstock(*args, "--url", "sqlite:///bad.db")
    assert answer.code == 2
    assert "bad.db is not a readable SQLite file" in answer.err
    assert "[store_corrupt]" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_database_without_read_permission(penstock: Callable, project: Path) -> None:
    penstock("start", "greet", "--url", "sqlite:///mine.db")
    (project / "mine.db").chmod(0)
    answer = penstock("runs", "--url", "sqlite:///mine.db")
    assert (answer.code, "[store_unavailable]" in answer.err) == (2, True)


def test_a_file_that_does_not_import_is_a_warning(penstock: Callable, project: Path) -> None:
    (project / "workers" / "broken.py").write_text("\n\nimport no_such_module\n")
    (project / "workers" / "typo.py").write_text("def handle(:\n")
    answer = penstock("run", "greet", "--input", '"Ada"')
    assert answer.code == 0
    assert "result Hello, Ada!" in answer.out
    warnings = answer.err.splitlines()
    assert len(warnings) == 2
    assert "broken.py:3: the file cannot be imported: ModuleNotFoundError" in warnings[0]
    assert "typo.py:1: the file cannot be imported: SyntaxError" in warnings[1]
    assert all(line.startswith("warning: ") and line.endswith("[import_failed]") for line in warnings)


def test_the_error_for_a_missing_flow_names_the_broken_file(penstock: Callable, project: Path) -> None:
    (project / "workers" / "greet.py").write_text("import no_such_module\n")
    assert "found while loading" in penstock("run", "greet").err


def test_debug_shows_the_traceback(penstock: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = penstock("run", "gret", "--debug")
    assert "Traceback" in answer.err
    assert answer.err.endswith("[unknown_flow]\n")
    monkeypatch.setenv("PENSTOCK_DEBUG", "1")
    assert "Traceback" in penstock("run", "gret").err


def test_an_internal_error(penstock: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(run, "build_worker_app", broken)
    answer = penstock("run", "greet")
    assert answer.code == 70
    assert "ZeroDivisionError: oh; this is a bug in Penstock, please report it." in answer.err
    assert "Traceback" not in answer.err


def test_environment_variables_are_validated(penstock: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LESE", "3s")
    assert "did you mean 'lease'" in penstock("run", "greet").err
    monkeypatch.delenv("PENSTOCK_LESE")
    monkeypatch.setenv("PENSTOCK_LOG", "loud")
    assert "environment variable PENSTOCK_LOG must be 'debug'" in penstock("run", "greet").err


def test_logging_is_restored_afterwards(penstock: Callable, project: Path, caplog: pytest.LogCaptureFixture) -> None:
    import logging

    penstock("run", "greet")
    with caplog.at_level("INFO", "penstock"):
        logging.getLogger("penstock").info("logged")
    assert "logged" in caplog.text


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Usage: penstock COMMAND" in capsys.readouterr().out
