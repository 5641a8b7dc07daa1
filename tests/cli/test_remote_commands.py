"""`--url http://…`: commands print the same from a server as from its store."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

STORE = "sqlite:///shared.db"
READS = [
    ["runs", "list"],
    ["runs", "list", "--status", "completed", "--json"],
    ["runs", "show", "done", "--json"],
    ["runs", "show", "broken", "--json"],
    ["runs", "show", "none"],
    ["events", "done"],
    ["events", "done", "--json"],
    ["events", "none"],
    ["streams", "flow"],
    ["logs", "done"],
    ["queues", "list", "--json"],
    ["jobs", "list", "mail", "--json"],
    ["jobs", "show", "letter", "--json"],
    ["jobs", "show", "none"],
    ["dlq", "list", "fails.dlq", "--json"],
    ["waits", "--json"],
    ["schedules", "list", "--json"],
    ["state", "list", "--json"],
    ["state", "get", "greeting"],
    ["state", "get", "none"],
    ["webhooks", "list", "--json"],
    ["workers", "--json"],
    ["tokens", "list", "--json"],
]
WRITES = [
    ["start", "greet", "--key", "{}", "--input", '"Ada"', "--json"],
    ["start", "greet", "--key", "{}", "--input", '"Ada"', "--json"],  # it exists now
    ["runs", "pause", "{}"],
    ["runs", "resume", "{}"],
    ["runs", "cancel", "{}", "--json"],
    ["enqueue", "mail", "--key", "{}-job", "--input", "1", "--json"],
    ["jobs", "cancel", "{}-job", "--json"],
    ["emit", "order.paid", "--data", "7", "--json"],
    ["state", "set", "{}", "1"],
    ["state", "get", "{}"],
    ["state", "delete", "{}"],
]
NEEDS_STORE = [["worker"], ["dev"], ["serve"], ["run", "greet"], ["flows"], ["registry"], ["migrate"]]


@pytest.fixture
def server(child: Callable, penstock: Callable, project: Path) -> Iterator[str]:
    """A server on a store with runs, jobs and state; return its address."""
    (project / "workers" / "mail.py").write_text(
        "from penstock import job\n\n@job(queue='mail')\ndef mail(n):\n    return n\n"
    )
    store = ("--url", STORE)
    penstock("run", "greet", "--key", "done", "--input", '"Eve"', *store)
    penstock("run", "fails", "--key", "broken", *store)
    assert penstock("enqueue", "mail", "--key", "letter", "--input", "1", *store).code == 0
    penstock("state", "set", "greeting", '"hello"', *store)
    process = child("serve", "--port", "0", "--json", *store)
    process.wait_for_output('"address"')
    yield str(json.loads(process._output[-1])["address"])
    process.signal(signal.SIGTERM)
    assert process.end().code == 0


def without_ages(text: str) -> list[str]:
    """Return the lines of an output without the times that pass between two commands."""
    return re.sub(r'"(oldest\w*|age\w*)": [^,}]+', "", text).splitlines()


def test_a_server_answers_as_its_store(server: str, penstock: Callable) -> None:
    different = []
    for args in READS:
        by_store, by_server = (penstock(*args, "--url", url) for url in (STORE, server))
        if (by_server.code, *without_ages(by_server.out)) != (by_store.code, *without_ages(by_store.out)):
            different.append((args, by_store.out[-300:], by_server.out[-300:], by_server.err))
    assert different == []


def test_commands_through_a_server_do_the_same(server: str, penstock: Callable) -> None:
    for args in WRITES:
        answers = []
        for name, url in (("ab-store", STORE), ("ab-server", server)):
            answer = penstock(*(arg.format(name) if "{}" in arg else arg for arg in args), "--url", url)
            answers.append((answer.code, answer.out.replace(name, "X")))
        assert answers[0] == answers[1], (args, answer.err)
        assert answers[0][0] == 0, args


@pytest.mark.parametrize("args", NEEDS_STORE, ids=" ".join)
def test_other_commands_say_that_they_need_the_store(penstock: Callable, args: list[str]) -> None:
    answer = penstock(*args, "--url", "http://127.0.0.1:1")
    assert answer.code == 2
    assert "needs direct access to the store" in answer.err
    assert "[needs_store]" in answer.err


def test_a_token_is_an_option_a_variable_or_a_setting(
    server: str, penstock: Callable, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = penstock("tokens", "add", "ada", "--url", STORE, "--json").json["text"]
    address = ("runs", "list", "--url", server)
    assert "[unauthorized]" in penstock(*address, "--token", "pst_wrong_token").err
    assert penstock(*address, "--token", token).code == 0
    with monkeypatch.context() as patch:
        patch.setenv("PENSTOCK_TOKEN", token)
        assert penstock(*address).code == 0
    (project / "penstock.toml").write_text(f'token = "{token}"\n')
    assert penstock(*address).code == 0


def test_a_server_that_is_away(penstock: Callable) -> None:
    answer = penstock("runs", "list", "--url", "http://127.0.0.1:1")
    assert "does not answer" in answer.err
