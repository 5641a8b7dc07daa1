"""Entities in tables of the user's, with SQLAlchemy, sync and async, on SQLite and Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool

import postgres_server
from penstock import Context, RetryPolicy, job
from penstock.core.errors import ConfigError, RunError
from penstock.core.retry import Backoff
from penstock.entities import Rejected, States, Transition, entity, execution
from penstock.entities.sqlalchemy import AsyncSQLAlchemyService, SQLAlchemyService
from penstock.testing import until

AT_ONCE = RetryPolicy(3, Backoff("fixed", 1, jitter=False))
TIMEOUT_S = 20


class Table(DeclarativeBase):
    """The tables of the user."""


class Invoice(Table):
    __tablename__ = "invoices"
    id: Mapped[int] = mapped_column(primary_key=True)
    urn: Mapped[str] = mapped_column(unique=True)
    status: Mapped[str]
    paid: Mapped[int] = mapped_column(default=0)
    last_event: Mapped[str | None]


class Bare(Table):
    __tablename__ = "bare"
    urn: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str]


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def services(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Any, Any]]:
    """Return both services on one empty table."""
    if request.param == "sqlite":
        sync_url, async_url = f"sqlite:///{tmp_path}/user.db", f"sqlite+aiosqlite:///{tmp_path}/user.db"
    else:
        place = f"postgres@127.0.0.1:{postgres_server.server().port}/postgres"
        sync_url, async_url = f"postgresql+psycopg://{place}", f"postgresql+asyncpg://{place}"
    engine, async_engine = (
        create_engine(sync_url, poolclass=NullPool),
        create_async_engine(async_url, poolclass=NullPool),
    )
    Table.metadata.drop_all(engine)
    Table.metadata.create_all(engine)
    yield (
        SQLAlchemyService(sessionmaker(engine), Invoice),
        AsyncSQLAlchemyService(async_sessionmaker(async_engine), Invoice),
    )
    await async_engine.dispose()
    engine.dispose()


@pytest.fixture(params=["sync", "async"])
def service(request: pytest.FixtureRequest, services: tuple[Any, Any]) -> Any:
    return services[request.param == "async"]


@pytest.fixture
def crash(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process die once, after the commit of the user's database and before that of Penstock."""
    kind, left = type(service), [OSError("the process died")]
    real = kind.update

    def update(self: Any, *args: Any) -> None:
        real(self, *args)
        if left:
            raise left.pop()

    async def update_async(self: Any, *args: Any) -> None:
        await real(self, *args)
        if left:
            raise left.pop()

    monkeypatch.setattr(kind, "update", update_async if asyncio.iscoroutinefunction(real) else update)


def pay(invoice: Invoice, amount: int, ctx: Context) -> None:
    invoice.paid = (invoice.paid or 0) + amount
    ctx.emit("invoice.paid", {"paid": invoice.paid})
    ctx.enqueue("letters", {"paid": invoice.paid})
    ctx.shared.set("last", invoice.paid)


def reject(invoice: Invoice) -> None:
    invoice.paid = -1
    raise Rejected("no")


@job(queue="letters")
async def letter(input: Any) -> Any:
    return input


def make(storage: Any) -> type:
    @entity("invoice", retry=AT_ONCE)
    class InvoiceMachine:
        service = storage
        states = States("open", idles=["open", "paid"], finals=["done"], failed="failed")
        transitions = [
            Transition("pay", ["open", "paid"], "paid", actions=[pay]),
            Transition("check", "paid", "checking", actions=[pay]),
            Transition(None, "checking", "done", actions=[reject]),
            Transition("finish", "paid", "done"),
        ]

    return InvoiceMachine


@pytest.mark.spec("002-1.2")
async def test_events_change_rows(app: Any, services: tuple[Any, Any]) -> None:
    sync, other = services
    for n, storage in enumerate(services):
        async with app(make(storage), letter) as a, a.workers.background():
            urn = f"urn:invoice:{n}"
            await asyncio.gather(*[_pay(a, urn, 1) for _ in range(10)])
            assert sync.load(urn).paid == (await other.load(urn)).paid == 10
            done = await (await a.entities.emit(urn, "finish")).result(timeout=TIMEOUT_S)
            assert (done.from_, done.to, sync.load(urn).status) == ("paid", "done", "done")
            assert (await a.entities.get(urn)).status == "done"


async def _pay(a: Any, urn: str, amount: int) -> None:
    await (await a.entities.emit(urn, "pay", amount)).result(timeout=TIMEOUT_S)


async def read_effects(a: Any) -> tuple[list[Any], list[Any], Any]:
    """Return what the action of `pay` did besides the row: its events, its jobs and its state."""
    events = [one.data for one in await a.events.read_all("nq:entity:invoice-1") if one.kind == "invoice.paid"]
    jobs = await until(lambda: a.jobs.list("letters", state="completed"), TIMEOUT_S)
    return events, [one.input for one in jobs], await a.state.get("last")


async def test_a_repeated_event_keeps_all_that_its_first_attempt_did(memory: Any, service: Any, crash: None) -> None:
    async with memory(make(service), letter) as a, a.workers.background():
        await _pay(a, "invoice-1", 5)
        assert (await a.entities.data("invoice-1")).paid == 5
        assert await read_effects(a) == ([{"paid": 5}], [{"paid": 5}], 5)
        [moved] = [one for one in await a.events.read_all("nq:entity:invoice-1") if one.kind == "entity.transitioned"]
        assert moved.data["recovered"] is True


async def test_without_what_is_saved_before_the_update_it_loses_them(
    memory: Any, services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the test above."""

    async def save_nothing(*_: Any) -> None: ...

    monkeypatch.setattr(execution, "save_update", save_nothing)
    service, left = services[0], [OSError("the process died")]
    real = SQLAlchemyService.update

    def update(self: Any, *args: Any) -> None:
        real(self, *args)
        if left:
            raise left.pop()

    monkeypatch.setattr(SQLAlchemyService, "update", update)
    async with memory(make(service), letter) as a, a.workers.background():
        await _pay(a, "invoice-1", 5)
        assert "invoice.paid" not in [one.kind for one in await a.events.read_all("nq:entity:invoice-1")]


async def test_a_late_attempt_changes_nothing(services: tuple[Any, Any]) -> None:
    """An attempt that lost its lease updates the row after the next attempt, or after the next event."""
    sync, other = services
    late = sync.new("urn:invoice:1")
    sync.update(sync.new("urn:invoice:1"), "paid", "e1")
    late.paid = 100
    sync.update(late, "paid", "e1")  # the same event: it is applied already
    assert sync.load("urn:invoice:1").paid == 0
    late = await other.load("urn:invoice:1")
    current = await other.load("urn:invoice:1")
    await other.update(current, "paid", "e2")
    late.paid = 100
    with pytest.raises(RunError, match="changed by another attempt"):
        await other.update(late, "done", "e1b")
    assert (sync.load("urn:invoice:1").status, sync.load("urn:invoice:1").paid) == ("paid", 0)
    assert sync.applied("urn:invoice:1", "e2")
    assert not await other.applied("urn:invoice:1", "e1")


async def test_a_rejected_step_keeps_the_steps_before_it(memory: Any, service: Any) -> None:
    async with memory(make(service), letter) as a, a.workers.background():
        await _pay(a, "invoice-1", 5)
        done = await (await a.entities.emit("invoice-1", "check", 2)).result(timeout=TIMEOUT_S)
        assert (done.path, done.reason) == (["paid", "checking", "failed"], "no")
        row = await a.entities.data("invoice-1")
        assert (row.paid, row.status) == (7, "failed")


def test_a_wrong_table_is_refused(services: tuple[Any, Any]) -> None:
    sessions = services[0]._sessions
    with pytest.raises(ConfigError, match=r"Bare has no column 'last_event' for key=.*key=None does without"):
        SQLAlchemyService(sessions, Bare)
    with pytest.raises(ConfigError, match="no column 'state' for status=: did you mean 'status'"):
        SQLAlchemyService(sessions, Bare, status="state", key=None)
    with pytest.raises(ConfigError, match="must be a class that SQLAlchemy maps"):
        SQLAlchemyService(sessions, dict)
    bare = SQLAlchemyService(sessions, Bare, key=None)
    bare.update(bare.new("a"), "paid", "e1")
    assert not bare.applied("a", "e1")
