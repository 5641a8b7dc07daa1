"""The store is in another database: `tx=` writes to the outbox table in the customer's database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from customers import (
    ASYNC_SQLITE,
    BLOCKING_SQLITE,
    Asyncpg,
    AsyncSqlalchemy,
    Customer,
    Django,
    Psycopg,
    Sqlite,
    another_database,
    file_in,
    postgres,
)
from small_shop import ADD, HANDLERS, TABLE, TEST_TIMEOUT_S, waiter

import postgres_server
import redis_server
from penstock import App, SyncApp
from penstock.core.errors import NoOutbox, StoreUnavailable, TransactionError
from penstock.ports.store import DatabaseIdentity
from penstock.testing import until
from penstock.transactions.connections.connection import run_blocking

Apps = Callable[..., Any]
EVERY = "20ms"


def store(name: str, folder: Path) -> str:
    """Return the URL of an empty store outside the customer's database."""
    made = {
        "file": lambda: f"sqlite:///{folder}/store.db",
        "redis": redis_server.url,
        "postgres": postgres_server.prepared_url,
    }
    return made[name]()


def location_of(driver: type[Customer], folder: Path) -> str:
    return file_in(folder) if driver in (*ASYNC_SQLITE, *BLOCKING_SQLITE) else postgres(another_database())


async def prepare(app: App, customer: Customer) -> None:
    await customer.begin()
    await customer.do(TABLE)
    await customer.do("DROP TABLE IF EXISTS penstock_outbox")
    await app.outbox.create(customer.tx)
    await app.outbox.create(customer.tx)  # it exists already
    await customer.commit()


@pytest.mark.parametrize(
    ("kind", "driver"),
    [
        ("file", AsyncSqlalchemy),
        ("redis", Asyncpg),
        ("postgres", Asyncpg),
        *((kind, driver) for kind, driver in zip(("redis", "postgres"), ASYNC_SQLITE, strict=True)),
    ],
)
async def test_committed_or_rolled_back(kind: str, driver: type[Customer], tmp_path: Path, connect: Any) -> None:
    async with App(store(kind, tmp_path), handlers=HANDLERS) as app, app.workers.background():
        customer = await connect(driver, location_of(driver, tmp_path))
        await prepare(app, customer)
        async with app.outbox.background(customer.outbox, every=EVERY):
            for commits in (False, True):
                await customer.begin()
                run = await app.start("shop", {"id": 7}, tx=customer.tx)
                await customer.do(ADD)
                jobs = await app.jobs.enqueue_many("mail", [{"id": n} for n in range(3)], tx=customer.tx)
                await app.emit("shop.opened", {"commits": commits}, tx=customer.tx)
                await (customer.commit() if commits else customer.rollback())
            await until(lambda: app.store.run(run), TEST_TIMEOUT_S)
            assert await app.result(run, timeout=TEST_TIMEOUT_S) == 7
            await until(lambda: app.store.job(jobs[2]), TEST_TIMEOUT_S)
            assert [await app.jobs.result(job, timeout=TEST_TIMEOUT_S) for job in jobs] == [0, 1, 2]
        await app.outbox.drain(customer.outbox)  # rows the relay delivered and had not deleted yet
        assert await app.outbox.drain(customer.outbox) == 0
        assert [e.data for e in await app.events.read("nq:global")] == [{"commits": True}]
        assert [row.id for row in await app.runs.list()] == [run]
        kinds = [e.kind for e in await app.events.read_all("nq:queue:mail")]
        assert kinds.count("job.added") == 3


@pytest.mark.parametrize("kind", ["file", "redis", "postgres"])
async def test_a_wait_receives_an_event_as_emitted(kind: str, tmp_path: Path, connect: Any) -> None:
    async with App(store(kind, tmp_path), handlers=[waiter]) as app, app.workers.background():
        customer = await connect(Sqlite, file_in(tmp_path))
        await prepare(app, customer)
        run = await app.start(waiter)
        await until(app.waits.list, TEST_TIMEOUT_S)
        await customer.begin()
        await app.emit("uploaded", {"uploadToken": "aaa"}, tx=customer.tx)
        await customer.commit()
        await app.outbox.drain(customer.outbox)
        assert await app.result(run, timeout=TEST_TIMEOUT_S) == {"uploadToken": "aaa"}
        assert [e.data for e in await app.events.read("nq:global")] == [{"uploadToken": "[redacted]"}]


@pytest.mark.parametrize("driver", [Psycopg, *BLOCKING_SQLITE])
def test_committed_or_rolled_back_without_an_event_loop(driver: type[Customer], tmp_path: Path) -> None:
    location = location_of(driver, tmp_path)
    with SyncApp(f"sqlite:///{tmp_path}/store.db", handlers=HANDLERS) as app, app.workers.background():
        customer = driver(location)
        run_blocking(customer.open())
        run_blocking(customer.begin())
        app.outbox.create(customer.tx)
        run_blocking(customer.commit())
        for commits in (False, True):
            run_blocking(customer.begin())
            run = app.start("shop", {"id": 7}, tx=customer.tx)
            job = app.enqueue("mail", {"id": 8}, tx=customer.tx)
            app.emit("shop.opened", {"commits": commits}, tx=customer.tx)
            run_blocking(customer.commit() if commits else customer.rollback())
        assert app.runs.list() == []
        assert app.outbox.drain(customer.outbox) == 3
        assert app.result(run, timeout=TEST_TIMEOUT_S) == 7
        assert app.jobs.result(job, timeout=TEST_TIMEOUT_S) == 8
        assert [e.data for e in app.events.read("nq:global")] == [{"commits": True}]
        run_blocking(customer.close())


async def test_commits_while_the_store_is_down(tmp_path: Path, connect: Any) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    server = redis_server.Server(folder)
    customer = await connect(Sqlite, file_in(tmp_path))
    async with App(f"redis://127.0.0.1:{server.port}/0", handlers=HANDLERS) as app:
        await prepare(app, customer)
        async with app.outbox.background(customer.outbox, every=EVERY):
            server.kill()
            run = await app.start("shop", {"id": 7}, tx=customer.tx)
            await app.emit("paid", {"id": 7}, run=run, tx=customer.tx)
            await customer.commit()
            server.start()

            async def has_run() -> bool:
                try:
                    return await app.store.run(run) is not None
                except StoreUnavailable:
                    return False

            await until(has_run, TEST_TIMEOUT_S)
    server.stop()


async def test_an_event_for_a_run(tmp_path: Path, connect: Any, memory: Apps) -> None:
    async with memory(*HANDLERS) as app, app.workers.background():
        customer = await connect(Sqlite, file_in(tmp_path))
        await prepare(app, customer)
        run = await app.start("shop", {"id": 1}, delay="1h", tx=customer.tx)
        await app.emit("paid", {"id": 9}, run=run, tx=customer.tx)
        await customer.commit()
        assert await app.outbox.drain(customer.outbox) == 2
        await app.wait_for_step(run, "ship", "completed")


async def test_a_wrong_call_raises_at_once(tmp_path: Path, connect: Any) -> None:
    async with App(":memory:", handlers=HANDLERS) as app:
        customer = await connect(Sqlite, file_in(tmp_path))
        with pytest.raises(NoOutbox, match=r"penstock outbox create"):
            await app.start("shop", {"id": 1}, tx=customer.tx)
        await prepare(app, customer)
        with pytest.raises(Exception, match="no flow named 'shoop'"):
            await app.start("shoop", {"id": 1}, tx=customer.tx)
        await customer.commit()
        assert await app.outbox.drain(customer.outbox) == 0


async def test_two_namespaces_share_a_table(tmp_path: Path, connect: Any) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    async with App(store, handlers=HANDLERS) as ours, App(":memory:", handlers=HANDLERS, namespace="b") as theirs:
        customer = await connect(Sqlite, file_in(tmp_path))
        await prepare(ours, customer)
        run = await ours.start("shop", {"id": 1}, tx=customer.tx)
        other = await theirs.start("shop", {"id": 1}, tx=customer.tx)
        await customer.commit()
        assert await ours.outbox.drain(customer.outbox) == 1
        assert [row.id for row in await ours.runs.list()] == [run]
        assert await theirs.outbox.drain(customer.outbox) == 1
        assert [row.id for row in await theirs.runs.list()] == [other]


async def test_a_repeatable_read_transaction_uses_the_outbox(connect: Any, no_polling: None) -> None:
    async with App(postgres_server.prepared_url(), handlers=HANDLERS) as app, app.workers.background():
        customer = await connect(Asyncpg, postgres())
        await customer.do("DROP TABLE IF EXISTS penstock_outbox")
        async with customer.tx.transaction(isolation="repeatable_read"):
            with pytest.raises(
                TransactionError,
                match="requires the isolation level read committed, but the transaction has repeatable read",
            ):
                await app.start("shop", {"id": 1}, tx=customer.tx)
        await app.outbox.create(customer.tx)
        async with customer.tx.transaction(isolation="serializable"):
            run = await app.start("shop", {"id": 1}, tx=customer.tx)
        assert await app.store.run(run) is None
        assert await app.outbox.drain(customer.outbox) == 1
        assert await app.result(run, timeout=TEST_TIMEOUT_S) == 1
        await customer.do("DROP TABLE penstock_outbox")


def test_the_statement_for_a_migration(tmp_path: Path) -> None:
    with SyncApp(":memory:", handlers=HANDLERS) as app:
        customer = Django(file_in(tmp_path))
        run_blocking(customer.open())
        run_blocking(customer.do(app.outbox.sql("sqlite")))
        run_blocking(customer.begin())
        app.enqueue("mail", {"id": 1}, tx=customer.tx)
        run_blocking(customer.commit())
        assert app.outbox.drain(customer.outbox) == 1
        assert "GENERATED ALWAYS AS IDENTITY" in app.outbox.sql()
        with pytest.raises(ValueError, match="did you mean 'sqlite'"):
            app.outbox.sql("sqlite3")
        run_blocking(customer.close())


async def test_recognizing_the_database_of_the_store(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restarted server is still the store's. A server with the same database name is not."""
    async with App(postgres_server.prepared_url(), handlers=HANDLERS) as app:
        customer = await connect(Asyncpg, postgres())
        elsewhere = DatabaseIdentity((await app.store.database_identity()).database, since=1)  # type: ignore[attr-defined]
        app.store._home = elsewhere  # type: ignore[attr-defined]
        await customer.begin()
        run = await app.start("shop", {"id": 1}, tx=customer.tx)
        await customer.commit()
        assert await app.store.run(run) is not None

        async def database_identity(*, fresh: bool = False) -> DatabaseIdentity:
            return elsewhere

        monkeypatch.setattr(app.store, "database_identity", database_identity)
        await customer.begin()
        with pytest.raises(NoOutbox, match="another database than the store's"):
            await app.start("shop", {"id": 2}, tx=customer.tx)
        await customer.rollback()
