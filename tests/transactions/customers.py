"""Whoever has a database of his own: one for each driver, all asked the same way.

The methods of those whose driver blocks never wait, so `now` runs them where there is no event loop.
"""

from __future__ import annotations

import sqlite3
from functools import cache
from pathlib import Path
from typing import Any

import aiosqlite
import apsw
import asyncpg
import django
import django.conf
import psycopg
import psycopg2
import sqlalchemy
from django.db.utils import ConnectionHandler
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import postgres_server


def postgres(database: str = "postgres") -> str:
    """Where the server of the tests is, without a scheme."""
    return f"postgres@127.0.0.1:{postgres_server.server().port}/{database}"


@cache
def another_database() -> str:
    """A database of the same server that no store is in."""
    postgres_server.server().do("CREATE DATABASE another")
    return "another"


class Customer:
    """A connection and its transactions. `tx` is what Penstock is given."""

    tx: Any

    def __init__(self, place: str) -> None:
        self.place = place  # postgres() or the path of a file

    @property
    def outbox(self) -> Any:
        """Where a relay finds it."""
        return f"sqlite:///{self.place}" if self.place.endswith(".db") else f"postgresql://{self.place}"

    async def open(self) -> None: ...

    async def begin(self) -> None: ...

    async def do(self, statement: str) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    async def close(self) -> None: ...


class Asyncpg(Customer):
    async def open(self) -> None:
        self.tx = await asyncpg.connect(f"postgresql://{self.place}")

    async def begin(self) -> None:
        self.transaction = self.tx.transaction()
        await self.transaction.start()

    async def do(self, statement: str) -> None:
        await self.tx.execute(statement)

    async def commit(self) -> None:
        await self.transaction.commit()

    async def rollback(self) -> None:
        await self.transaction.rollback()

    async def close(self) -> None:
        await self.tx.close()


class AsyncpgPool(Asyncpg):
    async def open(self) -> None:
        self.pool = await asyncpg.create_pool(f"postgresql://{self.place}", min_size=1, max_size=1)
        self.tx = await self.pool.acquire()

    async def close(self) -> None:
        await self.pool.release(self.tx)
        await self.pool.close()


class AsyncDirect(Customer):
    """Those that begin by themselves, and commit when they are told."""

    async def do(self, statement: str) -> None:
        await self.tx.execute(statement)

    async def commit(self) -> None:
        await self.tx.commit()

    async def rollback(self) -> None:
        await self.tx.rollback()

    async def close(self) -> None:
        await self.tx.close()


class AsyncPsycopg(AsyncDirect):
    async def open(self) -> None:
        self.tx = await psycopg.AsyncConnection.connect(f"postgresql://{self.place}")


class Aiosqlite(AsyncDirect):
    async def open(self) -> None:
        self.tx = await aiosqlite.connect(self.place)


class AsyncSqlalchemy(AsyncDirect):
    make: Any = AsyncConnection

    async def open(self) -> None:
        sqlite = self.place.endswith(".db")
        url = f"sqlite+aiosqlite:///{self.place}" if sqlite else f"postgresql+asyncpg://{self.place}"
        self.engine = create_async_engine(url, poolclass=NullPool)
        self.tx = self.make(self.engine)
        if isinstance(self.tx, AsyncConnection):
            await self.tx.start()

    async def do(self, statement: str) -> None:
        await self.tx.execute(sqlalchemy.text(statement))

    async def close(self) -> None:
        await super().close()
        await self.engine.dispose()


class AsyncSqlalchemySession(AsyncSqlalchemy):
    make = AsyncSession


class Direct(Customer):
    async def do(self, statement: str) -> None:
        self.tx.execute(statement)

    async def commit(self) -> None:
        self.tx.commit()

    async def rollback(self) -> None:
        self.tx.rollback()

    async def close(self) -> None:
        self.tx.close()


class Psycopg(Direct):
    async def open(self) -> None:
        self.tx = psycopg.connect(f"postgresql://{self.place}")


class Psycopg2(Direct):
    async def open(self) -> None:
        self.tx = psycopg2.connect(f"postgresql://{self.place}")

    async def do(self, statement: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute(statement)


class Sqlite(Direct):
    async def open(self) -> None:
        self.tx = sqlite3.connect(self.place)


class Apsw(Direct):
    @property
    def outbox(self) -> Any:
        # Not by a URL: Python's sqlite3 is another copy of SQLite than apsw's, and two of them must not share a file.
        return lambda: apsw.Connection(self.place)

    async def open(self) -> None:
        self.tx = apsw.Connection(self.place)

    async def begin(self) -> None:
        self.tx.execute("BEGIN IMMEDIATE")

    async def commit(self) -> None:
        self.tx.execute("COMMIT")

    async def rollback(self) -> None:
        self.tx.execute("ROLLBACK")


class Sqlalchemy(Direct):
    async def open(self) -> None:
        url = f"sqlite:///{self.place}" if self.place.endswith(".db") else f"postgresql+psycopg://{self.place}"
        self.engine = sqlalchemy.create_engine(url, poolclass=NullPool)
        self.tx = self.connected()

    def connected(self) -> Any:
        return self.engine.connect()

    async def do(self, statement: str) -> None:
        self.tx.execute(sqlalchemy.text(statement))


class SqlalchemySession(Sqlalchemy):
    def connected(self) -> Any:
        return Session(self.engine)


class Django(Customer):
    async def open(self) -> None:
        if not django.conf.settings.configured:
            django.conf.settings.configure(USE_TZ=True, LOGGING_CONFIG=None)
            django.setup()
        one = {"ENGINE": "django.db.backends.sqlite3", "NAME": self.place}
        if not self.place.endswith(".db"):
            user, _, rest = self.place.partition("@")
            host, _, name = rest.partition("/")
            one = {"ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": user}
            one |= {"HOST": host.partition(":")[0], "PORT": host.partition(":")[2]}
        self.tx = ConnectionHandler({"default": one})["default"]

    async def begin(self) -> None:
        self.tx.set_autocommit(False)

    async def do(self, statement: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute(statement)

    async def commit(self) -> None:
        self.tx.commit()
        self.tx.set_autocommit(True)

    async def rollback(self) -> None:
        self.tx.rollback()
        self.tx.set_autocommit(True)

    async def close(self) -> None:
        self.tx.close()


WAITING_POSTGRES = (Asyncpg, AsyncpgPool, AsyncPsycopg, AsyncSqlalchemy, AsyncSqlalchemySession)
BLOCKING_POSTGRES = (Psycopg, Psycopg2, Sqlalchemy, SqlalchemySession, Django)
WAITING_SQLITE = (Aiosqlite, AsyncSqlalchemySession)
BLOCKING_SQLITE = (Sqlite, Apsw, SqlalchemySession, Django)


def file_in(folder: Path) -> str:
    """The database file of a customer."""
    return str(folder / "customer.db")
