"""`app.start` returns the handle of a run: its id, with methods and a typed result."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from penstock import Context, Run, SyncApp, SyncRun, flow, job, step
from penstock.core.errors import RunCancelled, SchemaViolation, UnknownRun


@dataclass
class Receipt:
    order: int
    total: float = 0.0


class Parcel(msgspec.Struct):
    id: int


class Letter(BaseModel):
    to: str


@flow("pay")
async def pay(order: int, ctx: Context) -> Receipt:
    return Receipt(order, 9.5)


@flow("list-receipts")
async def list_receipts(count: int) -> list[Receipt]:
    return [Receipt(n) for n in range(count)]


@flow("pack")
def pack(id: int) -> Parcel:
    return Parcel(id)


@flow("write")
async def write(to: str) -> Letter:
    return Letter(to=to)


@flow("date")
async def date(ctx: Context) -> datetime | None:
    return datetime(2024, 2, 29, tzinfo=UTC)


@flow("lie")
async def lie(order: int) -> Receipt:
    return {"total": 1}  # type: ignore[return-value]


@flow("two-steps", emits=["first.done"])
async def two_steps(order: int, ctx: Context) -> int:
    ctx.emit("first.done", order)
    return order


@step(on="first.done")
async def last(order: int) -> dict[str, Any]:
    return {"order": order, "total": 1}


@flow("waits")
async def waits(order: int, ctx: Context) -> None:
    await ctx.wait.event("never.comes")


@job(queue="mail")
async def mail(text: Any) -> Any:
    return text


HANDLERS = (pay, list_receipts, pack, write, date, lie, two_steps, last, waits, mail)


async def test_the_result_has_the_type_that_the_function_declares(app: Callable[..., Any]) -> None:
    async with app(*HANDLERS) as one, one.workers.background():
        assert await (await one.start(pay, 7)).result() == Receipt(7, 9.5)
        assert await (await one.start(list_receipts, 2)).result() == [Receipt(0), Receipt(1)]
        assert await (await one.start(pack, 3)).result() == Parcel(3)
        assert await (await one.start(write, "ada")).result() == Letter(to="ada")
        assert await (await one.start(date)).result() == datetime(2024, 2, 29, tzinfo=UTC)
        assert await (await one.start(waits, 1)).cancel()


async def test_json_stays_json_where_no_type_is_known(memory: Callable[..., Any]) -> None:
    async with memory(*HANDLERS) as one, one.workers.background():
        assert await (await one.start("pay", 7)).result() == {"order": 7, "total": 9.5}
        assert await one.result(await one.start(pay, 7)) == {"order": 7, "total": 9.5}
        assert await (await one.start(two_steps, 7)).result() == {"order": 7, "total": 1}


async def test_result_declares_the_type_of_a_flow_with_several_steps(memory: Callable[..., Any]) -> None:
    async with memory(*HANDLERS) as one, one.workers.background():
        run = await one.start(two_steps, 7, result=Receipt)
        assert await run.result() == Receipt(7, 1)
        assert await one.runs.handle(run.id, Receipt).result() == Receipt(7, 1)
        assert await one.runs.handle(run.id).result() == {"order": 7, "total": 1}


async def test_a_result_of_another_shape_is_refused(memory: Callable[..., Any]) -> None:
    async with memory(*HANDLERS) as one, one.workers.background():
        run = await one.start(lie, 7)
        with pytest.raises(SchemaViolation, match=f"the result of run '{run}' does not match Receipt: .*order"):
            await run.result()
        with pytest.raises(SchemaViolation, match="does not match list"):
            await one.runs.handle(run, list[int]).result()


async def test_the_handle_is_its_id(memory: Callable[..., Any]) -> None:
    async with memory(*HANDLERS) as one:
        run = await one.start(pay, 7, key="order-7")
        assert run == "order-7"
        assert {run: 1}["order-7"] == 1
        assert (f"{run}", repr(run), str(run), json.dumps([run])) == (run.id, "'order-7'", "order-7", '["order-7"]')
        assert isinstance(run, str)
        for copied in (pickle.loads(pickle.dumps(run)), copy.copy(run), copy.deepcopy([run])[0], run.id, str(run)):
            assert (copied, type(copied)) == ("order-7", str)


async def test_a_handle_works_wherever_an_id_is_accepted(app: Callable[..., Any]) -> None:
    async with app(*HANDLERS) as one, one.workers.background():
        run = await one.start(waits, 1, tags={"of": await one.start(pay, 1)})
        assert (await one.runs.list(tags={"of": str((await one.runs.list(flow="pay"))[0].id)}))[0].id == run
        other = await one.start(pay, 2, key=f"{run}-2", correlation_id=run)
        assert (await one.runs.get(other)).correlation_id == run
        assert await one.emit("some.thing", {"run": run, run: 1}, run=run, key=run)
        assert (await one.events_of(run, "some.thing"))[0].data == {"run": run, str(run): 1}
        again = await one.runs.replay(other)
        await again.wait()
        assert (await one.runs.list(flow="pay", before=again))[0].id == other
        fork = await one.runs.fork(again, (await one.stream(again))[0].id)
        assert isinstance(fork, Run)
        await fork.wait()
        added = await one.enqueue(mail, run, correlation_id=run, dedupe=run, order_key=run)
        assert await one.jobs.result(added) == run
        await one.state.set(run, {"run": run})
        assert await one.state.get(run) == {"run": run}
        assert await one.waits.list(run=run)
        assert await one.runs.export(run)
        assert await one.runs.pause(run)
        assert await one.runs.resume(run)
        assert await one.runs.cancel(run, run)


async def test_a_worker_can_be_limited_to_handles(app: Callable[..., Any]) -> None:
    async with app(*HANDLERS) as one:
        run, other = await one.start(pay, 1), await one.start(pay, 2)
        async with one.workers.background(runs=[run]):
            assert await run.result() == Receipt(1, 9.5)
        assert (await other.get()).status == "running"


async def test_the_methods_of_a_handle(app: Callable[..., Any]) -> None:
    async with app(*HANDLERS) as one, one.workers.background():
        run = await one.start(waits, 1)
        await one.wait_for_step(run, "waits", "suspended")
        assert (await run.get()).status == "waiting"
        assert "never.comes" in " ".join(await run.why())
        assert await run.pause()
        assert await run.resume()
        assert await run.cancel("enough")
        assert (await run.wait()).status == "cancelled"
        async with asyncio.timeout(20):
            kinds = [event.kind async for event in _until_end(run.follow())]
        assert kinds[0] == "flow.started"
        with pytest.raises(RunCancelled, match="enough"):
            await run.result()
        with pytest.raises(UnknownRun):
            await one.runs.handle("nobody").get()


async def _until_end(events: Any) -> Any:
    async for event in events:
        yield event
        if event.kind == "flow.cancelled":
            return


def test_the_sync_handle(tmp_path: Any) -> None:
    with SyncApp(f"sqlite:///{tmp_path}/a.db", handlers=HANDLERS) as app, app.workers.background():
        run = app.start(pay, 7, key="order-7")
        assert isinstance(run, SyncRun)
        assert (run, run.id, type(run.id)) == ("order-7", "order-7", str)
        assert run.result(timeout="20s") == Receipt(7, 9.5)
        assert app.result(run) == {"order": 7, "total": 9.5}
        assert run.get().status == run.wait().status == "completed"
        assert pickle.loads(pickle.dumps(run)) == "order-7"
        assert app.runs.replay(run).result(timeout="20s") == {"order": 7, "total": 9.5}
        assert app.runs.handle("order-7", Receipt).result() == Receipt(7, 9.5)
        assert next(iter(run.follow())).kind == "flow.started"
        assert not run.cancel()
