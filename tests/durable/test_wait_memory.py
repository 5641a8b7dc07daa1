"""A waiting run holds no objects in the worker."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from typing import Any

from penstock import Context, flow
from penstock.testing import until


@flow("patient", emits=[])
async def patient(order: int, ctx: Context) -> None:
    called = ctx.wait.event("order.paid", match={"order": order}, name="paid")
    await ctx.first({"paid": called, "late": ctx.wait.time("30d")})


def count_objects() -> Counter[str]:
    """Count our live objects by class, and tasks."""
    gc.collect()
    kinds = (type(one) for one in gc.get_objects())
    ours = Counter(kind.__qualname__ for kind in kinds if str(kind.__module__).startswith("penstock."))
    ours["task"] = len(asyncio.all_tasks())
    return ours


async def test_waiting_runs_hold_no_objects_in_the_worker(app: Any) -> None:
    async with app(patient) as a, a.workers.background(concurrency=5):

        async def start_waiting(first: int, last: int) -> Counter[str]:
            runs = [str(await a.start("patient", n)) for n in range(first, last)]  # handles are objects of ours
            for run in runs:
                await a.wait_for_step(run, "patient", "delayed")  # until the time is over
            await until(deliveries_are_done)
            return count_objects()

        async def deliveries_are_done() -> bool:
            counts = await a.queues.counts("penstock-events")
            return counts["waiting"] + counts["active"] == 0

        few = await start_waiting(0, 20)
        many = await start_waiting(20, 100)
        more = {name: count for name, count in (many - few).items() if count >= 40}  # half of the eighty that came
        more.pop(
            "StreamHead", None
        )  # positions of the last 10,000 streams: tests/contracts/test_sqlite_stream_heads.py
        assert not more


@flow("one")
async def one(n: int, ctx: Context) -> None:
    await ctx.wait.time("30d")


@flow("many")
async def many(count: int, ctx: Context) -> None:
    await ctx.call_many("one", list(range(count)))


async def test_a_parent_holds_no_objects_for_its_waiting_children(app: Any) -> None:
    async with app(one, many) as a, a.workers.background(concurrency=5):

        async def start_waiting(children: int) -> Counter[str]:
            run = str(await a.start("many", children))

            async def all_wait() -> bool:
                waiting = [await a.runs.list(flow=name, status="waiting", limit=200) for name in ("one", "many")]
                return (
                    run in [row.id for row in waiting[1]] and sum(row.parent == run for row in waiting[0]) == children
                )

            await until(all_wait)

            async def deliveries_are_done() -> bool:
                counts = await a.queues.counts("penstock-events")
                return int(counts["waiting"] + counts["active"]) == 0

            await until(deliveries_are_done)
            return count_objects()

        few = await start_waiting(20)
        lots = await start_waiting(100)
        more = {name: count for name, count in (lots - few).items() if count >= 40}
        more.pop("StreamHead", None)
        assert not more
