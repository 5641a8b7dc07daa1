"""The relay delivers rows in order, at least once, with one effect."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from customers import Asyncpg, Customer, Sqlite, another_database, file_in, postgres
from small_shop import HANDLERS, TEST_TIMEOUT_S

import postgres_server
import redis_server
from penstock import App
from penstock.core.errors import BadArgument, NoOutbox, SettingError, UnknownConnection
from penstock.testing import until
from penstock.transactions.relay import Relay

Apps = Callable[..., Any]


@pytest.fixture(params=["file and postgres", "redis and sqlite", "postgres and sqlite"])
def databases(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Return the kinds of the store and of the customer's database."""
    store, _, theirs = request.param.partition(" and ")
    return store, theirs


@pytest.fixture
def url(databases: tuple[str, str], tmp_path: Path) -> str:
    """Return the URL of an empty store."""
    made = {
        "file": lambda: f"sqlite:///{tmp_path}/store.db",
        "redis": redis_server.url,
        "postgres": postgres_server.prepared_url,
    }
    return made[databases[0]]()


@pytest.fixture
async def customer(databases: tuple[str, str], tmp_path: Path, connect: Any) -> Customer:
    """Return a customer with an empty outbox outside the store's database."""
    sqlite = databases[1] == "sqlite"
    found = await (connect(Sqlite, file_in(tmp_path)) if sqlite else connect(Asyncpg, postgres(another_database())))
    await found.begin()
    await found.do("DROP TABLE IF EXISTS penstock_outbox")
    async with App(":memory:", handlers=()) as app:
        await app.outbox.create(found.tx)
    await found.commit()
    return found


async def make_orders(app: App, customer: Customer, count: int) -> None:
    """Emit orders, each in its own transaction."""
    for n in range(count):
        await customer.begin()
        await app.emit("order.made", {"n": n}, tx=customer.tx)
        await customer.commit()


async def orders(app: App) -> list[int]:
    return [event.data["n"] for event in await app.events.read_all("nq:global")]


async def test_several_relays_keep_the_order(apps: Apps, customer: Customer) -> None:
    count = 40
    async with apps(*HANDLERS) as app, apps(*HANDLERS) as other, AsyncExitStack() as relays:
        for one in (app, other, app):
            await relays.enter_async_context(one.outbox.background(customer.outbox, every="1ms"))
        await make_orders(app, customer, count)

        async def all_delivered() -> bool:
            return len(await orders(app)) >= count

        await until(all_delivered, TEST_TIMEOUT_S)
        await relays.aclose()
        await app.outbox.drain(customer.outbox)
        assert await orders(app) == list(range(count))


async def test_more_than_a_page(apps: Apps, customer: Customer) -> None:
    async with apps(*HANDLERS) as app:
        await customer.begin()
        for n in range(450):
            await app.emit("order.made", {"n": n}, tx=customer.tx)
        await customer.commit()
        assert await app.outbox.drain(customer.outbox) == 450
        assert await orders(app) == list(range(450))


async def test_rows_delivered_and_not_deleted(apps: Apps, customer: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that could not be deleted are delivered again and take effect once."""

    async def lost(_self: Relay, _seqs: list[int]) -> None:
        raise ConnectionError("the connection is lost")

    async with apps(*HANDLERS) as app:
        await customer.begin()
        run = await app.start("shop", {"id": 1}, delay="1h", tx=customer.tx)
        job = await app.enqueue("mail", {"id": 2}, tx=customer.tx)
        await app.emit("order.made", {"n": 3}, tx=customer.tx)
        await app.emit("order.made", {"n": 4}, key="four", tx=customer.tx)
        await app.emit("paid", {"id": 5}, run=run, tx=customer.tx)
        await customer.commit()
        with monkeypatch.context() as broken:
            broken.setattr(Relay, "_delete", lost)
            for _ in range(2):
                with pytest.raises(ConnectionError):
                    await app.outbox.drain(customer.outbox)
        async with app.workers.background():
            assert await app.jobs.result(job, timeout=TEST_TIMEOUT_S) == 2
            await app.wait_for_step(run, "ship", "completed")
            assert await app.jobs.remove(job)  # the queue has forgotten the job, and it is still not added again
            assert await app.outbox.drain(customer.outbox) == 5
            assert await app.outbox.drain(customer.outbox) == 0
        assert await orders(app) == [3, 4]
        assert len(await app.job_events("mail", "job.added")) == 1
        assert len(await app.events_of(run, "paid")) == 1
        assert [row.id for row in await app.runs.list()] == [run]


async def test_an_unreadable_row_is_skipped(apps: Apps, customer: Customer, caplog: pytest.LogCaptureFixture) -> None:
    async with apps(*HANDLERS) as app:
        await make_orders(app, customer, 1)
        await customer.begin()
        await customer.do("UPDATE penstock_outbox SET unit = '{\"id\": 7}'")
        await customer.commit()
        await make_orders(app, customer, 2)
        with caplog.at_level(logging.ERROR, "penstock.outbox"):
            assert await app.outbox.drain(customer.outbox) == 2
        assert "setting it aside" in caplog.text
        assert await app.outbox.drain(customer.outbox) == 0
        assert await orders(app) == [0, 1]


@pytest.mark.parametrize(
    "unit",
    [
        "junk",
        "[]",
        "7",
        '{"id":"a","events":[{"stream":"nq:global","body":"anVuaw==","kind":"a"}]}',
        '{"id":"a","events":[{"stream":"nq:global","body":"e30="}]}',
        '{"id":"a","events":[{"stream":5,"body":"e30="}]}',
        '{"id":"a","jobs":[{"id":"j","queue":"mail","name":"send","payload":"anVuaw=="}]}',
        '{"id":"a","run":{"id":"r","expect":0,"record":"anVuaw==","flow":"f","status":"running"}}',
        "[" * 5000,
    ],
)
async def test_a_row_that_was_changed_is_skipped(memory: Apps, tmp_path: Path, connect: Any, unit: str) -> None:
    customer = await connect(Asyncpg, postgres(another_database()))
    await customer.do("DROP TABLE IF EXISTS penstock_outbox")
    async with memory(*HANDLERS) as app:
        await app.outbox.create(customer.tx)
        await make_orders(app, customer, 1)
        await customer.begin()
        await customer.do(f"UPDATE penstock_outbox SET unit = '{unit}'")
        await customer.commit()
        await make_orders(app, customer, 2)
        assert await app.outbox.drain(customer.outbox) == 2
        assert await orders(app) == [0, 1]
        assert not any(item.event.is_unreadable for item in await app.store.feed(""))


async def test_reconnecting(memory: Apps, tmp_path: Path, connect: Any, caplog: pytest.LogCaptureFixture) -> None:
    customer = await connect(Asyncpg, postgres(another_database()))
    await customer.do("DROP TABLE IF EXISTS penstock_outbox")
    async with memory(*HANDLERS) as app:
        await app.outbox.create(customer.tx)
        async with app.outbox.background(f"{customer.outbox}?application_name=relay", every="5ms"):
            await make_orders(app, customer, 1)
            await until(lambda: orders(app), TEST_TIMEOUT_S)
            cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'relay'"
            assert postgres_server.server().do(cut)
            await until(lambda: "trying again" in caplog.text, TEST_TIMEOUT_S)
            await customer.begin()
            await app.emit("order.made", {"n": 1}, tx=customer.tx)
            await customer.commit()

            async def both() -> bool:
                return await orders(app) == [0, 1]

            await until(both, TEST_TIMEOUT_S)


async def test_errors_at_the_start_are_raised(memory: Apps, tmp_path: Path, connect: Any) -> None:
    customer = await connect(Sqlite, file_in(tmp_path))
    await customer.do("CREATE TABLE orders (id text)")
    async with memory(*HANDLERS) as app:
        with pytest.raises(NoOutbox, match="penstock outbox create --in URL"):
            await app.outbox.relay(customer.outbox)
        with pytest.raises(NoOutbox):
            async with app.outbox.background(customer.outbox):
                pytest.fail("the relay has no table")
        with pytest.raises(NoOutbox, match=r"nowhere.db to read its outbox .unable to open database file"):
            await app.outbox.drain(f"sqlite:///{tmp_path}/nowhere.db")
        with pytest.raises(SettingError, match=r"'mysql://db' cannot hold an outbox"):
            await app.outbox.drain("mysql://db")
        with pytest.raises(BadArgument, match="connect must be a URL"):
            await app.outbox.drain(7)
        with pytest.raises(UnknownConnection, match="tx must be an asyncpg"):
            await app.outbox.drain(object)
