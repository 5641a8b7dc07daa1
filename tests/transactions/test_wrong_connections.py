"""Connections that `tx=` refuses, and the errors."""

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
from penstock.transactions.connections.connection import run_blocking

Apps = Callable[..., Any]


@pytest.fixture
async def app(memory: Apps) -> AsyncIterator[Any]:
    async with memory(*HANDLERS) as found:
        yield found


async def test_autocommit_connections(app: Any, tmp_path: Path) -> None:
    url = f"postgresql://{postgres()}"
    engine = create_async_engine(f"postgresql+asyncpg://{postgres()}", poolclass=NullPool)
    connections: list[Any] = [
        await asyncpg.connect(url),
        psycopg.connect(url, autocommit=True),
        await psycopg.AsyncConnection.connect(url, autocommit=True),
        sqlite3.connect(file_in(tmp_path), isolation_level=None),
        apsw.Connection(":memory:"),
        await aiosqlite.connect(file_in(tmp_path), isolation_level=None),
        await (await engine.connect()).execution_options(isolation_level="AUTOCOMMIT"),
    ]
    connections.append(psycopg2.connect(url))
    connections[-1].autocommit = True
    for connection in connections:
        with pytest.raises(NotInTransaction, match="is not in a transaction and would commit each statement; begin"):
            await app.start("shop", {"id": 1}, tx=connection)
        if asyncio.iscoroutine(closing := connection.close()):
            await closing
    assert await app.runs.list() == []


def test_autocommit_in_frameworks(tmp_path: Path) -> None:
    django = Django(file_in(tmp_path))
    run_blocking(django.open())
    engine = sqlalchemy.create_engine(
        f"postgresql+psycopg://{postgres()}", isolation_level="AUTOCOMMIT", poolclass=NullPool
    )
    with SyncApp(":memory:", handlers=HANDLERS) as app, Session(engine) as session, engine.connect() as connection:
        for tx in (django.tx, session, connection):
            with pytest.raises(NotInTransaction):
                app.enqueue("mail", {"id": 1}, tx=tx)
    run_blocking(django.close())


async def test_not_a_connection(app: Any) -> None:
    for wrong in (object(), "postgresql://db", 7):
        with pytest.raises(
            UnknownConnection, match=rf"tx must be an asyncpg, psycopg 3 .*, got a {type(wrong).__name__}"
        ) as raised:
            await app.emit("shop.opened", tx=wrong)
        assert "SQLAlchemy Session" in str(raised.value)
        assert "Django's connection" in str(raised.value)


async def test_an_async_connection_with_sync_app(tmp_path: Path) -> None:
    connection = await aiosqlite.connect(file_in(tmp_path))

    def use_sync_app() -> None:
        with SyncApp(":memory:", handlers=HANDLERS) as app:
            for call in (lambda: app.start("shop", {"id": 1}, tx=connection), lambda: app.outbox.create(connection)):
                with pytest.raises(
                    UnknownConnection, match="is an async Connection, which cannot be used with SyncApp"
                ):
                    call()

    await asyncio.to_thread(use_sync_app)
    await connection.close()


async def test_drivers_are_not_imported(tmp_path: Path) -> None:
    """A caller with a connection has imported its driver. Other callers do not load drivers."""
    script = "import sys; from penstock import App; App(':memory:', handlers=()); print('\\n'.join(sys.modules))"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, cwd=tmp_path
    )
    output, _ = await process.communicate()
    loaded = {name.partition(".")[0] for name in output.decode().split()}
    assert "penstock" in loaded
    assert not loaded & {"asyncpg", "psycopg", "psycopg2", "sqlalchemy", "django", "aiosqlite"}
