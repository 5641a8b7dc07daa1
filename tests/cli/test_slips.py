"""Slips of a first hour: each is told in a sentence that says what to do, and nothing is done in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.ports.unit import JobState


@pytest.fixture(autouse=True)
def _ran(penstock: Callable, project: Path) -> None:
    penstock("run", "greet", "--key", "mine", "--input", '"Ada"')
    penstock("run", "fails", "--key", "bad")
    (project / "order.json").write_text('{"id": 7}')


@pytest.mark.parametrize(
    ("args", "says", "code"),
    [
        (["runs", "--status", "faild"], "status='faild': did you mean 'failed'?", "bad_argument"),
        (["runs", "--flow", "gret"], "there is no run of flow 'gret': did you mean 'greet'?", "unknown_flow"),
        (["runs", "--before", "nope"], "there is no run 'nope'", "unknown_run"),
        (["runs", "shw", "mine"], "There is no command runs shw: did you mean 'show'?", "usage"),
        (["queues", "stop"], "There is no command queues stop: ", "usage"),
        (["start", "greet", "more"], "more is too much: start greet more.", "usage"),
        (["run", "greet", "--input", "order.json"], "to read the file of that name write --input @order.json", "json"),
        (["start", "greet", "--delay", "-5s"], "--delay: '-5s' is not a duration", "usage"),
        (
            ["schedules", "add", "s", "--flow", "greet", "--every", "1d", "--input", "{id: 7}"],
            '--input \'{"id": ',
            "json",
        ),
        (["state", "set", "a", "zzz"], "the value is not JSON: ", "not_json"),
        (["state", "set", "a", "zzz"], "text has quotes of its own: '\"zzz\"'", "not_json"),
        (["dlq", "list", "fals"], "there is no queue 'fals': did you mean 'fails", "unknown_queue"),
        (["dlq", "redrive", "--all", "fals"], "there is no queue 'fals': did you mean 'fails", "unknown_queue"),
        (["dlq", "show", "nope"], "there is no dead letter 'nope': `penstock dlq` lists the queues", "unknown_job"),
        (["queues", "pause", "gret"], "there is no queue 'gret': did you mean 'greet'?", "unknown_queue"),
    ],
)
def test_slips(penstock: Callable, args: list[str], says: str, code: str) -> None:
    answer = penstock(*args)
    assert (answer.code, answer.out) == (2, "")
    assert says in answer.err
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
def test_a_store_that_ends_with_the_command_is_refused(penstock: Callable, args: list[str], url: str) -> None:
    answer = penstock(*args, "--url", url)
    assert (answer.code, answer.out) == (2, "")
    assert f"the store {url!r} is the memory of this very command, which nobody else sees" in answer.err
    assert answer.err.endswith("[config_error]\n")


def test_a_run_in_memory_is_fine(penstock: Callable) -> None:
    assert "Hello, Ada!" in penstock("run", "greet", "--input", '"Ada"', "--url", ":memory:").out
    assert penstock("flows", "--url", ":memory:").code == 0


def test_a_queue_without_letters_is_no_mistake(penstock: Callable) -> None:
    assert "No dead letters of queue greet." in penstock("dlq", "list", "greet").err
    assert penstock("dlq", "list", "greet-dlq").code == 0
    assert "Sent 0 dead letters again" in penstock("dlq", "redrive", "--all", "greet").out


@pytest.mark.parametrize("id", ["bad.fails.1", "bad.fails.1.dlq"])
def test_a_letter_is_known_by_its_own_id_and_by_that_of_its_job(penstock: Callable, id: str) -> None:
    assert penstock("dlq", "show", id, "--json").json["id"] == "bad.fails.1.dlq"
    assert penstock("dlq", "list", "fails", "--after", id).out == ""
    assert penstock("dlq", "list", "fails-dlq", "--json").json["id"] == "bad.fails.1.dlq"
    assert penstock("dlq", "redrive", id, "--json").json["sent"] == {"bad.fails.1.dlq": "bad.fails.1.redrive-1"}


@pytest.mark.parametrize("id", ["bad.fails.1", "bad.fails.1.dlq"])
def test_a_letter_is_discarded_by_either(penstock: Callable, id: str) -> None:
    assert penstock("dlq", "discard", id).code == 0
    assert penstock("dlq", "show", id).code == 2


def test_lists_into_a_pipe_have_a_header(penstock: Callable) -> None:
    assert penstock("queues").lines[0].split() == ["queue", "paused", *(state.value for state in JobState)]
    for args in (["runs"], ["flows"], ["settings"], ["dlq"]):
        head, first, *_ = penstock(*args).lines
        assert head.split()[0] in ("id", "flow", "setting", "queue")
        assert first


def test_one_is_not_many(penstock: Callable, project: Path) -> None:
    for name in ("gated", "fails"):
        (project / "workers" / f"{name}.py").unlink()
    assert "1 flow, 0 jobs, no problems" in penstock("doctor").out


def test_a_schedule_in_the_past_is_said(penstock: Callable) -> None:
    answer = penstock("schedules", "add", "x", "--flow", "greet", "--at", "2001-01-01")
    assert (answer.code, "--at 2001-01-01 is past: it fires as soon as a worker runs." in answer.err) == (0, True)


def test_a_missing_key_is_said_in_words(penstock: Callable, project: Path) -> None:
    (project / "workers" / "keys.py").write_text(
        "from penstock import flow\n@flow('keys')\ndef keys(x):\n    return x['name']\n"
    )
    assert "error KeyError: 'name'" in penstock("run", "keys", "--input", '{"nme": 1}').out
