"""Connections, and Postgres' errors in our words."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeAlias, TypeVar

import asyncpg

from ...core.errors import SettingError, StoreClosed, StoreError, StoreFull, StoreUnavailable
from .address import Address, unknown_option
from .silence import notice_silence, server_settings

log = logging.getLogger("penstock.store")

T = TypeVar("T")
Connection: TypeAlias = Any  # asyncpg.Connection, which has no types
Work = Callable[[Connection], Awaitable[T]]

OLDEST = 13
CONNECT_SECONDS = 10.0
COMMAND_SECONDS = 60.0
TRIES = 12
# Two that waited for each other, or one that found there already what it was to add: once more, and the other is done.
_AGAIN = ("40001", "40P01", "23505", "55P03")
# Whoever waited for a lock has to see what the other one wrote: a snapshot from before would not, whatever the role's
# own default is.
_LEVEL = "read_committed"
_SETTINGS = {"default_transaction_isolation": _LEVEL.replace("_", " ")}
# A server has no such setting, PgBouncer does not pass it on; or its value cannot be, or cannot be set in a session.
_NO_OPTION = ("42704", "08P01")
_BAD_OPTION = ("22023", "55P02")
_DENIED = ("28000", "28P01", "42501", "3F000")
# The driver's own word for a connection that was cut while it was being used is InternalClientError.
_LOST = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)
# What a new connection may not meet: this one was cut or interrupted, there was no place or memory for it, or it leads
# to a server that others write to now.
_GONE = ("08", "57P", "57014", "53200", "53300", "25P03", "25006")


def _is_news(record: logging.LogRecord) -> bool:
    """Whether it is more than what the driver leaves behind when a server refuses TLS: it then connects without."""
    return "unexpected connection_lost() call" not in record.getMessage()


async def connect(address: Address) -> Connection:
    """A connection that keeps JSON as the bytes it is."""
    logging.getLogger("asyncio").addFilter(_is_news)
    try:
        connection = await asyncpg.connect(
            address.dsn,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            # A pooler gives each transaction another connection, which does not know what the last one prepared.
            statement_cache_size=0 if address.pooled else 200,
            max_cached_statement_lifetime=0,
            # Nor does it let a connection begin with settings of its own: there each transaction says it.
            server_settings=None if address.pooled else _SETTINGS | server_settings(),
        )
        notice_silence(connection._transport.get_extra_info("socket"))  # the driver has no other way to it
        async with _whole(connection, address):
            await connection.set_type_codec("json", schema="pg_catalog", encoder=_same, decoder=bytes, format="binary")
    except Exception as problem:
        raise _of_url(problem, address) or translate(problem, address) from problem
    wrong = _unfit(connection)
    if wrong is not None:
        await end(connection)
        raise StoreError(f"{address.shown} {wrong}")
    return connection


def _of_url(problem: Exception, address: Address) -> SettingError | None:
    """What is wrong with an option of the URL, if that is why there is no connection."""
    if isinstance(problem, asyncpg.ClientConfigurationError):
        return SettingError(f"{address.shown} cannot be connected to with these options: {problem}; mend the URL")
    if not isinstance(problem, asyncpg.PostgresError):
        return None
    # By the names that were given: the sentence around them is in the server's language.
    named = [name for name in address.session if name in str(problem)]
    if named and problem.sqlstate in _NO_OPTION:
        return unknown_option(named[0])
    if named and problem.sqlstate in _BAD_OPTION:
        return SettingError(f"{address.shown} refuses {named[0]}={address.session[named[0]]}: {problem}; mend the URL")
    return None


def _whole(connection: Connection, address: Address) -> AbstractAsyncContextManager[object]:
    """One transaction behind a pooler, which may change servers between two of them; and the driver does some things in
    several steps: what it sets before it asks for types would be set on another server."""
    return connection.transaction(isolation=_LEVEL) if address.pooled else nullcontext()


def _unfit(connection: Connection) -> str | None:
    if connection.get_server_version().major < OLDEST:
        return f"is older than Postgres {OLDEST}: upgrade the server"
    encoding = connection.get_settings().server_encoding
    if encoding != "UTF8":
        return f"is encoded as {encoding}, which cannot hold every text: use a database with ENCODING 'UTF8'"
    return None


def _same(value: bytes) -> bytes:
    return value


def crowded(problem: StoreUnavailable) -> bool:
    """Whether the server had no place for another connection."""
    return isinstance(problem.__cause__, asyncpg.TooManyConnectionsError)


class Connections:
    """A few connections that are lent out one piece of work at a time; one that broke is not lent again."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._places = asyncio.Semaphore(address.pool)
        self._idle: list[Connection] = []
        self._lent = 0
        self._owed = False  # the next that comes back is let go
        self._closed = False

    async def run(self, work: Work[T]) -> T:
        """Does a piece of work that may be done again: as long as it collides with another's it is."""
        for attempt in range(1, TRIES + 1):
            try:
                return await self._once(work)
            except asyncpg.PostgresError as problem:
                if problem.sqlstate not in _AGAIN or attempt == TRIES:
                    raise translate(problem, self.address) from problem
            except _LOST as problem:
                raise translate(problem, self.address) from problem
            except StoreUnavailable as problem:
                if attempt == TRIES or not self._may_soon_have_one(problem):
                    raise
            await asyncio.sleep(random.uniform(0, 0.002 * 2 ** min(attempt, 7)))
        raise AssertionError("unreachable")

    async def _once(self, work: Work[T]) -> T:
        async with self._places:
            if self._closed:
                raise StoreClosed(f"the store {self.address.shown} is closed")
            connection = await self._take()
            self._lent += 1
            try:
                async with _whole(connection, self.address):
                    found = await work(connection)
            except asyncpg.PostgresError as problem:
                if (problem.sqlstate or "08").startswith(_GONE):
                    connection.terminate()  # the server is about to
                self._give_back(connection)
                raise
            except BaseException:
                connection.terminate()  # nobody knows what it is in the middle of
                raise
            finally:
                self._lent -= 1
            self._give_back(connection)
            return found

    def _may_soon_have_one(self, problem: StoreUnavailable) -> bool:
        return crowded(problem) and bool(self._lent or self._idle)

    def make_room(self) -> None:
        """Makes do with one less from now on: another part of this process needs it more."""
        most = self._lent + len(self._idle) - 1
        if most < 1 or self._owed:
            return
        log.warning(
            "%s has too few connections for pool=%d: %d are used now", self.address.shown, self.address.pool, most
        )
        self._places = asyncio.Semaphore(most)
        self._owed = not self._idle
        if self._idle:
            self._idle.pop(0).terminate()

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await connect(self.address)

    @property
    def idle(self) -> int:
        """How many are open and not lent."""
        return len(self._idle)

    def _give_back(self, connection: Connection) -> None:
        if connection.is_closed():
            return
        if self._closed or self._owed or connection.is_in_transaction():
            self._owed = False
            connection.terminate()
        else:
            self._idle.append(connection)

    async def close(self) -> None:
        self._closed = True
        for connection in self._idle:
            await end(connection)
        self._idle.clear()


async def end(connection: Connection) -> None:
    """Closes a connection, politely if it can hear it."""
    try:
        await connection.close(timeout=2)
    except Exception:
        connection.terminate()


def translate(problem: BaseException, address: Address) -> StoreError:
    """Our error for one of Postgres'."""
    if isinstance(problem, StoreError):
        return problem
    where = address.shown
    if isinstance(problem, asyncpg.PostgresError):
        state = problem.sqlstate or ""
        if state.startswith("53100"):
            return StoreFull(f"no room left to write {where}: free some disk space, work goes on by itself")
        if state.startswith("53300"):
            return StoreUnavailable(
                f"{where} has no connection left ({problem}). A process of this URL uses up to {address.uses}: raise "
                "max_connections or the CONNECTION LIMIT of the role or database, write a smaller pool= in the URL, or "
                "put a pooler between (pooling=transaction). What is running goes on as soon as there is room"
            )
        if state == "3D000":
            return StoreError(f"{where} refuses: {problem}. Create it (`createdb NAME`), or give another in the URL")
        if state in _DENIED:
            return StoreError(
                f"{where} refuses: {problem}. Check user and password; the role needs CONNECT on the database, USAGE "
                f"on the schema {address.schema} and SELECT, INSERT, UPDATE, DELETE on its tables and sequences, and "
                "to create them, CREATE on the database: or let another role run `penstock migrate`"
            )
        if state.startswith(_GONE) or state in _AGAIN:
            return StoreUnavailable(f"{where} does not take it now ({problem}): try again in a moment")
        return StoreError(f"{where}: {type(problem).__name__}: {problem}")
    if isinstance(problem, _LOST):
        about = str(problem) or type(problem).__name__
        return StoreUnavailable(f"cannot reach {where} ({about}): is the server running, and the URL right?")
    return StoreError(f"{where}: {type(problem).__name__}: {problem}")
