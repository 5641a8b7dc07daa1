"""A store that is unavailable for a while: what is retried, what raises, and the services of a worker."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import asyncpg
import pytest

from penstock import App, flow, job
from penstock.app import workers as background
from penstock.core.errors import StoreClosed, StoreUnavailable, WaitTimeout
from penstock.core.outage_retry import OutageRetry
from penstock.stores.postgres.address import read_address
from penstock.stores.postgres.connection import translate
from penstock.stores.sqlite import SqliteStore
from penstock.testing.faults import FaultStore, NoFaults, When
from penstock.testing.until import until


class Outage(NoFaults):
    """Fails the methods of a store that are listed in `of`."""

    def __init__(self) -> None:
        self.of: dict[str, Exception] = {}

    async def on_call(self, method: str, when: When) -> None:
        if when == "before" and method in self.of:
            raise self.of[method]


@flow("shop")
async def shop() -> str:
    return "done"


@job(queue="mail")
async def mail() -> None: ...


@pytest.fixture
def outage() -> Outage:
    return Outage()


@pytest.fixture
def frail(outage: Outage) -> App:
    """Return an App whose store fails on demand."""
    store: Any = FaultStore(SqliteStore(), outage)
    return App(":memory:", handlers=[shop, mail], store=store)


def down(text: str = "down") -> StoreUnavailable:
    return StoreUnavailable(text)


async def test_an_outage_retry_starts_after_the_first_answer_and_logs_start_and_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[Any] = [down("at first"), 1, down(), down(), 2, down(), 3, StoreClosed("closed")]

    async def ask() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    retry = OutageRetry("news")
    with pytest.raises(StoreUnavailable, match="at first"):
        await retry.call(ask)
    assert [await retry.call(ask) for _ in range(3)] == [1, 2, 3]
    logged = [record.getMessage() for record in caplog.records]
    assert logged[0] == "news: no answer from the store, trying again: down"
    assert [text.partition(" after ")[0] for text in logged[1:]] == ["the store answers again"]
    with pytest.raises(StoreClosed):
        await retry.call(ask)


async def test_a_failed_subscription_raises_and_the_next_one_works(frail: App, outage: Outage) -> None:
    received: list[Any] = []
    async with asyncio.timeout(20), frail as app:
        outage.of["feed"] = down()
        with pytest.raises(StoreUnavailable):
            await app.events.on_kind("lamp.lit", lambda event: received.append(("first", event.data)))
        del outage.of["feed"]
        await app.events.on_kind("lamp.lit", lambda event: received.append(("second", event.data)))
        await app.events.append("nq:entity:lamp", "lamp.lit", 1)
        await until(lambda: received)
        assert received == [("second", 1)]


@pytest.mark.parametrize("problem", [down(), RuntimeError("a bug of ours")])
async def test_subscribers_miss_nothing_after_a_failure_of_the_feed(
    frail: App, outage: Outage, caplog: pytest.LogCaptureFixture, problem: Exception
) -> None:
    received: list[int] = []
    async with frail as app:
        await app.events.on_kind("lamp.lit", lambda event: received.append(event.data))
        await app.events.append("nq:entity:lamp", "lamp.lit", 1)
        await until(lambda: received == [1])
        outage.of["feed"] = problem
        await app.events.append("nq:entity:lamp", "lamp.lit", 2)
        await until(lambda: str(problem) in caplog.text)
        await app.events.append("nq:entity:lamp", "lamp.lit", 3)
        del outage.of["feed"]
        await until(lambda: received == [1, 2, 3])


async def test_a_subscriber_that_awaits_a_cancelled_task_does_not_stop_the_others(memory: Any) -> None:
    received: list[int] = []

    async def waits(event: Any) -> None:
        lost = asyncio.ensure_future(asyncio.sleep(60))
        lost.cancel()
        await lost

    async with memory() as a:
        await a.events.on_kind("lamp.lit", waits)
        await a.events.on_kind("lamp.lit", lambda event: received.append(event.data))
        for n in (1, 2):
            await a.events.append("nq:entity:lamp", "lamp.lit", n)
        await until(lambda: received == [1, 2])


async def test_a_cancelled_subscription_does_not_block_others(frail: App) -> None:
    received: list[int] = []
    async with frail as app:
        gone = asyncio.create_task(app.events.on_kind("lamp.lit", lambda event: None))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait((gone,))
        await app.events.on_kind("lamp.lit", lambda event: received.append(event.data))
        await app.events.append("nq:entity:lamp", "lamp.lit", 1)
        await until(lambda: received == [1])


async def test_a_timeout_during_an_outage_names_the_outage(frail: App, outage: Outage) -> None:
    async with frail as app:
        run, id = await app.start("shop"), await app.enqueue("mail")
        waits = [
            asyncio.create_task(wait) for wait in (app.runs.wait(run, timeout="1s"), app.result(run, timeout="1s"))
        ]
        waits.append(asyncio.create_task(app.jobs.result(id, timeout="1s")))
        store: Any = app.store
        before = store.calls.copy()
        await until(lambda: store.calls["run"] >= before["run"] + 2 and store.calls["job"] >= before["job"] + 2)
        await until(lambda: not store.in_flight)
        outage.of |= {"run": down("unplugged"), "job": down("unplugged")}
        app.store.signals.notify_all()
        for wait in waits:
            with pytest.raises(WaitTimeout, match=r"did not end within 1\.0 s; the store is not answering: unplugged"):
                await wait


async def test_readers_end_with_their_app(app: Any) -> None:
    a = app(shop, mail)
    await a.open()
    run, id = await a.start("shop"), await a.enqueue("mail")
    tails = a.events.subscribe("nq:global"), a.runs.follow(run), a.queues.events("mail")
    readers = [asyncio.create_task(_all(tail)) for tail in tails]
    readers += [asyncio.create_task(end) for end in (a.runs.wait(run), a.result(run), a.jobs.result(id))]
    await until(lambda: sum(map(len, a.store.signals._listeners.values())) == len(readers))
    await a.close()
    a.wake_all()
    for reader in readers:
        with pytest.raises(StoreClosed):
            await asyncio.wait_for(reader, 20)


async def _all(events: Any) -> None:
    async for _ in events:
        pass


async def test_a_service_beside_the_worker_is_restarted_when_it_fails(
    memory: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "FIRST_RESTART_PAUSE_S", 0.0)
    tries: list[int] = []

    class RecordingBridge:
        async def open(self, host: Any) -> None: ...
        async def close(self) -> None: ...
        async def run(self) -> None:
            tries.append(len(tries))
            if len(tries) < 3:
                raise RuntimeError("the ferry sank")
            await asyncio.Event().wait()

    async with App(":memory:", handlers=[mail], bridges=[RecordingBridge()]) as a, a.workers.background():
        await until(lambda: len(tries) == 3)
    records = [record for record in caplog.records if "bridge failed, restarting in" in record.getMessage()]
    assert [record.levelno for record in records] == [logging.ERROR] * 2


async def test_leases_are_renewed_after_a_failed_renewal(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(NoFaults):
        is_injected = False

        def on_blocking_call(self, method: str, when: When) -> None:
            if not self.is_injected:
                self.is_injected = True
                raise RuntimeError("a bug of ours")

    release = asyncio.Event()

    @job(queue="slow")
    async def slow() -> None:
        await release.wait()

    store: Any = FaultStore(SqliteStore(), Odd())
    async with App(":memory:", handlers=[slow], store=store, lease="1s") as app, app.workers.background():
        id = await app.enqueue("slow")
        await until(lambda: store.calls["renew"] >= 3)
        release.set()
        await app.jobs.result(id, timeout=20)
    assert "a bug of ours" in caplog.text
    assert "could not renew 1 lease\n" in caplog.text


def test_a_server_that_is_starting_up_is_unavailable() -> None:
    starting = asyncpg.CannotConnectNowError("the database system is starting up")
    problem = translate(starting, read_address("postgresql://db/shop"))
    assert isinstance(problem, StoreUnavailable)
    assert str(problem).endswith("is currently unavailable (the database system is starting up); try again in a moment")
