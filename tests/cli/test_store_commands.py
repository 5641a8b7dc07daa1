"""`penstock doctor`, `export`, `import` and `bench`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import postgres_server

OTHER = ("--url", "sqlite:///other.db")
RETRIES = """
from penstock import flow

@flow("retries", retry={"attempts": 3, "backoff": {"type": "fixed", "delay": "1h", "jitter": False}})
def retries(input):
    raise ValueError("not yet")
"""
JOINS = """
from penstock import Context, flow, step

@flow("joins", emits=["one"], accepts=["two"])
async def start(input, ctx: Context):
    ctx.emit("one", 1)

@step(on=["one", "two"], mode="all")
def both(x): ...

@step(on="one", delay="1h")
def later(x): ...
"""


def test_doctor_finds_no_problem(penstock: Callable) -> None:
    assert penstock("doctor").code == 0  # a store that does not exist yet is not a problem
    penstock("run", "greet")
    answer = penstock("doctor", "--json").json
    assert answer["ok"]
    names = [check["name"] for check in answer["checks"]]
    assert names == [
        *("versions", "settings", "worker files", "store", "clock", "disk", "runs", "events"),
        *("workers", "queues", "dead letters"),
    ]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_doctor_reports_each_problem_once(penstock: Callable, project: Path, options: list[str]) -> None:
    (project / "workers" / "broken.py").write_text("import no_such_module\n")
    answer = penstock("doctor", *options)
    assert (answer.code, (answer.out + answer.err).count("no_such_module")) == (2, 1)
    assert "warning: " in penstock("flows").err  # other commands still log it


def test_doctor_has_a_line_for_each_problem_of_the_worker_files(penstock: Callable, project: Path) -> None:
    for name in ("a", "b"):
        (project / "workers" / f"{name}.py").write_text("import no_such_module\n")
    lines = [line for line in penstock("doctor").lines if "no_such_module" in line]
    assert len(lines) == 2
    assert len({line.index(str(project)) for line in lines}) == 1, "aligned"


def test_doctor_finds_problems(penstock: Callable, project: Path) -> None:
    penstock("start", "greet")
    penstock("queues", "pause", "greet")
    (project / "workers" / "broken.py").write_text("import no_such_module\n")
    answer = penstock("doctor")
    assert answer.code == 2
    assert "✗ worker files" in answer.out
    assert "no_such_module" in answer.out
    assert "queue greet is paused with 1 waiting" in answer.out
    assert "2 of 11 checks failed [checks_failed]" in answer.err


@pytest.mark.parametrize("options", [[], ["--delay", "1h"]], ids=["now", "later"])
def test_doctor_finds_jobs_without_a_handler(penstock: Callable, project: Path, options: list[str]) -> None:
    penstock("start", "greet", *options)
    (project / "workers" / "greet.py").unlink()
    answer = penstock("doctor")
    assert answer.code == 2
    assert f"queue greet has 1 {'delayed' if options else 'waiting'} but no handler in these worker files" in answer.out


def test_why_a_queued_run_does_not_move(penstock: Callable, project: Path) -> None:
    penstock("start", "greet", "--key", "mine")
    assert "no worker serves queue 'greet'; start one with `penstock worker`" in penstock("doctor", "mine").out
    penstock("queues", "pause", "greet")
    assert "which is paused; `penstock queues resume greet`" in penstock("doctor", "mine").out
    penstock("queues", "resume", "greet")
    (project / "workers" / "greet.py").unlink()
    assert "which has no handler in these worker files" in penstock("doctor", "mine").out
    penstock("start", "gated", "--key", "late", "--delay", "1h")
    (reason,) = penstock("doctor", "late", "--json").json["reasons"]
    assert reason.startswith("step 'gated' is due at 2")
    assert "[unknown_run]" in penstock("doctor", "nope").err


def test_workers_lists_a_running_worker(
    penstock: Callable, child: Callable, project: Path, wait_for_file: Callable
) -> None:
    penstock("start", "gated")
    assert "No workers are running." in penstock("workers").err
    worker = child("worker", "--concurrency", "3")
    wait_for_file(project / "began")
    while not penstock("workers").out:
        assert worker.process.poll() is None
    (worker,) = [json.loads(line) for line in penstock("workers", "--json").lines]
    assert (worker["slots"], worker["queues"]) == (3, ["fails", "gated", "greet"])
    assert worker["fingerprint"][:12] in penstock("workers").out
    assert "1 live worker, " in penstock("doctor").out


def test_show_says_that_no_worker_serves_the_queue(penstock: Callable) -> None:
    penstock("start", "greet", "--key", "mine")
    assert "no worker serves queue 'greet'; start one with `penstock worker`" in penstock("runs", "show", "mine").err


def test_why_a_run_that_ended_does_not_move(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "good")
    penstock("run", "fails", "--key", "bad")
    assert "it ended as completed" in penstock("doctor", "good").out
    assert "`penstock runs retry bad` retries its failed steps" in penstock("doctor", "bad").out


def test_why_a_running_step_is_not_done(
    penstock: Callable, child: Callable, project: Path, wait_for_file: Callable
) -> None:
    worker = child("worker")
    penstock("start", "gated", "--key", "mine")
    wait_for_file(project / "began")
    (reason,) = penstock("doctor", "mine", "--json").json["reasons"]
    assert reason.startswith("step 'gated' is running on worker ")
    assert "attempt 1, with a lease until 2" in reason
    worker.process.kill()
    worker.end()


def test_why_a_run_is_retried_later(penstock: Callable, child: Callable, project: Path) -> None:
    (project / "workers" / "retries.py").write_text(RETRIES)
    penstock("start", "retries", "--key", "mine")
    worker = child("worker")
    worker.wait_for_output("Working.")
    for line in worker.process.stderr:
        if "not yet" in line:
            break
    answer = penstock("doctor", "mine").out
    assert "step 'retries' failed 1 times (not yet); its retry is due at 2" in answer


def test_why_a_join_waits(penstock: Callable, terminal: type, project: Path) -> None:
    (project / "workers" / "joins.py").write_text(JOINS)
    penstock("start", "joins", "--key", "mine")
    screen = terminal("run", "joins", "--key", "mine")
    screen.until(lambda: "later" in screen.seen)
    screen.press_ctrl_c()
    screen.end()
    assert "step 'both' has received one and is waiting for two" in penstock("doctor", "mine").out
    assert "step 'later' is due at" in penstock("doctor", "mine").out


def test_a_run_is_exported_and_imported_as_it_was(penstock: Callable, project: Path) -> None:
    penstock("run", "greet", "--key", "mine", "--input", '{"name": "Ada"}', "--tag", "a=b")
    line = json.loads(penstock("export", "mine").out)
    assert (line["run"], line["status"]) == ("mine", "completed")
    assert penstock("export", "mine", "mine.jsonl").err == "Exported 1 run to mine.jsonl.\n"
    assert penstock("import", "mine.jsonl", *OTHER).out == "Imported 1 run.\n"
    for look in (["events", "mine", "--json"], ["runs", "show", "mine", "--json"], ["runs", "--json"]):
        assert penstock(*look, *OTHER).out == penstock(*look).out


def test_open_and_failed_runs_continue_in_another_store(
    penstock: Callable, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    penstock("run", "fails", "--key", "bad")
    penstock("start", "greet", "--key", "open", "--input", '"Ada"')
    penstock("start", "greet", "--key", "late", "--delay", "1h")
    assert penstock("export", "--all", "all.jsonl", "--json").json == {"runs": 3, "file": "all.jsonl"}
    assert penstock("export", "--all", "-").out == (project / "all.jsonl").read_text()
    assert not (project / "-").exists()
    assert "unknown option --al [usage]" in penstock("export", "--al").err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((project / "all.jsonl").read_bytes())))
    assert penstock("import", "-", *OTHER, "--json").json == {"runs": 3}
    assert "result Hello, Ada!" in penstock("run", "greet", "--key", "open", *OTHER).out
    assert [json.loads(line)["run"] for line in penstock("dlq", "list", "fails", "--json", *OTHER).lines] == ["bad"]
    assert penstock("runs", "retry", "bad", *OTHER).code == 0
    assert "is due at" in penstock("doctor", "late", *OTHER).out


def test_nothing_is_imported_if_a_run_exists(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "first")
    penstock("run", "greet", "--key", "second")
    penstock("export", "--all", "all.jsonl")
    penstock("run", "greet", "--key", "second", *OTHER)
    answer = penstock("import", "all.jsonl", *OTHER)
    assert (answer.code, "run 'second' already exists in this store; nothing was imported" in answer.err) == (2, True)
    assert [line.split()[0] for line in penstock("runs", *OTHER).lines] == ["id", "second"]


def test_an_interrupted_import_is_completed(penstock: Callable, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.app.run_import import Importer

    penstock("run", "greet", "--key", "mine")
    penstock("export", "mine", "mine.jsonl")
    with monkeypatch.context() as broken:
        broken.setattr(Importer, "_run", _interrupt)
        assert penstock("import", "mine.jsonl", *OTHER).code == 130
    assert penstock("runs", *OTHER).lines == []
    assert penstock("import", "mine.jsonl", *OTHER).code == 0
    assert penstock("events", "mine", *OTHER).out == penstock("events", "mine").out


async def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("line", ["{", "7", '{"penstock": 1}', "null", '{"run": "a", "penstock": "x"}'])
def test_files_that_are_not_exports(penstock: Callable, project: Path, line: str) -> None:
    penstock("run", "greet", "--key", "mine")
    penstock("export", "mine", "file.jsonl")
    with (project / "file.jsonl").open("a") as file:
        file.write(line + "\n")
    answer = penstock("import", "file.jsonl", *OTHER)
    assert (answer.code, "line 2 is not a run" in answer.err, "[bad_export]" in answer.err) == (2, True, True)
    assert not (project / "other.db").exists()


def test_an_export_of_a_newer_version(penstock: Callable, project: Path) -> None:
    penstock("run", "greet", "--key", "mine")
    text = penstock("export", "mine").out
    (project / "file.jsonl").write_text(text.replace('"penstock":3', '"penstock":4'))
    assert "written by a newer version of Penstock" in penstock("import", "file.jsonl", *OTHER).err
    (project / "file.jsonl").write_text(text + text)
    assert "occurs twice in the file" in penstock("import", "file.jsonl", *OTHER).err


@pytest.mark.parametrize("args", [[], ["--all", "a", "b"], ["nope"], ["mine", "no/where.jsonl"]])
def test_invalid_exports(penstock: Callable, args: list[str]) -> None:
    penstock("run", "greet", "--key", "mine")
    assert penstock("export", *args).code == 2


def test_bench(penstock: Callable, project: Path) -> None:
    found = penstock("bench", "--jobs", "20", "--flows", "5", "--json").json
    assert found["jobsPerSecond"] > 0
    assert found["flowsPerSecond"] > 0
    assert found["stepMs"]["p50"] <= found["stepMs"]["p95"]
    assert "per second" in penstock("bench", "--jobs", "20", "--flows", "5").out
    assert penstock("bench", "--jobs", "0").code == 2
    assert not (project / ".penstock").exists()


def test_doctor_counts_connections(penstock: Callable) -> None:
    url = postgres_server.url()
    assert penstock("migrate", "--url", url).code == 0
    new = penstock("migrate", "--url", "sqlite:///new.db")
    assert (new.code, "sqlite:///new.db needs no migrations: its tables are created" in new.out) == (0, True)
    answer = penstock("doctor", "--url", url)  # a test server without fsync
    assert "connections of a process 7" in answer.out
    assert answer.code == 2
    for setting in ("fsync", "synchronous_commit"):
        assert f"{setting} is off, so a crash" in answer.out
    answer = penstock("doctor", "--url", f"{url}&pool=500")
    assert answer.code == 2
    assert "✗ store" in answer.out
    assert "a process uses up to 502; raise the limit" in answer.out


def test_state_list_says_that_there_is_more(penstock: Callable) -> None:
    penstock("run", "greet")
    for key in ("a", "b", "c"):
        penstock("state", "set", key, "1")
    first = penstock("state", "list", "--limit", "2", "--json")
    assert len(first.lines) == 2
    assert "There are more keys. The next page: --after b" in first.err
    last = penstock("state", "list", "--after", "b", "--json")
    assert (last.json["key"], last.err) == ("c", "")
