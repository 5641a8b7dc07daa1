"""A bridge and BullMQ for Node take each other's jobs, on a Redis that is not the store."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App
from penstock.core.errors import ConfigError
from penstock.core.payload import unpack
from penstock.handlers.decorators import job
from penstock.messaging.bullmq import AddJob, BullMQ
from penstock.ports.bridge import Message
from penstock.ports.unit import JobState
from penstock.testing.until import until

pytestmark = pytest.mark.xdist_group("interop")
QUICK = {"poll": "20ms"}
DATA = {"urn": "urn:order:7", "payload": {"text": "\U0001f9ea é", "list": [], "map": {}, "n": 2**53 - 1}}


@job(queue="mail")
async def mail(input: Any) -> Any:
    return input


@pytest.mark.spec("002-3.6", "002-3.11", "002-5.2", "002-5.3")
async def test_a_failed_node_job_is_one_dead_letter_that_node_reads(node: Any, redis_url: str) -> None:
    attempts: list[int] = []

    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        raise OSError(f"no luck {message.attempt}")

    bridge = BullMQ(redis_url, consume={"orders": handle}, **QUICK)
    async with App(":memory:", handlers=[mail], bridges=[bridge]) as app, app.workers.background():
        opts = {"attempts": 3, "backoff": {"type": "exponential", "delay": 5}}
        id = await node.call("add", queue="orders", name="paid", data=DATA, opts=opts)
        failed = await node.job_in("orders", id, "failed")
        letters = await node.call("counts", queue="orders-dlq")
        await node.call("work", queue="orders-dlq")
        letter = await until(lambda: _first_completed(bridge, "orders-dlq"), 30)
    assert attempts == [1, 2, 3]
    assert (failed["failedReason"], failed["attemptsMade"]) == ("no luck 3", 3)
    assert letters["waiting"] == 1
    record = letter["data"]
    assert letter["name"] == "paid-failed"
    assert (record["originalJobId"], record["originalJobName"], record["originalData"]) == (id, "paid", DATA)
    assert (record["error"]["message"], record["attemptsMade"]) == ("no luck 3", 3)
    assert "handle" in record["error"]["stack"]
    assert record["failedAt"].endswith("Z")


async def _first_completed(bridge: BullMQ, queue: str) -> dict[str, Any] | None:
    rows = await bridge._require_store().jobs(queue, JobState.COMPLETED)
    return {"name": rows[0].name, "data": unpack(rows[0].payload)} if rows else None


@pytest.mark.spec("002-1.4", "002-2.5", "002-2.6", "002-2.7")
async def test_our_messages_reach_node_and_its_jobs_reach_us(node: Any, redis_url: str) -> None:
    bridge = BullMQ(redis_url, consume={"letters": AddJob("mail")}, **QUICK)
    async with App(":memory:", handlers=[mail], bridges=[bridge]) as app, app.workers.background():
        await node.call("work", queue="orders")
        sent = await bridge.produce("orders", "paid", DATA)
        done = await node.job_in("orders", sent, "completed")
        assert done["returnvalue"] == {"seen": DATA, "by": "node"}
        assert done["opts"]["attempts"] == 3
        assert done["opts"]["backoff"] == {"type": "exponential", "delay": 30_000}
        assert (done["opts"]["removeOnComplete"], done["opts"]["removeOnFail"]) == (1000, 5000)
        id = await node.call("add", queue="letters", name="letter", data=DATA, opts={})
        await node.job_in("letters", id, "completed")
        (row,) = await until(lambda: app.jobs.list("mail", state="completed"), 30)
        assert row.result == DATA


async def test_the_store_of_the_app_has_bullmqs_queues_already(redis_url: str) -> None:
    seen: list[Any] = []

    async def handle(message: Message) -> None:
        seen.append(message.data)

    bridge = BullMQ(consume={"orders": handle}, **QUICK)
    async with App(redis_url, handlers=[mail], bridges=[bridge]) as app, app.workers.background():
        await bridge.produce("orders", "paid", {"urn": "a"})
        await until(lambda: seen == [{"urn": "a"}], 30)
    with pytest.raises(ConfigError, match="a handler of the App takes its jobs"):
        async with App(redis_url, handlers=[mail], bridges=[BullMQ(redis_url, consume={"mail": handle})]):
            pass
    with pytest.raises(ConfigError, match="uses the Redis of the App, but it has none"):
        async with App(":memory:", handlers=[mail], bridges=[BullMQ()]):
            pass
