"""The expenses example: a branch by amount, an approval by webhook, a sub-workflow and a map, on every store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.app.dag_files import check_dag_files, register_dag_files
from penstock.testing import TestApp, until

WORKERS = Path(__file__).parents[2] / "examples" / "expenses" / "workers"
LUNCH = {"what": "lunch", "kind": "meals", "cents": 9_000}
TRAIN = {"what": "train", "kind": "travel", "cents": 12_001}
FLIGHT = {"what": "flight", "kind": "travel", "cents": 90_001}


@pytest.fixture
def expenses(url: str) -> Callable[..., TestApp]:
    return lambda: TestApp(url, WORKERS)


def report(*lines: dict[str, Any]) -> dict[str, Any]:
    return {"employee": "Ada", "lines": list(lines)}


async def test_a_small_report_is_paid_without_approval(expenses: Callable[..., TestApp]) -> None:
    async with expenses() as app:
        await register_dag_files(app)
        assert await check_dag_files(app) == []
        view = await app.run_dag("expenses", report(TRAIN, LUNCH), key="r1")
        assert view.result["status"] == "paid"
        assert view.result["receipt"].startswith("res-20001 by payment-")
        assert view.steps["total"].result == {"cents": 20_001, "cut": ["lunch"]}
        assert {id for id, one in view.steps.items() if one.status == "skipped"} == {"approval", "decision", "reject"}
        (payment,) = await app.runs.children("r1")
        reserve = (await app.runs.get(payment.id)).steps["reserve"]
        assert (reserve.status, reserve.attempt) == ("completed", 2)


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ({"approved": True}, {"status": "paid"}),
        ({"approved": False, "why": "fly less"}, {"status": "rejected", "why": "fly less"}),
        ({"approved": False}, {"status": "rejected", "why": "no reason given"}),
    ],
)
async def test_a_manager_decides_about_a_large_report(
    expenses: Callable[..., TestApp], answer: dict[str, Any], result: dict[str, Any]
) -> None:
    async with expenses() as app:
        await register_dag_files(app)
        run = await app.dags.start("expenses", report(FLIGHT), key="r1")
        await app.settle()
        (wait,) = await app.waits.list(run="r1")
        assert (await app.waits.get(wait.id)).payload == {"employee": "Ada", "cents": 90_001}
        await app.fire("approval", answer, run="r1")
        view = await app.finish(run.id)
        view.result.pop("receipt", None)
        assert view.result == result


async def test_a_report_that_nobody_answers_fails_after_a_week(expenses: Callable[..., TestApp]) -> None:
    async with expenses() as app:
        await register_dag_files(app)
        view = await app.run_dag("expenses", report(FLIGHT))
        assert (view.status, view.steps["approval"].status) == ("failed", "failed")


async def test_a_wrong_line_fails_the_report_and_names_itself(expenses: Callable[..., TestApp]) -> None:
    async with expenses() as app:
        await register_dag_files(app)
        view = await app.run_dag("expenses", report(TRAIN, {"what": "yacht", "kind": "boats", "cents": 1}))
        assert "yacht: no such kind of expense: boats" in (view.error or "")


async def test_a_webhook_starts_a_report_and_a_killed_worker_loses_nothing(expenses: Callable[..., TestApp]) -> None:
    async with expenses() as app:
        await register_dag_files(app)
        app.crash("transfer", after=True)  # its worker dies after the bank was called
        body = b'{"employee": "Ada", "lines": [{"what": "book", "kind": "books", "cents": 1000}]}'
        receipt = await app.webhooks.receive("expenses", "POST", {}, body)

        async def ended() -> Any:
            return (await app.runs.get(receipt.run)).completed_at

        await app.finish(receipt.run)
        await until(ended)
        view = await app.runs.get(receipt.run)
        assert view.result["status"] == "paid"
        (payment,) = await app.runs.children(receipt.run)
        assert (await app.runs.get(payment.id)).steps["transfer"].attempt == 2
