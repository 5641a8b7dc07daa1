"""Common mistakes of new users: each error suggests the fix, and nothing is done silently."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.ports.unit import JobState


@pytest.fixture(autouse=True)
def _runs(penstock: Callable, project: Path) -> None:
    penstock("run", "greet", "--key", "mine", "--input", '"Ada"')
    penstock("run", "fails", "--key", "bad")
    (project / "order.json").write_text('{"id": 7}')


@pytest.mark.parametrize(
    ("args", "message", "code"),
    [
        (["runs", "--status", "faild"], "unknown status 'faild'; did you mean 'failed'?", "bad_argument"),
        (["runs", "--flow", "gret"], "no runs of flow 'gret'; did you mean 'greet'?", "unknown_flow"),
        (["runs", "--before", "nope"], "no run with id 'nope'", "unknown_run"),
        (["runs", "shw", "mine"], "no command named 'runs shw'; did you mean 'show'?", "usage"),
        (["queues", "stop"], "no command named 'queues stop'; commands: ", "usage"),
        (["start", "greet", "more"], "unexpected argument 'more'; did you mean --input?", "usage"),
        (["enqueue", "mial", '{"to":"x"}'], 'unexpected argument \'{"to":"x"}\'; did you mean --input?', "usage"),
        (["emit", "a.b", "7"], "unexpected argument '7'; did you mean --data?", "usage"),
        (["runs", "show", "mine", "more"], "unexpected argument 'more'.", "usage"),
        (["run", "greet", "--input", "order.json"], "to read the file order.json, use --input @order.json", "json"),
        (["run", "greet", "--input", "2026-03"], "inside the single quotes: --input '\"2026-03\"'", "json"),
        (["start", "greet", "--delay", "-5s"], "--delay: invalid duration '-5s'", "usage"),
        (
            ["schedules", "add", "s", "--flow", "greet", "--every", "1d", "--input", "{id: 7}"],
            '--input \'{"id": ',
            "json",
        ),
        (["state", "set", "a", "zzz"], "the value is not valid JSON: ", "not_json"),
        (["state", "set", "a", "zzz"], "a string needs double quotes inside the single quotes: '\"zzz\"'", "not_json"),
        (["dlq", "list", "fals"], "no queue named 'fals'; did you mean 'fails", "unknown_queue"),
        (["dlq", "redrive", "--all", "fals"], "no queue named 'fals'; did you mean 'fails", "unknown_queue"),
        (
            ["dlq", "show", "nope"],
            "no dead letter with id 'nope'; it may have been run again (redriven) or discarded. Run `penstock dlq` to see the queues",
            "unknown_job",
        ),
        (["dlq", "show", "x.dlq"], "it may have been run again (redriven) or discarded", "unknown_job"),
        (["jobs", "greet"], "no command named 'jobs greet'; did you mean 'retry' or 'jobs list greet'?", "usage"),
        (["jobs", "shwo", "x"], "no command named 'jobs shwo'; did you mean 'show' or", "usage"),
        (["queues", "pause", "gret"], "no queue named 'gret'; did you mean 'greet'?", "unknown_queue"),
    ],
)
def test_the_error_suggests_a_fix(penstock: Callable, args: list[str], message: str, code: str) -> None:
    answer = penstock(*args)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert answer.err.endswith(f"{code}]\n")


@pytest.mark.parametrize(
    "args",
    [
        ["start", "greet"],
        ["worker"],
        ["worker", "--processes", "2"],
        ["dev"],
        ["emit", "a.b"],
        ["schedules", "add", "x", "--flow", "greet", "--every", "1m"],
        ["import", "order.json"],
        ["runs"],
        ["queues"],
        ["state", "list"],
    ],
)
@pytest.mark.parametrize("url", [":memory:", "sqlite://:memory:"])
def test_a_memory_store_is_refused(penstock: Callable, args: list[str], url: str) -> None:
    answer = penstock(*args, "--url", url)
    assert (answer.code, answer.out) == (2, "")
    assert f"the store {url!r} is in the memory of this command: no other process sees it, and it is lost" in answer.err
    assert answer.err.endswith("[config_error]\n")


def test_run_accepts_a_memory_store(penstock: Callable) -> None:
    assert "Hello, Ada!" in penstock("run", "greet", "--input", '"Ada"', "--url", ":memory:").out
    assert penstock("flows", "--url", ":memory:").code == 0


def test_a_queue_without_dead_letters_is_not_an_error(penstock: Callable) -> None:
    assert "No dead letters in queue greet." in penstock("dlq", "list", "greet").err
    assert penstock("dlq", "list", "greet-dlq").code == 0
    assert "Redrove 0 dead letters." in penstock("dlq", "redrive", "--all", "greet").out


@pytest.mark.parametrize("id", ["bad.fails.1", "bad.fails.1.dlq"])
def test_a_dead_letter_is_found_by_its_own_id_and_by_its_jobs(penstock: Callable, id: str) -> None:
    assert penstock("dlq", "show", id, "--json").json["id"] == "bad.fails.1.dlq"
    assert penstock("dlq", "list", "fails", "--after", id).out == ""
    assert penstock("dlq", "list", "fails-dlq", "--json").json["id"] == "bad.fails.1.dlq"
    assert penstock("dlq", "redrive", id, "--json").json["sent"] == {"bad.fails.1.dlq": "bad.fails.1.redrive-1"}


@pytest.mark.parametrize("id", ["bad.fails.1", "bad.fails.1.dlq"])
def test_a_dead_letter_is_discarded_by_either_id(penstock: Callable, id: str) -> None:
    assert penstock("dlq", "discard", id).code == 0
    assert penstock("dlq", "show", id).code == 2


def test_lists_in_a_pipe_have_a_header(penstock: Callable) -> None:
    assert penstock("queues").lines[0].split() == ["queue", "paused", "oldest", *(state.value for state in JobState)]
    for args in (["runs"], ["flows"], ["settings"], ["dlq"]):
        head, first, *_ = penstock(*args).lines
        assert head.split()[0] in ("id", "flow", "setting", "queue")
        assert first


def test_singular_and_plural(penstock: Callable, project: Path) -> None:
    for name in ("gated", "fails"):
        (project / "workers" / f"{name}.py").unlink()
    assert "1 flow, 0 jobs, no problems" in penstock("doctor").out


def test_a_schedule_in_the_past_is_warned_about(penstock: Callable) -> None:
    answer = penstock("schedules", "add", "x", "--flow", "greet", "--at", "2001-01-01")
    assert (
        answer.code,
        "--at 2001-01-01 is in the past; the schedule fires as soon as a worker runs." in answer.err,
    ) == (
        0,
        True,
    )


def test_a_key_error_names_its_type(penstock: Callable, project: Path) -> None:
    (project / "workers" / "keys.py").write_text(
        "from penstock import flow\n@flow('keys')\ndef keys(x):\n    return x['name']\n"
    )
    assert "error KeyError: 'name'" in penstock("run", "keys", "--input", '{"nme": 1}').out
