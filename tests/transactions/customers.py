"""Customers with their own database: one class for each driver, all with the same methods.

The methods of blocking drivers never await, so `run_blocking` runs them without an event loop.
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
    """Return the URL of the test server, without a scheme."""
    return f"postgres@127.0.0.1:{postgres_server.server().port}/{database}"


@cache
def another_database() -> str:
    """Create a database on the same server that holds no store."""
    postgres_server.server().do("CREATE DATABASE another")
    return "another"


class Customer:
    """A connection and its transactions. `tx` is what is passed to Penstock."""

    tx: Any

    def __init__(self, location: str) -> None:
        self.location = location  # postgres() or the path of a file

    @property
    def outbox(self) -> Any:
        """Return what a relay connects to."""
        return f"sqlite:///{self.location}" if self.location.endswith(".db") else f"postgresql://{self.location}"

    async def open(self) -> None: ...

    async def begin(self) -> None: ...

    async def do(self, statement: str) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    async def close(self) -> None: ...


class Asyncpg(Customer):
    async def open(self) -> None:
        self.tx = await asyncpg.connect(f"postgresql://{self.location}")

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
        self.pool = await asyncpg.create_pool(f"postgresql://{self.location}", min_size=1, max_size=1)
        self.tx = await self.pool.acquire()

    async def close(self) -> None:
        await self.pool.release(self.tx)
        await self.pool.close()


class AsyncCommitting(Customer):
    """Async drivers that begin a transaction by themselves and have `commit()`."""

    async def do(self, statement: str) -> None:
        await self.tx.execute(statement)

    async def commit(self) -> None:
        await self.tx.commit()

    async def rollback(self) -> None:
        await self.tx.rollback()

    async def close(self) -> None:
        await self.tx.close()


class AsyncPsycopg(AsyncCommitting):
    async def open(self) -> None:
        self.tx = await psycopg.AsyncConnection.connect(f"postgresql://{self.location}")


class Aiosqlite(AsyncCommitting):
    async def open(self) -> None:
        self.tx = await aiosqlite.connect(self.location)


class AsyncSqlalchemy(AsyncCommitting):
    make: Any = AsyncConnection

    async def open(self) -> None:
        sqlite = self.location.endswith(".db")
        url = f"sqlite+aiosqlite:///{self.location}" if sqlite else f"postgresql+asyncpg://{self.location}"
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


class Committing(Customer):
    """Blocking drivers that begin a transaction by themselves and have `commit()`."""

    async def do(self, statement: str) -> None:
        self.tx.execute(statement)

    async def commit(self) -> None:
        self.tx.commit()

    async def rollback(self) -> None:
        self.tx.rollback()

    async def close(self) -> None:
        self.tx.close()


class Psycopg(Committing):
    async def open(self) -> None:
        self.tx = psycopg.connect(f"postgresql://{self.location}")


class Psycopg2(Committing):
    async def open(self) -> None:
        self.tx = psycopg2.connect(f"postgresql://{self.location}")

    async def do(self, statement: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute(statement)


class Sqlite(Committing):
    async def open(self) -> None:
        self.tx = sqlite3.connect(self.location)


class Apsw(Committing):
    @property
    def outbox(self) -> Any:
        # Not a URL: it would open the file with Python's sqlite3, and two SQLite libraries must not share a file.
        return lambda: apsw.Connection(self.location)

    async def open(self) -> None:
        self.tx = apsw.Connection(self.location)

    async def begin(self) -> None:
        self.tx.execute("BEGIN IMMEDIATE")

    async def commit(self) -> None:
        self.tx.execute("COMMIT")

    async def rollback(self) -> None:
        self.tx.execute("ROLLBACK")


class Sqlalchemy(Committing):
    async def open(self) -> None:
        url = f"sqlite:///{self.location}" if self.location.endswith(".db") else f"postgresql+psycopg://{self.location}"
        self.engine = sqlalchemy.create_engine(url, poolclass=NullPool)
        self.tx = self.new_connection()

    def new_connection(self) -> Any:
        return self.engine.connect()

    async def do(self, statement: str) -> None:
        self.tx.execute(sqlalchemy.text(statement))


class SqlalchemySession(Sqlalchemy):
    def new_connection(self) -> Any:
        return Session(self.engine)


class Django(Customer):
    async def open(self) -> None:
        if not django.conf.settings.configured:
            django.conf.settings.configure(USE_TZ=True, LOGGING_CONFIG=None)
            django.setup()
        one = {"ENGINE": "django.db.backends.sqlite3", "NAME": self.location}
        if not self.location.endswith(".db"):
            user, _, rest = self.location.partition("@")
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


ASYNC_POSTGRES = (Asyncpg, AsyncpgPool, AsyncPsycopg, AsyncSqlalchemy, AsyncSqlalchemySession)
BLOCKING_POSTGRES = (Psycopg, Psycopg2, Sqlalchemy, SqlalchemySession, Django)
ASYNC_SQLITE = (Aiosqlite, AsyncSqlalchemySession)
BLOCKING_SQLITE = (Sqlite, Apsw, SqlalchemySession, Django)


def file_in(folder: Path) -> str:
    """Return the path of a customer's database file."""
    return str(folder / "customer.db")
