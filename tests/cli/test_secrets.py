"""Secrets in the store are hidden in the output, except with --reveal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import App
from penstock.core.redaction import REDACTED
from penstock.testing.until import until

SECRET = "hunter2-canary"
LOGIN = """
from penstock import job

@job(queue="logins")
def login(who):
    raise ValueError("no entry")
"""
WAITER = f"""
from penstock import flow, SyncContext

@flow("waiter")
def waiter(ctx: SyncContext):
    ctx.wait.event("sent", match={{"uploadToken": "{SECRET}"}})
"""
INPUT = f'{{"name": "ada", "password": "{SECRET}"}}'


@pytest.fixture
def failed(penstock: Callable, project: Path) -> str:
    """A failed step with a secret in its input."""
    (project / "workers" / "login.py").write_text(
        LOGIN + "\nfrom penstock import flow\n@flow('door')\ndef door(who):\n    raise ValueError('no entry')\n"
    )
    penstock("run", "door", "--key", "mine", "--input", INPUT)
    return "mine.door.1"


@pytest.mark.parametrize(
    "args",
    [
        ["jobs", "show", "mine.door.1"],
        ["jobs", "list", "login", "--state", "failed"],
        ["dlq", "show", "mine.door.1"],
        ["dlq", "show", "mine.door.1.dlq"],
        ["dlq", "list", "login"],
    ],
)
def test_inputs(penstock: Callable, failed: str, args: list[str]) -> None:
    for options in ([], ["--json"]):
        hidden = penstock(*args, *options)
        assert (hidden.code, SECRET in hidden.out + hidden.err) == (0, False)
    assert REDACTED in hidden.out
    shown = penstock(*args, "--json", "--reveal")
    assert SECRET in shown.out


def test_a_redriven_job_keeps_its_secret(penstock: Callable, failed: str) -> None:
    assert penstock("dlq", "redrive", failed).code == 0
    sent = penstock("jobs", "show", f"{failed}.redrive-1", "--json", "--reveal")
    assert sent.json["input"]["password"] == SECRET


def test_state_and_schedules(penstock: Callable) -> None:
    penstock("start", "greet")
    penstock("state", "set", "api_token", f'"{SECRET}"')
    penstock("state", "set", "bank", INPUT)
    penstock("schedules", "add", "daily", "--flow", "greet", "--every", "1d", "--input", INPUT)
    for args in (["state", "get", "api_token"], ["state", "get", "bank"], ["state", "list"], ["schedules", "list"]):
        for options in ([], ["--json"]):
            assert SECRET not in penstock(*args, *options).out
        assert SECRET in penstock(*args, "--json", "--reveal").out


def test_waits(penstock: Callable, project: Path) -> None:
    (project / "workers" / "wait.py").write_text(WAITER)

    async def wait() -> None:
        async with App(dir="workers") as app, app.workers.background():
            await app.start("waiter", key="w")
            await until(app.waits.list, 30)

    asyncio.run(wait())
    for args in (["waits"], ["waits", "--json"], ["doctor", "w"], ["doctor", "w", "--json"]):
        hidden = penstock(*args)
        assert (SECRET in hidden.out + hidden.err, REDACTED in hidden.out) == (False, True)
    assert SECRET in penstock("waits", "--json", "--reveal").out


def test_the_setting_redact_names_the_keys(penstock: Callable, failed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_REDACT", "name")
    input = penstock("jobs", "show", failed, "--json").json["input"]
    assert input == {"name": REDACTED, "password": SECRET}
