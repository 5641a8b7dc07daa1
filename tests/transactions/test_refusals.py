"""Connections that cannot carry anything, and what is said of them."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiosqlite
import apsw
import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from customers import Django, file_in, postgres
from small_shop import HANDLERS
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from penstock import SyncApp
from penstock.core.errors import NotInTransaction, UnknownConnection
from penstock.transactions.relay_source import now

Apps = Callable[..., Any]


@pytest.fixture
async def app(memory: Apps) -> AsyncIterator[Any]:
    async with memory(*HANDLERS) as found:
        yield found


async def test_connections_that_commit_by_themselves(app: Any, tmp_path: Path) -> None:
    url = f"postgresql://{postgres()}"
    engine = create_async_engine(f"postgresql+asyncpg://{postgres()}", poolclass=NullPool)
    alone: list[Any] = [
        await asyncpg.connect(url),
        psycopg.connect(url, autocommit=True),
        await psycopg.AsyncConnection.connect(url, autocommit=True),
        sqlite3.connect(file_in(tmp_path), isolation_level=None),
        apsw.Connection(":memory:"),
        await aiosqlite.connect(file_in(tmp_path), isolation_level=None),
        await (await engine.connect()).execution_options(isolation_level="AUTOCOMMIT"),
    ]
    alone.append(psycopg2.connect(url))
    alone[-1].autocommit = True
    for connection in alone:
        with pytest.raises(NotInTransaction, match="in no transaction, so there is nothing to be part of: begin one"):
            await app.start("shop", {"id": 1}, tx=connection)
        if asyncio.iscoroutine(closing := connection.close()):
            await closing
    assert await app.runs.list() == []


def test_frameworks_told_to_commit_by_themselves(tmp_path: Path) -> None:
    django = Django(file_in(tmp_path))
    now(django.open())
    engine = sqlalchemy.create_engine(
        f"postgresql+psycopg://{postgres()}", isolation_level="AUTOCOMMIT", poolclass=NullPool
    )
    with SyncApp(":memory:", handlers=HANDLERS) as app, Session(engine) as session, engine.connect() as connection:
        for tx in (django.tx, session, connection):
            with pytest.raises(NotInTransaction):
                app.enqueue("mail", {"id": 1}, tx=tx)
    now(django.close())


async def test_what_is_no_connection(app: Any) -> None:
    for wrong in (object(), "postgresql://db", 7):
        with pytest.raises(
            UnknownConnection, match=rf"tx is a {type(wrong).__name__}: give an asyncpg, psycopg 3"
        ) as no:
            await app.emit("shop.opened", tx=wrong)
        assert "SQLAlchemy Session" in str(no.value)
        assert "Django's connection" in str(no.value)


async def test_an_async_connection_and_no_loop(tmp_path: Path) -> None:
    connection = await aiosqlite.connect(file_in(tmp_path))

    def alone() -> None:
        with SyncApp(":memory:", handlers=HANDLERS) as app:
            for ask in (lambda: app.start("shop", {"id": 1}, tx=connection), lambda: app.outbox.create(connection)):
                with pytest.raises(UnknownConnection, match="is an async Connection, which SyncApp cannot wait for"):
                    ask()

    await asyncio.to_thread(alone)
    await connection.close()


async def test_drivers_are_not_imported_for_it(tmp_path: Path) -> None:
    """Whoever has a connection has its driver; whoever has none pays for none."""
    script = "import sys; from penstock import App; App(':memory:', handlers=()); print('\\n'.join(sys.modules))"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, cwd=tmp_path
    )
    said, _ = await process.communicate()
    loaded = {name.partition(".")[0] for name in said.decode().split()}
    assert "penstock" in loaded
    assert not loaded & {"asyncpg", "psycopg", "psycopg2", "sqlalchemy", "django", "aiosqlite"}
