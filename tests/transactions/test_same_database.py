"""The store is in the customer's database: runs and jobs exist when the transaction commits, and not if it rolls back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from customers import ASYNC_POSTGRES, BLOCKING_POSTGRES, Asyncpg, Customer, Psycopg, postgres
from small_shop import ADD, HANDLERS, TABLE, TEST_TIMEOUT_S, waiter

import postgres_server
from penstock import SyncApp, flow
from penstock.flows.run_commands import RunClosed
from penstock.testing import until
from penstock.transactions.connections.connection import run_blocking

Apps = Callable[..., Any]


@pytest.fixture
def url() -> str:
    """Return the URL of an empty store in the database of the customer's orders, without orders."""
    postgres_server.server().do("DROP TABLE IF EXISTS orders")
    postgres_server.server().do(TABLE)
    return postgres_server.prepared_url()


def orders() -> int:
    return len(postgres_server.server().do("SELECT 1 FROM orders"))


@pytest.mark.parametrize("driver", ASYNC_POSTGRES)
async def test_committed_or_rolled_back(driver: type[Customer], apps: Apps, connect: Any) -> None:
    async with apps(*HANDLERS) as app, app.workers.background():
        customer = await connect(driver, postgres())
        for commits in (False, True):
            await customer.begin()
            run = await app.start("shop", {"id": 7}, tx=customer.tx)
            await customer.do(ADD)
            jobs = await app.jobs.enqueue_many("mail", [{"id": n} for n in range(3)], tx=customer.tx)
            await app.emit("shop.opened", {"commits": commits}, tx=customer.tx)
            assert await app.store.run(run) is None
            assert [await app.store.job(job) for job in jobs] == [None] * 3
            await (customer.commit() if commits else customer.rollback())
            assert (await app.store.run(run) is not None) is commits  # at once, before a worker saw it
        assert await app.result(run, timeout=TEST_TIMEOUT_S) == 7
        assert [await app.jobs.result(job, timeout=TEST_TIMEOUT_S) for job in jobs] == [0, 1, 2]
        assert [e.data for e in await app.events.read("nq:global")] == [{"commits": True}]
        assert [row.id for row in await app.runs.list()] == [run]
        assert orders() == 1


@pytest.mark.parametrize("driver", BLOCKING_POSTGRES)
def test_committed_or_rolled_back_without_an_event_loop(driver: type[Customer], url: str) -> None:
    with SyncApp(url, handlers=HANDLERS) as app, app.workers.background():
        customer = driver(postgres())
        run_blocking(customer.open())
        for commits in (False, True):
            run_blocking(customer.begin())
            run = app.start("shop", {"id": 7}, tx=customer.tx)
            run_blocking(customer.do(ADD))
            job = app.enqueue("mail", {"id": 8}, tx=customer.tx)
            app.emit("shop.opened", {"commits": commits}, tx=customer.tx)
            assert app.runs.list() == []
            run_blocking(customer.commit() if commits else customer.rollback())
        assert app.result(run, timeout=TEST_TIMEOUT_S) == 7
        assert app.jobs.result(job, timeout=TEST_TIMEOUT_S) == 8
        assert [e.data for e in app.events.read("nq:global")] == [{"commits": True}]
        assert [row.id for row in app.runs.list()] == [run]
        assert orders() == 1
        run_blocking(customer.close())


async def test_rolling_back_a_savepoint(apps: Apps, connect: Any) -> None:
    async with apps(*HANDLERS) as app, app.workers.background():
        customer = await connect(Asyncpg, postgres())
        await customer.begin()
        kept = await app.start("shop", {"id": 1}, tx=customer.tx)
        savepoint = customer.tx.transaction()
        await savepoint.start()
        lost = await app.start("shop", {"id": 2}, tx=customer.tx)
        await savepoint.rollback()
        await customer.commit()
        assert await app.result(kept, timeout=TEST_TIMEOUT_S) == 1
        assert await app.store.run(lost) is None


async def test_an_open_transaction_blocks_nobody(apps: Apps, connect: Any) -> None:
    """Streams, queues and runs of the store stay unlocked until the commit."""
    async with apps(*HANDLERS) as app, app.workers.background():
        customer = await connect(Asyncpg, postgres())
        run = await app.start("shop", {"id": 1})
        await app.result(run, timeout=TEST_TIMEOUT_S)
        open_run = await app.start("shop", {"id": 1}, delay="1h")
        await customer.begin()
        mine = await app.enqueue("mail", {"id": 1}, tx=customer.tx)
        await app.emit("shop.opened", tx=customer.tx)
        await app.emit("paid", {"id": 5}, run=open_run, tx=customer.tx)
        # Others use the same queue, the same streams and the same run.
        assert await app.jobs.result(await app.enqueue("mail", {"id": 2}), timeout=TEST_TIMEOUT_S) == 2
        await app.emit("shop.opened")
        await app.emit("paid", {"id": 6}, run=open_run)
        await app.wait_for_step(open_run, "ship", "completed")
        await customer.commit()
        assert await app.jobs.result(mine, timeout=TEST_TIMEOUT_S) == 1
        await app.wait_for_step(open_run, "ship", "completed", n=2)


async def test_concurrent_commits_in_any_order(apps: Apps, connect: Any) -> None:
    """Each transaction locks the streams of two queues, half of them in one order and half in the other."""

    async def order(app: Any, n: int) -> list[str]:
        connection = await asyncpg.connect(f"postgresql://{postgres()}")
        queues = ("mail", "parcels")
        async with connection.transaction():
            made = [await app.enqueue(queue, {"id": n}, tx=connection) for queue in queues[:: 1 if n % 2 else -1]]
            made.append(await app.start("shop", {"id": n}, tx=connection))
        await connection.close()
        return made

    async with apps(*HANDLERS) as app, app.workers.background():
        made = await asyncio.gather(*(order(app, n) for n in range(12)))
        assert [await app.result(run, timeout=TEST_TIMEOUT_S) for _, _, run in made] == list(range(12))
        assert (await app.queues.counts("parcels"))["waiting"] == 12
        added = [e.seq for e in await app.job_events("parcels", "job.added")]
        assert added == list(range(1, 13))


async def test_a_wait_receives_an_event_as_emitted(apps: Apps, connect: Any) -> None:
    async with apps(waiter) as app, app.workers.background():
        customer = await connect(Asyncpg, postgres())
        run = await app.start(waiter)
        await until(app.waits.list, TEST_TIMEOUT_S)
        await customer.begin()
        await app.emit("uploaded", {"uploadToken": "aaa"}, tx=customer.tx)
        await customer.commit()
        assert await app.result(run, timeout=TEST_TIMEOUT_S) == {"uploadToken": "aaa"}
        assert [e.data for e in await app.events.read("nq:global")] == [{"uploadToken": "[redacted]"}]


async def test_a_key_starts_one_run_with_and_without_tx(apps: Apps, connect: Any) -> None:
    async with apps(*HANDLERS) as app, app.workers.background():
        customer = await connect(Asyncpg, postgres())
        await app.start("shop", {"id": 1}, key="order-1")
        await customer.begin()
        for _ in range(2):
            assert await app.start("shop", {"id": 1}, key="order-1", tx=customer.tx) == "order-1"
            assert await app.start("shop", {"id": 2}, key="order-2", tx=customer.tx) == "order-2"
            await app.emit("shop.opened", key="monday", tx=customer.tx)
        await customer.commit()
        assert await app.result("order-2", timeout=TEST_TIMEOUT_S) == 2
        assert len(await app.runs.list()) == 2
        assert len(await app.events.read("nq:global")) == 1


async def test_an_event_for_a_run_of_the_same_transaction(apps: Apps, connect: Any) -> None:
    async with apps(*HANDLERS) as app, app.workers.background():
        customer = await connect(Asyncpg, postgres())
        await customer.begin()
        run = await app.start("shop", {"id": 1}, delay="1h", tx=customer.tx)
        await app.emit("paid", {"id": 9}, run=run, tx=customer.tx)
        await customer.commit()
        await app.wait_for_step(run, "ship", "completed")


async def test_an_event_for_a_cancelled_run_is_a_dead_letter(apps: Apps, connect: Any) -> None:
    async with apps(*HANDLERS) as app:
        customer = await connect(Asyncpg, postgres())
        run = await app.start("shop", {"id": 1}, delay="1h")
        await customer.begin()
        await app.emit("paid", {"id": 9}, run=run, tx=customer.tx)
        await app.runs.cancel(run)
        await customer.commit()
        async with app.workers.background():
            [letter] = await until(lambda: app.list_dead_letters("penstock-events"), TEST_TIMEOUT_S)
        assert f"cannot emit 'paid' to run '{run}'" in letter.error["message"]
        with pytest.raises(RunClosed, match="is cancelled and cannot receive 'paid'"):
            await app.emit("paid", {"id": 9}, run=run, tx=customer.tx)


async def test_an_event_wakes_a_run_and_starts_a_flow(apps: Apps, connect: Any) -> None:
    @flow("patient")
    async def patient(_: None, ctx: Any) -> Any:
        return (await ctx.wait.event("payment.came", match={"id": 7})).data

    @flow("woken", start_on="payment.came")
    async def woken(payment: dict[str, Any]) -> int:
        return payment["id"]

    async with apps(patient, woken) as app, app.workers.background():
        customer = await connect(Asyncpg, postgres())
        run = await app.start("patient")
        await until(lambda: app.waits.list(run=run), TEST_TIMEOUT_S)
        await customer.begin()
        await app.emit("payment.came", {"id": 7}, tx=customer.tx)
        await customer.commit()
        assert await app.result(run, timeout=TEST_TIMEOUT_S) == {"id": 7}
        [other] = await until(lambda: app.runs.list(flow="woken"), TEST_TIMEOUT_S)
        assert await app.result(other.id, timeout=TEST_TIMEOUT_S) == 7


async def test_a_pinned_version(apps: Apps, connect: Any) -> None:
    @flow("versioned", version="1", on_change="pin")
    async def versioned(input: int) -> int:
        return input

    async with apps(versioned) as app, app.workers.background():
        customer = await connect(Asyncpg, postgres())
        for commits in (False, True):
            await customer.begin()
            run = await app.start("versioned", 3, tx=customer.tx)
            await (customer.commit() if commits else customer.rollback())
        assert await app.result(run, timeout=TEST_TIMEOUT_S) == 3


async def test_unusual_texts(apps: Apps, connect: Any) -> None:
    odd = {"id": "\u0000 ' \" \\ % {0} $1 :p0 ? ü 🚰", "n": 1e2, "deep": [None, True, {"": []}]}

    @flow("echo")
    async def echo(input: Any) -> Any:
        return input

    async with apps(echo) as app, app.workers.background():
        customer = await connect(Psycopg, postgres())  # a blocking driver, on the event loop
        run = await app.start("echo", odd, tx=customer.tx)
        await customer.commit()
        assert await app.result(run, timeout=TEST_TIMEOUT_S) == odd


async def test_two_transactions_with_the_same_key(apps: Apps, connect: Any) -> None:
    """The second transaction finds the run while it commits, looks again and has nothing to do."""
    async with apps(*HANDLERS) as app, app.workers.background():
        first, second = await connect(Asyncpg, postgres()), await connect(Asyncpg, postgres())
        for customer in (first, second):
            await customer.begin()
            await app.start("shop", {"id": 7}, key="order-7", tx=customer.tx)
        await first.do("SET CONSTRAINTS ALL IMMEDIATE")  # applied, and not committed
        committing = asyncio.create_task(second.commit())
        waits = "SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'"
        await until(lambda: postgres_server.server().do(waits, second.tx.get_server_pid()), TEST_TIMEOUT_S)
        await first.commit()
        await committing
        assert await app.result("order-7", timeout=TEST_TIMEOUT_S) == 7
        assert len(await app.events_of("order-7", "flow.started")) == 1


async def test_the_grants_of_the_documentation_suffice(apps: Apps, url: str, connect: Any) -> None:
    server, schema = postgres_server.server(), url.rpartition("schema=")[2]
    async with apps(*HANDLERS) as app, app.workers.background():
        if not server.do("SELECT 1 FROM pg_roles WHERE rolname = 'clerk'"):
            server.do("CREATE ROLE clerk LOGIN")
        customer = await connect(Asyncpg, postgres().replace("postgres@", "clerk@"))
        await customer.begin()
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await app.start("shop", {"id": 1}, tx=customer.tx)
        await customer.rollback()
        server.do(f"GRANT USAGE ON SCHEMA {schema} TO clerk")
        server.do(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO clerk")
        server.do(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO clerk")
        await customer.begin()
        run = await app.start("shop", {"id": 2}, tx=customer.tx)
        await customer.commit()
        assert await app.result(run, timeout=TEST_TIMEOUT_S) == 2


async def test_ordered_jobs_take_their_place_when_the_transaction_commits(apps: Apps, connect: Any) -> None:
    async with apps(*HANDLERS) as app:
        first, second = [await connect(Asyncpg, postgres()) for _ in range(2)]
        await first.begin()
        await second.begin()
        late = [await app.enqueue("mail", n, order_key="ada", tx=first.tx) for n in range(2)]
        early = await app.enqueue("mail", 2, order_key="ada", tx=second.tx)
        direct = await app.enqueue("mail", 3, order_key="ada")  # an open transaction holds nobody up
        await second.commit()
        await first.commit()
        waits = {id: (await app.jobs.get(id)).waits_for for id in (direct, early, *late)}
        assert waits == {direct: None, early: direct, late[0]: early, late[1]: late[0]}


async def test_ordered_jobs_of_concurrent_transactions_make_one_line(apps: Apps, connect: Any) -> None:
    async with apps(*HANDLERS) as app:
        customers = [await connect(Asyncpg, postgres()) for _ in range(8)]
        ids: list[str] = []
        for customer in customers:
            await customer.begin()
            ids.append(await app.enqueue("mail", 1, order_key="ada", tx=customer.tx))
        await asyncio.gather(*(customer.commit() for customer in customers))
        waits = [(await app.jobs.get(id)).waits_for for id in ids]
        assert waits.count(None) == 1
        assert len(set(waits)) == 8


async def test_a_run_that_starts_with_a_transaction_is_found_by_its_keys(apps: Apps, connect: Any) -> None:
    async with apps(*HANDLERS) as app:
        customer = await connect(Asyncpg, postgres())
        await customer.begin()
        for key in ("a", "b"):
            await app.start("shop", {"id": 7}, key=key, correlation_id="cart", tags={"shop": key}, tx=customer.tx)
        assert await app.runs.list(correlation_id="cart") == []
        await customer.commit()
        assert [row.id for row in await app.runs.list(correlation_id="cart")] == ["b", "a"]
        assert [row.id for row in await app.runs.list(tags={"shop": "a"})] == ["a"]
