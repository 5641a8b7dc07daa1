"""`--url http://…`: commands print the same from a server as from its store."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_routes import ROUTES

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
NEEDS_STORE = [["worker"], ["dev"], ["serve"], ["run", "greet"], ["migrate"]]
# One call of every command that has a route; `{}` is a new name.
EXAMPLES: dict[str, list[str]] = {
    "start": ["greet", "--key", "{}"],
    "runs show": ["done"],
    "runs pause": ["open"],
    "runs resume": ["open"],
    "runs cancel": ["open"],
    "runs retry": ["broken"],
    "runs replay": ["done"],
    "runs fork": ["done", "--at", "{event}"],
    "runs bulk": ["retry", "--status", "failed", "--dry-run"],
    "tail": ["done"],
    "events": ["done"],
    "logs": ["done"],
    "streams": ["flow"],
    "waits show": ["none"],
    "waits resolve": ["none"],
    "waits cancel": ["none"],
    "waits token": ["none"],
    "fire": ["none.token", "--data", "1"],
    "webhooks add": ["shop", "--event", "shop.called"],
    "webhooks remove": ["shop"],
    "webhooks receive": ["gone", "--data", "1"],
    "emit": ["order.paid"],
    "enqueue": ["mail", "--key", "{}", "--input", "1"],
    "queues rates": ["mail"],
    "queues pause": ["mail"],
    "queues resume": ["mail"],
    "queues drain": ["mail"],
    "queues limits": ["mail"],
    "queues keys": ["mail"],
    "jobs list": ["mail"],
    "jobs show": ["letter"],
    "jobs stack": ["letter"],
    "jobs retry": ["letter"],
    "jobs cancel": ["letter"],
    "jobs promote": ["letter"],
    "jobs remove": ["letter"],
    "dlq list": ["fails"],
    "dlq show": ["broken.fails.1"],
    "dlq redrive": ["--all", "fails"],
    "dlq discard": ["broken.fails.1"],
    "schedules add": ["hourly", "--queue", "mail", "--every", "1h"],
    "schedules pause": ["hourly"],
    "schedules resume": ["hourly"],
    "schedules next": ["hourly"],
    "schedules run-now": ["hourly"],
    "schedules remove": ["hourly"],
    "state get": ["greeting"],
    "state set": ["{}", "1"],
    "state delete": ["greeting"],
    "flows show": ["greet"],
    "dags show": ["none"],
    "dags register": ["none.json"],
    "dags check": ["none.json"],
    "dags compare": ["none", "1", "2"],
    "dags activate": ["none"],
    "dags deactivate": ["none"],
    "dags retry": ["none"],
    "entities show": ["none"],
    "entities emit": ["none", "go"],
    "entities history": ["none"],
    "entities diagram": ["none"],
    "diagram": ["greet", "--json"],
    "tokens revoke": ["none"],
    "alerts silence": ["stuck", "--for", "1h"],
    "alerts unsilence": ["none"],
    "blobs put": ["none", "none.txt"],
    "blobs get": ["none"],
    "blobs info": ["none"],
    "blobs url": ["none"],
    "blobs delete": ["none"],
    "export": ["done"],
    "import": ["none.jsonl"],
}
HAS_NOTHING = (
    "doctor",
    "webhooks receive",
    "waits",
    "alerts",
    "blobs",
    "dags",
    "entities",
    "fire",
    "tokens revoke",
    "import",
    "jobs",
    "dlq",
    "runs",
    "logs",
    "schedules",
)


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


def test_every_command_that_has_a_route_works_through_a_server(server: str, penstock: Callable) -> None:
    """Commands may answer that there is no such thing. None may crash, or ask for the store."""
    event = penstock("events", "done", "--json", "--url", STORE).out.splitlines()[0]
    id, wrong = json.loads(event)["id"], []
    for name in ROUTES:
        if name in ("tokens add", "check", "jobs execute"):
            continue  # they need a token for what follows, re-execute handlers, or wait for a worker
        args = [arg.format("new", event=id) if arg[:1] == "{" else arg for arg in EXAMPLES.get(name, ())]
        answer = penstock(*name.split(), *args, "--url", server)
        may_refuse = name.startswith(HAS_NOTHING)
        if answer.code == 70 or "needs_store" in answer.err or (answer.code and not may_refuse):
            wrong.append((name, args, answer.code, answer.err[-300:]))
    assert wrong == [], "\n".join(map(str, wrong))


def test_flows_settings_and_checks_are_those_of_the_server(server: str, penstock: Callable) -> None:
    for args in (["flows"], ["flows", "show", "greet"], ["diagram", "greet"]):
        by_store, by_server = (penstock(*args, "--json", "--url", url) for url in (STORE, server))
        assert (by_server.code, by_server.out) == (0, by_store.out), args
    by_store, by_server = (penstock("registry", "--json", "--url", url).json for url in (STORE, server))
    assert by_server | {"compiledAt": ""} == by_store | {"compiledAt": ""}
    lines = penstock("settings", "--json", "--url", server).out.splitlines()
    settings = {one["setting"]: one["value"] for one in map(json.loads, lines)}
    assert settings["url"] == STORE
    assert {one["name"] for one in penstock("doctor", "--json", "--url", server).json["checks"]} >= {"store"}
    assert "--json" in penstock("diagram", "greet", "--url", server).err


def test_webhooks_dead_letters_and_imports_through_a_server(server: str, penstock: Callable, project: Path) -> None:
    at = ("--json", "--url", server)
    assert penstock("webhooks", "add", "shop", "--event", "shop.called", *at).code == 0
    call = ("webhooks", "receive", "shop", "--data", "1", "--header", "Idempotency-Key: k-1", *at)
    assert [penstock(*call).json["isNew"] for _ in range(2)] == [True, False]
    assert penstock("dlq", "redrive", "--all", "fails", "--error", "no such text", *at).json["sent"] in ({}, [])
    assert penstock("dlq", "redrive", "--all", "fails", *at).json["sent"]
    assert penstock("dlq", "list", "fails", *at).out.strip() in ("", "[]")
    (project / "runs.jsonl").write_text(penstock("export", "done", "--url", STORE).out)
    refused = penstock("import", "runs.jsonl", "--url", server)
    assert (refused.code != 0, "done" in refused.err, "needs_store" in refused.err) == (True, True, False)


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
