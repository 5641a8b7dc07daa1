"""A small pool of connections, and the translation of Postgres' errors."""

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
from .tcp_keepalive import enable_keepalive, server_settings

log = logging.getLogger("penstock.store")

T = TypeVar("T")
Connection: TypeAlias = Any  # asyncpg.Connection, which has no types
Work = Callable[[Connection], Awaitable[T]]

MIN_SERVER_VERSION = 13
CONNECT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 60.0
TRIES = 12
STATEMENTS, SHARED_STATEMENTS = 200, 5000  # prepared statements of a connection; a shared one has those of many schemas
# Conflicts with another transaction, after which work is repeated: serialization failure, deadlock, unique violation,
# lock timeout.
_CONFLICTS = ("40001", "40P01", "23505", "55P03")
# A transaction that waited for a lock must see what the other one wrote. An older snapshot would not. The role's
# default isolation may differ.
_ISOLATION = "read_committed"
_SETTINGS = {"default_transaction_isolation": _ISOLATION.replace("_", " ")}
# The server has no such setting, or PgBouncer does not pass it on.
_UNKNOWN_SETTING = ("42704", "08P01")
# Its value is invalid, or cannot be changed in a session.
_INVALID_SETTING = ("22023", "55P02")
_DENIED = ("28000", "28P01", "42501", "3F000")
# asyncpg refuses to use a connection that was cut, before it sends anything: the same work may run on another one.
CUT = (asyncpg.InterfaceError, asyncpg.InternalClientError)
# Errors that a new connection may not have: this one was cut or interrupted, the server had no slot or memory for it,
# or it leads to a server that has become read-only.
_BROKEN = ("08", "57P", "57014", "53200", "53300", "25P03", "25006")


def _is_relevant(record: logging.LogRecord) -> bool:
    """Return False for the noise asyncpg causes when a server refuses TLS: it then connects without."""
    return "unexpected connection_lost() call" not in record.getMessage()


async def connect(address: Address, statements: int = STATEMENTS) -> Connection:
    """Open a connection that reads and writes JSON as bytes. It keeps up to `statements` prepared statements."""
    logging.getLogger("asyncio").addFilter(_is_relevant)
    try:
        connection = await asyncpg.connect(
            address.dsn,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=COMMAND_TIMEOUT_S,
            # A pooler runs each transaction on another connection, which lacks the statements the last one prepared.
            statement_cache_size=0 if address.pooled else statements,
            max_cached_statement_lifetime=0,
            # Nor does it pass on settings of a connection: each transaction sets its isolation instead.
            server_settings=None if address.pooled else _SETTINGS | server_settings(),
        )
        transport = connection._transport  # asyncpg has no public way to the socket
        if transport is not None:  # else the connection was cut at once, and the next line raises it
            enable_keepalive(transport.get_extra_info("socket"))
        async with _transaction_if_pooled(connection, address):
            await connection.set_type_codec("json", schema="pg_catalog", encoder=_same, decoder=bytes, format="binary")
    except Exception as problem:
        raise _setting_error(problem, address) or translate(problem, address) from problem
    reason = _unsupported(connection)
    if reason is not None:
        await close_connection(connection)
        raise StoreError(f"{address.shown} {reason}")
    return connection


def _setting_error(problem: Exception, address: Address) -> SettingError | None:
    """Return the error for an option of the URL, if that is why the connection failed."""
    if isinstance(problem, asyncpg.ClientConfigurationError):
        return SettingError(f"cannot connect to {address.shown} with these options: {problem}; fix the URL")
    if not isinstance(problem, asyncpg.PostgresError):
        return None
    # Search for the names of the options: the message around them is in the server's language.
    named = [name for name in address.session if name in str(problem)]
    if named and problem.sqlstate in _UNKNOWN_SETTING:
        return unknown_option(named[0])
    if named and problem.sqlstate in _INVALID_SETTING:
        return SettingError(f"{address.shown} rejected {named[0]}={address.session[named[0]]}: {problem}; fix the URL")
    return None


def _transaction_if_pooled(connection: Connection, address: Address) -> AbstractAsyncContextManager[object]:
    """Open a transaction if a pooler may switch servers between two of them. asyncpg does some things in several steps:
    a setting it changes before it reads types would change on another server."""
    return connection.transaction(isolation=_ISOLATION) if address.pooled else nullcontext()


def _unsupported(connection: Connection) -> str | None:
    if connection.get_server_version().major < MIN_SERVER_VERSION:
        return f"is older than Postgres {MIN_SERVER_VERSION}; upgrade the server"
    encoding = connection.get_settings().server_encoding
    if encoding != "UTF8":
        return f"has the encoding {encoding}, which cannot store every text; use a database with ENCODING 'UTF8'"
    return None


def _same(value: bytes) -> bytes:
    return value


def is_out_of_connections(problem: StoreUnavailable) -> bool:
    """Return whether the server had no slot for another connection."""
    return isinstance(problem.__cause__, asyncpg.TooManyConnectionsError)


class Pool:
    """The open connections to a database. Stores with other schemas of it may share them: every statement names its
    schema, and a session keeps no setting that depends on it. The last store that releases the pool closes it."""

    def __init__(self, size: int, *, is_shared: bool = False) -> None:
        self.slots = asyncio.Semaphore(size)
        self.idle: list[Connection] = []
        self.in_use = 0
        self.drop_next = False  # close the next connection that is released
        self.is_shared = is_shared
        self.users = 0
        self.is_closed = False


class Connections:
    """A store's use of a pool: each connection is used by one piece of work at a time, and a broken one is replaced."""

    def __init__(self, address: Address, pool: Pool | None = None) -> None:
        self.address = address
        self._pool = pool or Pool(address.pool)
        self._is_counted = pool is None  # one that was never opened releases nothing that others use
        self._is_closed = False

    def acquire(self) -> None:
        """Count one more store that uses the pool."""
        self._is_counted = True
        self._pool.users += 1

    async def run(self, work: Work[T]) -> T:
        """Run work on a connection. It must be repeatable: it runs again after a conflict with another transaction, and
        on another connection if this one was cut before it was used."""
        for attempt in range(1, TRIES + 1):
            try:
                return await self._run_once(work)
            except asyncpg.PostgresError as problem:
                if problem.sqlstate not in _CONFLICTS or attempt == TRIES:
                    raise translate(problem, self.address) from problem
            except CUT as problem:
                if attempt == TRIES:
                    raise translate(problem, self.address) from problem
            except OSError as problem:
                raise translate(problem, self.address) from problem
            except StoreUnavailable as problem:
                if attempt == TRIES or not self._may_get_one_soon(problem):
                    raise
            await asyncio.sleep(random.uniform(0, 0.002 * 2 ** min(attempt, 7)))
        raise AssertionError("unreachable")

    async def _run_once(self, work: Work[T]) -> T:
        async with self._pool.slots:
            if self._is_closed:
                raise StoreClosed.of(self.address.shown)
            connection = await self._acquire()
            self._pool.in_use += 1
            try:
                async with _transaction_if_pooled(connection, self.address):
                    result = await work(connection)
            except asyncpg.PostgresError as problem:
                if (problem.sqlstate or "08").startswith(_BROKEN):
                    connection.terminate()  # the server is about to do the same
                self._release(connection)
                raise
            except BaseException:
                connection.terminate()  # its state is unknown
                raise
            finally:
                self._pool.in_use -= 1
            self._release(connection)
            return result

    def _may_get_one_soon(self, problem: StoreUnavailable) -> bool:
        return is_out_of_connections(problem) and bool(self._pool.in_use or self._pool.idle)

    def give_up_one(self) -> None:
        """Use one connection less from now on: another part of this process needs it more."""
        most = self._pool.in_use + len(self._pool.idle) - 1
        if most < 1 or self._pool.drop_next:
            return
        log.warning(
            "%s has too few connections for pool=%d; using %d from now on", self.address.shown, self.address.pool, most
        )
        self._pool.slots = asyncio.Semaphore(most)
        self._pool.drop_next = not self._pool.idle
        if self._pool.idle:
            self._pool.idle.pop(0).terminate()

    async def _acquire(self) -> Connection:
        while self._pool.idle:
            connection = self._pool.idle.pop()
            if not connection.is_closed():
                return connection
        return await connect(self.address, SHARED_STATEMENTS if self._pool.is_shared else STATEMENTS)

    @property
    def idle(self) -> int:
        """How many connections are open and not in use."""
        return len(self._pool.idle)

    def _release(self, connection: Connection) -> None:
        if connection.is_closed():
            return
        if self._pool.is_closed or self._pool.drop_next or connection.is_in_transaction():
            self._pool.drop_next = False
            connection.terminate()
        else:
            self._pool.idle.append(connection)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if not self._is_counted:
            return
        self._pool.users = max(self._pool.users - 1, 0)
        if not self._pool.users:
            self._pool.is_closed = True
            await self.close_idle()

    async def close_idle(self) -> None:
        """Close the connections that are not in use. The next work opens new ones."""
        while self._pool.idle:
            await close_connection(self._pool.idle.pop())


async def close_connection(connection: Connection) -> None:
    """Close a connection, gracefully if the server answers."""
    try:
        await connection.close(timeout=2)
    except Exception:
        connection.terminate()


def translate(problem: BaseException, address: Address) -> StoreError:
    """Return our error for one of Postgres or asyncpg."""
    if isinstance(problem, StoreError):
        return problem
    where = address.shown
    if isinstance(problem, asyncpg.PostgresError):
        state = problem.sqlstate or ""
        if state.startswith("53100"):
            return StoreFull(f"no disk space left on {where}; free some space. Work then continues automatically")
        if state.startswith("53300"):
            return StoreUnavailable(
                f"{where} has no free connections ({problem}). Each process with this URL uses up to "
                f"{address.max_connections}. Raise max_connections or the CONNECTION LIMIT of the role or "
                "database, set a smaller pool= in the URL, or add a pooler (pooling=transaction). Running work "
                "continues as soon as a connection is free"
            )
        if state == "3D000":
            return StoreError(
                f"{where} rejected the connection: {problem}. Create the database (`createdb NAME`), or use another "
                "one in the URL"
            )
        if state in _DENIED:
            return StoreError(
                f"{where} denied access: {problem}. Check the user and password; the role needs CONNECT on the "
                f"database, USAGE on the schema {address.schema} and SELECT, INSERT, UPDATE, DELETE on its tables and "
                "sequences. To create them it needs CREATE on the database, or another role runs `penstock migrate`"
            )
        if state.startswith(_BROKEN) or state in _CONFLICTS:
            return StoreUnavailable(f"{where} is currently unavailable ({problem}); try again in a moment")
        return StoreError(f"{where}: {type(problem).__name__}: {problem}")
    if isinstance(problem, CUT):  # its text is about the driver's inner state
        return StoreUnavailable(f"the connection to {where} was cut: try again in a moment")
    if isinstance(problem, OSError):  # also a TimeoutError
        about = str(problem) or type(problem).__name__
        return StoreUnavailable(
            f"cannot reach {where} ({about}); check that the server is running and that the URL is right"
        )
    return StoreError(f"{where}: {type(problem).__name__}: {problem}")
