"""The shop example, run for real: in this process, by the command line, and as its demo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock import App
from penstock.cli import main
from penstock.core.errors import SchemaViolation
from penstock.flows.reducer import RunView

SHOP = Path(__file__).parents[2] / "examples" / "shop"
LINES = [
    {"sku": "lamp", "quantity": 2, "price": 1900},
    {"sku": "bulb", "quantity": 4, "price": 450},
    {"sku": "cable", "quantity": 1, "price": 700},
]


def order(**rest: Any) -> dict[str, Any]:
    return {"id": "order-7", "customer": "Ada", "lines": LINES, **rest}


@pytest.fixture
async def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    """Return the shop with a running worker, without its simulated delays."""
    monkeypatch.setenv("SHOP_PACE", "0.005")
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    async with App(f"sqlite:///{tmp_path}/shop.db", SHOP / "workers") as app, app.workers.background():
        yield app


async def ended(app: App, **rest: Any) -> RunView:
    id = await app.start("shop", order(**rest))
    await app.runs.wait(id, timeout=30)
    return await app.runs.get(id)


async def test_every_file_loads(shop: App) -> None:
    assert shop.registry.problems == ()
    steps = {"validate", "reserve", "release", "charge", "refund", "ship", "notify"}
    assert set(shop.registry.flows["shop"].steps) == steps


async def test_an_order_is_completed(shop: App) -> None:
    run = await ended(shop)
    assert run.status == "completed"
    letter = "Dear Ada, 3 articles are on their way: parcel PS-order-7."
    assert run.result == {"order": "order-7", "parcel": "PS-order-7", "letter": letter}
    assert {step.status for step in run.steps.values()} == {"completed"}


async def test_lines_are_reserved_concurrently_and_counted_once(shop: App) -> None:
    run = await ended(shop)
    assert [key for key in run.steps if key.startswith("reserve")] == ["reserve", "reserve#2", "reserve#3"]
    assert await shop.state.of_run(run.id).get("reserved") == 3
    assert [event["data"] for event in run.emitted if event["kind"] == "stock.reserved"] == [{"lines": 3}]


async def test_the_payment_succeeds_at_the_third_attempt_under_one_key(shop: App) -> None:
    run = await ended(shop)
    assert run.steps["charge"].attempt == 3
    assert run.steps["charge"].result == {
        "order": "order-7", "amount": 6300, "key": f"{run.id}.charge.1.payment",
    }  # fmt: skip


async def test_shipping_shows_progress_and_partial_output(shop: App) -> None:
    run = await ended(shop)
    assert run.steps["ship"].progress == 100
    assert "".join(run.steps["notify"].partials).strip() == run.result["letter"]


async def test_an_order_that_cannot_be_delivered_is_compensated_in_reverse_order(shop: App) -> None:
    run = await ended(shop, deliverable=False)
    assert run.status == "compensated"
    assert run.error == "no carrier delivers order order-7"
    assert run.steps["refund"].result == {"refunded": 6300}
    undone = [log["msg"] for log in run.logs]
    assert undone[0] == "6300 cents go back for order order-7"
    assert set(undone[1:]) == {f"{line['quantity']} × {line['sku']} back on the shelf" for line in LINES}
    assert "notify" not in run.steps


async def test_an_order_without_lines_fails_before_anything_is_done(shop: App) -> None:
    run = await ended(shop, lines=[])
    assert (run.status, list(run.steps)) == ("failed", ["validate"])
    assert run.error == "order order-7 has no lines"


async def test_an_invalid_order_is_refused(shop: App) -> None:
    with pytest.raises(SchemaViolation, match="does not match Order"):
        await shop.start("shop", {"id": "order-7"})


def test_the_command_line_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHOP_PACE", "0.005")
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    place = ["--dir", str(SHOP / "workers"), "--url", f"sqlite:///{tmp_path}/shop.db"]
    assert main(["run", "shop", "--input", f"@{SHOP / 'order.json'}", *place]) == 0
    assert main(["run", "shop", "--input", f"@{SHOP / 'undeliverable.json'}", *place]) == 1
    out = capsys.readouterr().out
    assert "completed" in out
    assert "compensated" in out


def test_the_demo_completes_and_keeps_its_runs(tmp_path: Path) -> None:
    env = {**os.environ, "SHOP_STORE": str(tmp_path / "demo.db")}
    demo = [sys.executable, str(SHOP / "demo.py")]
    done = subprocess.run(demo, env=env, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "completed" in done.stdout
    assert "compensated" in done.stdout
    assert re.search(r"✓ ship +[\d.]+ m?s +attempt 2", done.stdout)
    commands = [line.strip() for line in done.stdout.splitlines() if "--url" in line]
    assert len(commands) == 3
    for command in commands:  # as a person types them, where the demo was started
        looked = subprocess.run(command, shell=True, env=env, capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert (looked.returncode, looked.stderr) == (0, ""), command
        assert "order-100" in looked.stdout
