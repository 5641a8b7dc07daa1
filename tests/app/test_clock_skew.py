"""A machine whose clock is wrong: durations are measured on the store's clock, and moments stay what they are."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import postgres_server
import redis_server
from penstock import Await, AwaitTimeout, Context, Node, RateLimited, flow, job
from penstock.core.clock import from_iso
from penstock.core.ids import step_job_id
from penstock.ports.unit import Unit
from penstock.testing.faults import FaultStore
from penstock.testing.until import until
from skew import OFFSETS_MS, ReadTime, SkewedClock, assert_in, postgres_now, redis_now

SERVERS: dict[str, tuple[Callable[[], str], ReadTime]] = {
    "postgres": (postgres_server.prepared_url, postgres_now),
    "redis": (redis_server.url, redis_now),
}
TIMEOUT_S = 20
RETRY = {"attempts": 2, "backoff": {"type": "fixed", "delay": "1m", "jitter": False}}


class Machine:
    """A machine with a wrong clock, and a store on a server."""

    def __init__(self, make_app: Callable[..., Any], server_now: ReadTime, offset_ms: int) -> None:
        self.exact_app = make_app  # of a machine whose clock is right
        self.clock = SkewedClock(offset_ms)
        self.app = partial(make_app, clock=self.clock)
        self.server_now = server_now

    def assert_in(self, due: int | None, seconds: float) -> None:
        assert_in(due, seconds, self.server_now)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> tuple[str, ReadTime]:
    """Return the URL of an empty store on a server, and how to ask that server for its time."""
    make_url, server_now = SERVERS[request.param]
    return make_url(), server_now


@pytest.fixture(params=OFFSETS_MS, ids=lambda ms: f"{ms // 1000:+}s")
def machine(
    request: pytest.FixtureRequest, server: tuple[str, ReadTime], app_factory: Any, no_polling: None
) -> Machine:
    url, server_now = server
    return Machine(app_factory(url), server_now, request.param)


@job(queue="later", delay="1m")
async def later() -> None: ...


@flow("nothing", emits=[])
async def nothing() -> None: ...


async def test_delays_of_commands(machine: Machine) -> None:
    at = datetime.fromtimestamp(machine.server_now() // 1000 + 300, UTC)
    async with machine.app(later, nothing) as app:

        async def due_of(id: str) -> int:
            row = await app.store.job(id)
            assert row is not None
            assert row.state.value == "delayed"
            return row.due

        machine.assert_in(await due_of(await app.enqueue("mail", delay="2m")), 120)
        machine.assert_in(await due_of(await app.enqueue(later)), 60)
        assert await due_of(await app.enqueue("mail", at=at)) == at.timestamp() * 1000
        for id in await app.jobs.enqueue_many("mail", [1, 2], delay="2m"):
            machine.assert_in(await due_of(id), 120)
        tree = await app.jobs.enqueue_tree(Node("mail", children=[Node("mail", delay="2m")]))
        machine.assert_in(await due_of(tree.children[0].id), 120)
        run = await app.start("nothing", delay="2m")
        machine.assert_in(await due_of(step_job_id(run, "nothing", 1)), 120)
        run = await app.start("nothing", at=at)
        assert await due_of(step_job_id(run, "nothing", 1)) == at.timestamp() * 1000
        first = await app.enqueue("mail", dedupe="key", dedupe_ttl="10s")
        assert await app.enqueue("mail", dedupe="key") == first


async def test_state_expires(machine: Machine) -> None:
    @flow("noting", emits=[])
    async def noting(ctx: Context) -> None:
        ctx.state.set("set", 1, ttl="10s")
        await ctx.state.patch("patched", lambda _: 1, ttl="10s")

    async with machine.app(noting) as app, app.workers.background():
        await app.state.set("key", 1, ttl="10s")
        await app.state.patch("patched", lambda _: 1, ttl="10s")
        run, _ = await app.run_to_end("noting")
        keys = ("shared/key", "shared/patched", f"run/{run}/set", f"run/{run}/patched")
        rows = [await app.store.state(key) for key in keys]
        for key, row in zip(keys, rows, strict=True):
            assert row is not None, f"{key} is over at once"
            machine.assert_in(row.expires, 10)
        await app.state.set("short", 1, ttl="100ms")

        async def is_gone() -> bool:
            return await app.state.get("short") is None

        await until(is_gone, TIMEOUT_S)


async def test_retries(machine: Machine) -> None:
    @job(queue="fails", retry=RETRY)
    async def fails() -> None:
        raise ValueError("no")

    @flow("failing", emits=[], retry=RETRY)
    async def failing() -> None:
        raise ValueError("no")

    async with machine.app(fails, failing) as app, app.workers.background():
        id, run = await app.enqueue(fails), await app.start("failing")
        machine.assert_in((await app.wait_for_state(id, "delayed")).due, 60)
        machine.assert_in((await app.wait_for_step(run, "failing", "delayed")).due, 60)
        (event,) = await app.events_of(run, "step.failed")
        machine.assert_in(from_iso(event.data["nextRetryAt"]), 60)


async def test_held_queues(machine: Machine) -> None:
    calls: list[int] = []

    @job(queue="limited")
    async def limited() -> None:
        calls.append(machine.server_now())
        if len(calls) == 1:
            raise RateLimited("10s" if machine.clock.offset_ms > 0 else "500ms")

    async with machine.app(limited) as app, app.workers.background():
        id = await app.enqueue(limited)

        async def returned() -> Any:
            return await app.job_events("limited", "job.returned")

        (event,) = await until(returned, TIMEOUT_S)
        held = from_iso(event.data["until"]) - from_iso(event.ts)
        if machine.clock.offset_ms > 0:
            assert abs(held - 10_000) < 5000
        else:
            await app.wait_for_state(id, "completed")
            assert calls[1] - calls[0] >= 490


async def test_a_job_of_another_version_is_delayed(machine: Machine) -> None:
    def versioned(version: str) -> Any:
        @flow("versioned", version=version, on_change="pin", emits=[])
        async def run() -> None: ...

        return run

    async with machine.app(versioned("1")) as app:
        run = await app.start("versioned")
    async with machine.app(versioned("2")) as app, app.workers.background():
        row = await app.wait_for_step(run, "run", "delayed")
        machine.assert_in(row.due, 1)


async def test_waits_are_due(machine: Machine) -> None:
    @flow("waits", emits=[])
    async def waits(ctx: Context) -> None:
        times.append(ctx.now())
        trigger = await ctx.wait.trigger("approval", timeout="1m")
        await ctx.all([ctx.wait.time("1m"), ctx.wait.event("paid", timeout="1m"), trigger.wait()])

    @flow("declared", emits=[], wait=Await("event", "paid", timeout="1m"))
    async def declared() -> None: ...

    @flow("held", emits=[], wait=Await("time", delay=60))
    async def held() -> None: ...

    times: list[datetime] = []
    async with machine.app(waits, declared, held) as app, app.workers.background():
        for name in ("waits", "declared", "held"):
            run = await app.start(name)
            row = await app.wait_for_step(run, name, "suspended", "delayed")
            machine.assert_in(row.due, 60)
            found = await app.store.waits(run=run)
            assert len(found) == (3 if name == "waits" else 1)
            for wait in found:
                machine.assert_in(wait.due, 60)
        machine.assert_in(int(times[0].timestamp() * 1000), 0)


async def test_short_waits_are_over_soon(machine: Machine) -> None:
    """With polling every hour, a worker that compares the store's times with its own clock sleeps through all of them.
    With polling every 5 s, each wait took 5 s."""

    @flow("naps", emits=[])
    async def naps(ctx: Context) -> str:
        await ctx.wait.time("200ms")
        try:
            await ctx.wait.event("never", timeout="200ms")
        except AwaitTimeout:
            return "late"
        return "early"

    @flow("moment", emits=[])
    async def moment(ctx: Context) -> None:
        await ctx.wait.time(datetime.fromtimestamp(machine.server_now() / 1000 + 0.5, UTC))

    async with machine.app(naps, moment) as app, app.workers.background():
        assert await app.run_for_result("naps") == "late"
        await app.run_for_result("moment")
        await app.wait_for_state(await app.enqueue("none", delay="1h"), "delayed")


async def test_a_delayed_job_starts_when_it_is_due(machine: Machine) -> None:
    @job(queue="punctual", retry={"attempts": 2, "backoff": {"type": "fixed", "delay": "200ms", "jitter": False}})
    async def punctual() -> None:
        started.append(machine.server_now())
        if len(started) == 1:
            raise ValueError("once more")

    started: list[int] = []
    async with machine.app(punctual) as app, app.workers.background():
        before = machine.server_now()
        id = await app.enqueue(punctual, delay="300ms")
        await app.wait_for_state(id, "completed")
        assert started[0] - before >= 290
        assert started[1] - started[0] >= 190


async def test_an_idle_worker_does_not_poll_all_the_time(machine: Machine) -> None:
    """A worker that is ahead would take the job of another machine for due, until it is."""
    async with machine.exact_app(later) as other, machine.app(later) as inner:
        id = await other.enqueue(later, delay="10s")
        await other.wait_for_state(id, "delayed")
        store = FaultStore(inner.store, _NoFaults(), borrowed=True)
        async with machine.app(later, store=store) as app, app.workers.background():
            await until(lambda: app.workers.next_due is not None, TIMEOUT_S)
            store.calls.clear()
            await asyncio.sleep(1)
            assert store.calls["claim"] < 30


class _NoFaults:
    async def on_call(self, method: str, when: str) -> None: ...

    def on_blocking_call(self, method: str, when: str) -> None: ...


async def test_a_trigger_is_valid_until_its_timeout(machine: Machine) -> None:
    @flow("asks", emits=[])
    async def asks(ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("approval", timeout="10s")
        await ctx.run("tell", lambda: tokens.append(trigger.token))
        return await trigger.wait()

    tokens: list[str] = []
    async with machine.exact_app(asks) as worker, worker.workers.background():
        run = await worker.start("asks")
        await worker.wait_for_step(run, "asks", "suspended", "delayed")
        async with machine.app(asks) as app:
            await app.waits.fire(tokens[0], "yes")
            assert await worker.result(run, timeout=TIMEOUT_S) == "yes"


async def test_schedules(machine: Machine) -> None:
    @job(queue="tick")
    async def tick() -> None: ...

    async with machine.app(tick) as app:
        every = await app.schedules.add("every", queue="tick", every="2s")
        cron = await app.schedules.add("cron", queue="tick", cron="* * * * * *")
        await app.schedules.pause("every")
        resumed = await app.schedules.resume("every")
        for row in (every, cron, resumed):
            assert row.next_at is not None
            machine.assert_in(from_iso(row.next_at), 1)
        await app.schedules.remove("cron")
        async with app.workers.background():

            async def fired() -> Any:
                return await app.job_events("tick", "job.completed")

            await until(fired, TIMEOUT_S)
        (row,) = await app.store.schedules()
        machine.assert_in(row.next, 2)


async def test_retention_and_searches(machine: Machine) -> None:
    async with machine.app(nothing, retain_runs="10s", retain_jobs="10s", retain_events="10s") as app:
        async with app.workers.background():
            run, _ = await app.run_to_end("nothing")
            limits = app.workers._retention()
            await app.workers._sweep_all()
        assert await app.store.run(run) is not None
        for before in (limits.runs_before, limits.jobs_before, limits.events_before):
            machine.assert_in(before, -10)
        assert [row.id for row in await app.runs.list(since="10s")] == [run]
        assert not await app.runs.list(until="10s")


async def test_a_delay_in_an_outbox_counts_from_the_call(machine: Machine, tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "customer.db", isolation_level=None)
    async with machine.app() as app:
        await app.outbox.create(database)
        database.execute("BEGIN")
        id = await app.enqueue("mail", delay="1m", tx=database)
        ((text,),) = database.execute("SELECT unit FROM penstock_outbox").fetchall()
        database.execute("COMMIT")
        due = msgspec.json.decode(text, type=Unit).jobs[0].due
        machine.assert_in(due, 60)
        await app.outbox.drain(f"sqlite:///{tmp_path}/customer.db")
        row = await app.store.job(id)
        assert row is not None
        assert row.due == due
    database.close()


async def test_doctor_names_the_difference(machine: Machine) -> None:
    async with machine.app(nothing) as app:
        await app.start("nothing")
        (check,) = [check for check in await app.diagnose() if check.name == "clock"]
        assert check.ok
        assert ("ahead of" if machine.clock.offset_ms > 0 else "behind") in check.detail
