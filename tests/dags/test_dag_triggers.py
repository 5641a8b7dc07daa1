"""What starts runs of dags: schedules, webhooks and events, on every store."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import flow
from penstock.core.errors import DagInvalid, UnknownWebhook
from penstock.dags import DagBuilder
from penstock.dags import node as executor
from penstock.dags.definition import read_dag
from penstock.schedules.spec import decode_spec
from penstock.testing import until


@executor("echo")
async def echo(input: Any) -> Any:
    return input


@flow("other", webhook="taken")
async def other(input: Any) -> None:
    return None


def make(*triggers: dict[str, Any], id: str = "d") -> Any:
    builder = DagBuilder(id, triggers=triggers)
    builder.add("a", "echo")
    return builder.build()


async def find_runs(a: Any, count: int = 1) -> Any:
    async def find() -> Any:
        found = [one for one in await a.runs.list() if one.status == "completed"]
        return found if len(found) >= count else None

    return await until(find)


@pytest.mark.spec("004-4.2")
async def test_a_schedule_is_stored_with_its_dag_and_fires(kit: Any) -> None:
    async with kit(echo) as a:
        await a.dags.register(make({"type": "schedule", "config": {"cron": "0 * * * *", "input": {"n": 1}}}))
        (row,) = await a.store.schedules()
        assert row.id == "dag.d.0"
        await a.advance("61m")
        (run, *_) = await find_runs(a)
        assert (run.flow, run.kind) == ("d", "dag")
        assert await a.runs.result(run.id) == {"n": 1}
        assert run.id.startswith("dag.d.0.")


@pytest.mark.spec("004-4.3")
@pytest.mark.spec("004-4.4")
async def test_a_changed_schedule_leaves_no_old_one_and_a_deactivated_dag_none(app: Any) -> None:
    async with app(echo) as a:
        await a.dags.register(make({"schedule": "0 8 * * *"}, {"schedule": "15m"}))
        assert len(await a.store.schedules()) == 2
        await a.dags.register(make({"schedule": {"cron": "0 9 * * *", "timezone": "Europe/Berlin"}}))
        (row,) = await a.store.schedules()
        spec = decode_spec(row)
        assert (spec.cron, spec.tz) == ("0 9 * * *", "Europe/Berlin")
        assert await a.dags.deactivate("d")
        assert await a.store.schedules() == []
        assert await a.dags.activate("d")
        assert [one.id for one in await a.store.schedules()] == ["dag.d.0"]


async def test_a_webhook_starts_a_run_by_path_and_method(app: Any) -> None:
    async with app(echo, other) as a, a.workers.background():
        await a.dags.register(make({"webhook": {"path": "expenses", "method": "PUT"}}, {"webhook": "old"}))
        headers = {"idempotency-key": "k1"}
        receipt = await a.webhooks.receive("expenses", "PUT", headers, b'{"amount": 5}')
        assert receipt.is_new
        assert await a.runs.result(receipt.run, timeout=20) == {"amount": 5}
        again = await a.webhooks.receive("expenses", "PUT", headers, b'{"amount": 5}')
        assert (again.run, again.is_new) == (receipt.run, False)
        await a.dags.register(make({"webhook": "expenses"}))
        with pytest.raises(UnknownWebhook):
            await a.webhooks.get("old")
        assert (await a.webhooks.get("expenses")).methods == ("POST",)
        with pytest.raises(DagInvalid, match=r"triggers\[0\].webhook: the path 'taken' belongs to flow 'other'"):
            await a.dags.register(make({"webhook": "taken"}, id="e"))
        await a.dags.deactivate("d")
        with pytest.raises(UnknownWebhook):
            await a.webhooks.receive("expenses", "POST", {}, b"1")


async def test_an_event_starts_a_run_once(app: Any) -> None:
    async with app(echo) as a, a.workers.background():
        await a.dags.register(make({"event": {"kind": "order.placed", "match": {"shop": 1}}}))
        await a.emit("order.placed", {"shop": 2})
        await a.emit("order.placed", {"shop": 1, "n": 7})
        (run,) = await find_runs(a)
        assert await a.runs.result(run.id) == {"shop": 1, "n": 7}
        await a.dags.deactivate("d")
        await a.dags.register(make({"event": "order.paid"}, id="e"))
        await a.emit("order.placed", {"shop": 1})
        await a.emit("order.paid", 8)
        runs = await find_runs(a, 2)
        assert sorted(one.flow for one in runs) == ["d", "e"]


def test_triggers_are_read_back_as_they_are_shown() -> None:
    dag = make({"schedule": "15m"}, {"webhook": "/a/b/"}, {"event": "order.placed"})
    assert read_dag(dag) == dag
    assert [one.webhook.path for one in dag.triggers if one.webhook] == ["a/b"]
