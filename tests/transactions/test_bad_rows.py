"""Rows that can never be delivered are set aside once; the rows behind them are delivered."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from customers import Asyncpg, Customer, Sqlite, another_database, file_in, postgres
from small_shop import HANDLERS, TEST_TIMEOUT_S

import postgres_server
import redis_server
from penstock import App
from penstock.core.errors import NoOutbox, StoreError
from penstock.testing import until
from penstock.transactions import relay as relaying

Apps = Callable[..., Any]
STORES = {
    "file": lambda folder: f"sqlite:///{folder}/store.db",
    "redis": lambda _: redis_server.url(),
    "postgres": lambda _: postgres_server.prepared_url(),
}


def encoded(value: Any) -> str:
    """Return JSON as a unit holds it."""
    return base64.b64encode(json.dumps(value).encode() if not isinstance(value, bytes) else value).decode()


JOB = {"id": "j", "queue": "mail", "name": "mail", "payload": encoded({"id": 1})}
RUN = {"id": "r", "expect": 0, "record": encoded({}), "flow": "shop", "status": "running"}
EVENT = {"stream": "nq:global", "body": encoded({"kind": "order.made", "data": {"n": 1}})}

# Texts of the column `unit`.
BAD_UNITS: dict[str, str] = {
    "empty": "",
    "no JSON": "{",
    "null": "null",
    "a list": "[]",
    "a number": "7",
    "no id": "{}",
    "a number as id": '{"id": 7}',
    "an empty id": '{"id": ""}',
    "deep": "[" * 100_000,
    "text as number": json.dumps({"id": "u", "jobs": [JOB | {"priority": "high"}]}),
    "text as due": json.dumps({"id": "u", "jobs": [JOB | {"due": "tomorrow"}]}),
    "a due of old": json.dumps({"id": "u", "jobs": [JOB | {"due": -1}]}),
    "a far due": json.dumps({"id": "u", "jobs": [JOB | {"due": 2**62}]}),
    "a due beyond all": json.dumps({"id": "u", "jobs": [JOB | {"due": 2**100}]}),
    "a negative priority": json.dumps({"id": "u", "jobs": [JOB | {"priority": -1}]}),
    "a large priority": json.dumps({"id": "u", "jobs": [JOB | {"priority": 2**40}]}),
    "no payload": json.dumps({"id": "u", "jobs": [{**JOB, "payload": ""}]}),
    "a payload that is not base64": json.dumps({"id": "u", "jobs": [JOB | {"payload": "%%%"}]}),
    "a payload that is not JSON": json.dumps({"id": "u", "jobs": [JOB | {"payload": encoded(b"{")}]}),
    "a payload that is not UTF-8": json.dumps({"id": "u", "jobs": [JOB | {"payload": encoded(b'"\xff"')}]}),
    "options that are not JSON": json.dumps({"id": "u", "jobs": [JOB | {"opts": encoded(b"x")}]}),
    "a queue with a colon": json.dumps({"id": "u", "jobs": [JOB | {"queue": "a:b"}]}),
    "a queue with U+0000": json.dumps({"id": "u", "jobs": [JOB | {"queue": "a\0b"}]}),
    "a job id with a colon": json.dumps({"id": "u", "jobs": [JOB | {"id": "a:b"}]}),
    "a name with U+0000": json.dumps({"id": "\0", "jobs": [JOB]}),
    "a run of another version": json.dumps({"id": "u", "run": RUN | {"expect": 5}}),
    "a record that is not JSON": json.dumps({"id": "u", "run": RUN | {"record": encoded(b"\x80")}}),
    "a stream of another form": json.dumps({"id": "u", "events": [EVENT | {"stream": "nowhere"}]}),
    "an event that is not JSON": json.dumps({"id": "u", "events": [EVENT | {"body": encoded(b"{")}]}),
    "the end of an attempt": json.dumps({"id": "u", "outcome": {"type": "completed"}}),
    "a used wait": json.dumps({"id": "u", "waits": [{"type": "settle", "id": "none", "state": "resolved"}]}),
    "a state that moved": json.dumps({"id": "u", "state": [{"key": "k", "value": None, "expect": 9}]}),
}


@pytest.fixture(params=["file and postgres", "redis and sqlite", "postgres and sqlite"])
def databases(request: pytest.FixtureRequest) -> list[str]:
    """Return the kinds of the store and of the customer's database."""
    return str(request.param).split(" and ")


@pytest.fixture
def url(databases: list[str], tmp_path: Any) -> str:
    return STORES[databases[0]](tmp_path)


@pytest.fixture
async def customer(databases: list[str], tmp_path: Any, connect: Any) -> Customer:
    """Return a customer with an empty outbox outside the store's database."""
    sqlite = databases[1] == "sqlite"
    found = await (connect(Sqlite, file_in(tmp_path)) if sqlite else connect(Asyncpg, postgres(another_database())))
    await found.begin()
    await found.do("DROP TABLE IF EXISTS penstock_outbox")
    async with App(":memory:", handlers=()) as app:
        await app.outbox.create(found.tx)
    await found.commit()
    return found  # type: ignore[no-any-return]


async def insert(customer: Customer, id: str, unit: str) -> None:
    """Insert a row with a unit as SQL."""
    await customer.begin()
    await customer.do(
        f"INSERT INTO penstock_outbox (id, namespace, summary, unit) VALUES ('{id}', 'nq', 'bad', {unit})"
    )
    await customer.commit()


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


async def emit(app: App, customer: Customer, n: int) -> None:
    await customer.begin()
    await app.emit("order.made", {"n": n}, tx=customer.tx)
    await customer.commit()


async def orders(app: App) -> list[int]:
    return [event.data["n"] for event in await app.events.read_all("nq:global")]


async def test_bad_rows_are_set_aside(apps: Apps, customer: Customer, caplog: pytest.LogCaptureFixture) -> None:
    async with apps(*HANDLERS) as app:
        for n, (what, unit) in enumerate(BAD_UNITS.items()):
            await emit(app, customer, n)
            await insert(customer, what, quoted(unit))
        with caplog.at_level(logging.ERROR, "penstock.outbox"):
            assert await app.outbox.drain(customer.outbox) == len(BAD_UNITS)
        assert await orders(app) == list(range(len(BAD_UNITS)))
        failed = await app.outbox.failed(customer.outbox)
        assert [row.id for row in failed] == list(BAD_UNITS)
        assert all(row.error for row in failed)
        assert len([one for one in caplog.records if "setting it aside" in one.message]) == len(BAD_UNITS)
        # They are not tried again.
        await emit(app, customer, 99)
        assert await app.outbox.drain(customer.outbox) == 1
        assert await app.outbox.failed(customer.outbox) == failed
        assert await app.outbox.failed(customer.outbox, after=failed[0].seq, limit=2) == failed[1:3]
        # Nothing of them is in the store.
        assert await app.runs.list() == []
        assert await app.jobs.list("mail") == []


async def test_a_row_that_was_fixed_is_tried_again(apps: Apps, customer: Customer) -> None:
    async with apps(*HANDLERS) as app:
        for id in ("one", "two"):
            await insert(customer, id, quoted(json.dumps({"id": id, "jobs": [JOB | {"id": id, "due": -1}]})))
        assert await app.outbox.drain(customer.outbox) == 0
        first, second = await app.outbox.failed(customer.outbox)
        await customer.begin()
        await customer.do("UPDATE penstock_outbox SET unit = replace(unit, '-1', '0')")
        await customer.commit()
        await app.outbox.retry(customer.outbox, [second.seq])
        assert await app.outbox.count_waiting(customer.outbox) == 1
        assert await app.outbox.drain(customer.outbox) == 1
        assert await app.outbox.failed(customer.outbox) == [first]
        await app.outbox.retry(customer.outbox)
        assert await app.outbox.drain(customer.outbox) == 1
        assert sorted(row.id for row in await app.jobs.list("mail")) == ["one", "two"]


async def test_the_same_unit_twice_takes_effect_once(apps: Apps, customer: Customer) -> None:
    unit = quoted(json.dumps({"id": "u", "events": [EVENT | {"kind": "order.made"}]}))
    async with apps(*HANDLERS) as app:
        for id in ("a", "b", "c"):
            await insert(customer, id, unit)
        assert await app.outbox.drain(customer.outbox) == 3
        assert await orders(app) == [1]


async def test_a_store_that_refuses_one_row(apps: Apps, customer: Customer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the store is about the row if the store accepts another one."""
    async with apps(*HANDLERS) as app:
        commit = app.store.commit

        async def refuse(units: Any, request: Any = None) -> Any:
            if any(job.id == "poison" for unit in units for job in unit.jobs):
                raise StoreError("ERR no")
            return await commit(units, request)

        monkeypatch.setattr(app.store, "commit", refuse)
        await insert(customer, "poison", quoted(json.dumps({"id": "p", "jobs": [JOB | {"id": "poison"}]})))
        assert await app.outbox.drain(customer.outbox) == 0
        (row,) = await app.outbox.failed(customer.outbox)
        assert (row.id, row.error) == ("poison", "StoreError: ERR no")


async def test_a_store_that_refuses_all_sets_nothing_aside(
    apps: Apps, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with apps(*HANDLERS) as app:
        for n in range(3):
            await emit(app, customer, n)

        async def refuse(units: Any, request: Any = None) -> Any:
            raise StoreError("access denied")

        with monkeypatch.context() as broken:
            broken.setattr(app.store, "commit", refuse)
            with pytest.raises(StoreError, match="access denied"):
                await app.outbox.drain(customer.outbox)
        assert await app.outbox.failed(customer.outbox) == []
        assert await app.outbox.drain(customer.outbox) == 3
        assert await orders(app) == [0, 1, 2]


async def test_large_rows_are_read_in_small_pages(
    apps: Apps, customer: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relaying, "PAGE_BYTES", 100_000)
    pages: list[int] = []
    deliver = relaying.Relay._deliver_page

    async def counted(self: relaying.Relay) -> int:
        pages.append(await deliver(self))
        return pages[-1]

    monkeypatch.setattr(relaying.Relay, "_deliver_page", counted)
    async with apps(*HANDLERS) as app:
        await customer.begin()
        for n in range(12):
            await app.emit("order.made", {"n": n, "text": "x" * 40_000}, tx=customer.tx)
        await customer.commit()
        assert await app.outbox.drain(customer.outbox) == 12
        assert await orders(app) == list(range(12))
    assert max(pages) <= 3


async def test_bytes_in_a_sqlite_outbox(memory: Apps, tmp_path: Any, connect: Any) -> None:
    customer = await connect(Sqlite, file_in(tmp_path))
    async with memory(*HANDLERS) as app:
        await app.outbox.create(customer.tx)
        await emit(app, customer, 0)
        await insert(customer, "text", "CAST(x'ff00fe' AS text)")
        await insert(customer, "blob", "x'ff00fe'")
        await insert(customer, "whole", "7")
        await insert(customer, "' || CAST(x'ff' AS text) || '", "'{'")
        await emit(app, customer, 1)
        async with app.outbox.background(customer.outbox, every="1ms"):

            async def delivered() -> bool:
                return await orders(app) == [0, 1]

            await until(delivered, TEST_TIMEOUT_S)
        assert [row.id for row in await app.outbox.failed(customer.outbox)] == ["text", "blob", "whole", "\ufffd"]


async def test_a_table_of_another_form(memory: Apps, tmp_path: Any, connect: Any) -> None:
    customer = await connect(Sqlite, file_in(tmp_path))
    await customer.do("CREATE TABLE penstock_outbox (id text, unit text)")
    async with memory(*HANDLERS) as app:
        with pytest.raises(NoOutbox, match=r"no such column: seq.*penstock outbox sql --dialect sqlite"):
            await app.outbox.drain(customer.outbox)
