"""The approval example: an order that waits for a person, with skipped time and with a worker that is really killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock import App
from penstock.core.errors import SchemaViolation, TriggerUsed
from penstock.testing import TestApp, until

APPROVAL = Path(__file__).parents[2] / "examples" / "approval"
LARGE = {"id": "o-1", "customer": "Ada", "cents": 250_000}
SMALL = {"id": "o-2", "customer": "Bob", "cents": 900}
YES, NO = {"approved": True, "by": "Eve"}, {"approved": False, "by": "Eve"}
DAY_MS = 86_400_000


@pytest.fixture
def outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "outbox.txt"
    monkeypatch.setenv("OUTBOX", str(file))
    monkeypatch.delitem(sys.modules, "outbox", raising=False)
    return file


@pytest.fixture
async def app(outbox: Path) -> AsyncIterator[TestApp]:
    async with TestApp(dir=APPROVAL / "workers") as app:
        assert app.registry.problems == ()
        yield app


def letters(outbox: Path) -> list[str]:
    return [line.partition(" | /api")[0] for line in outbox.read_text("utf-8").splitlines()]


def links(outbox: Path) -> list[str]:
    return [line.rpartition(" | ")[2] for line in outbox.read_text("utf-8").splitlines() if " | /api" in line]


async def test_a_small_order_needs_no_approval(app: TestApp, outbox: Path) -> None:
    run = await app.run_flow("order", SMALL)
    assert (run.status, run.result) == ("completed", "delivered o-2")
    assert letters(outbox) == ["customer | o-2 is on its way, approved by rule"]


async def test_approval_without_a_reminder(app: TestApp, outbox: Path) -> None:
    run, start = await app.start("order", LARGE), app.time.now_ms()
    await app.fire("approval", YES)
    assert (await app.finish(run)).result == "delivered o-1"
    assert letters(outbox) == [
        "manager | Approve 250000 cents for Ada?",
        "customer | o-1 is on its way, approved by Eve",
    ]
    assert app.time.now_ms() == start
    assert await app.pending_waits() == []


async def test_approval_after_a_reminder(app: TestApp, outbox: Path) -> None:
    run = await app.start("order", LARGE)
    await app.advance("23h")
    assert len(letters(outbox)) == 1
    assert {wait.kind for wait in await app.pending_waits(run)} == {"time", "trigger"}
    await app.advance("1h")
    assert letters(outbox)[1:] == ["manager | Ada still waits"]
    assert {wait.kind for wait in await app.pending_waits(run)} == {"trigger"}
    first, second = links(outbox)
    assert first != second
    await app.fire(first, YES)  # the link of the first letter works, too
    assert (await app.finish(run)).steps["review"].result == "approved"
    with pytest.raises(TriggerUsed):
        await app.fire(second, NO)


async def test_rejection(app: TestApp, outbox: Path) -> None:
    run = await app.start("order", LARGE)
    await app.fire("approval", NO)
    assert (await app.finish(run)).result == "called off o-1"
    assert letters(outbox)[-1] == "customer | o-1 is called off: Eve declined"


async def test_no_answer_for_a_week(app: TestApp, outbox: Path) -> None:
    start = app.time.now_ms()
    run = await app.run_flow("order", LARGE)
    assert app.time.now_ms() == start + 7 * DAY_MS
    assert (run.status, run.steps["review"].result) == ("completed", "unanswered")
    assert [line.partition(" | ")[0] for line in letters(outbox)] == ["manager", "manager", "customer"]


async def test_an_invalid_answer_is_refused_and_the_wait_stays_pending(app: TestApp) -> None:
    run = await app.start("order", LARGE)
    with pytest.raises(SchemaViolation):
        await app.fire("approval", {"approved": "maybe"})
    assert len(await app.pending_waits(run)) == 2
    await app.fire("approval", YES)
    assert (await app.finish(run)).status == "completed"


@pytest.mark.parametrize("attempt", [1, 2, 3])
@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_sends_no_mail_twice(app: TestApp, outbox: Path, attempt: int, after: bool) -> None:
    app.crash("review", attempt=attempt, after=after)
    run = await app.start("order", LARGE)
    await app.advance("25h")
    await app.fire("approval", YES)
    assert (await app.finish(run)).result == "delivered o-1"
    assert letters(outbox) == [
        "manager | Approve 250000 cents for Ada?",
        "manager | Ada still waits",
        "customer | o-1 is on its way, approved by Eve",
    ]


async def test_a_worker_killed_during_the_wait(outbox: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/approval.db"
    command = [sys.executable, "-m", "penstock.cli", "worker", "--url", url, "--dir", str(APPROVAL / "workers")]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    async with App(url, APPROVAL / "workers") as app:
        try:
            run = await app.start("order", LARGE)
            await until(lambda: _waits(app, run), timeout=30)
        finally:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        await app.waits.fire(links(outbox)[0], YES)  # no worker runs: the answer is stored
        assert (await app.runs.get(run)).status == "running"
        async with app.workers.background():
            assert await app.result(run, timeout=30) == "delivered o-1"
    assert len(letters(outbox)) == 2


async def _waits(app: App, run: str) -> Any:
    step = (await app.runs.get(run)).steps.get("review")
    return step is not None and step.status == "waiting"
