"""Connections to the shared Postgres that stay open from test to test.

A new connection is a new process of the server, which compiles each function at its first call: this takes longer than
what most tests do. A connection belongs to an event loop. So the loop stays, too: at the end of a test it drops all that
the test has left, as a closed loop does, except these connections.
"""

from __future__ import annotations

import asyncio
import atexit
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg

import postgres_server
from penstock.stores.postgres import connection as postgres_connection
from penstock.stores.postgres.address import Address

_connect = postgres_connection.connect
_close_connection = postgres_connection.close_connection
_options: WeakKeyDictionary[asyncpg.Connection, Any] = WeakKeyDictionary()  # of each connection that may be kept
_idle: list[asyncpg.Connection] = []
MOST = 10  # idle ones


class KeptLoop(asyncio.SelectorEventLoop):
    """An event loop that a test closes, and that the next one uses again."""

    is_used = False

    def close(self) -> None:
        self.is_used = False
        self._ready.clear()
        self._scheduled.clear()
        for signal in list(self._signal_handlers):
            self.remove_signal_handler(signal)
        kept = {self._ssock, *(one._transport.get_extra_info("socket") for one in _idle)}
        kept_files = {one.fileno() for one in kept}
        for key in list(self._selector.get_map().values()):
            if key.fd not in kept_files:
                self._selector.unregister(key.fileobj)
        self.set_exception_handler(None)
        self.set_task_factory(None)
        self.set_debug(False)
        self.slow_callback_duration = 0.1
        self._default_executor = None
        self._executor_shutdown_called = self._asyncgens_shutdown_called = False


_loop: KeptLoop | None = None


def open_loop() -> asyncio.AbstractEventLoop:
    """Return the loop that stays, or another one while it is used."""
    global _loop
    if _loop is None:
        _loop = KeptLoop()
        atexit.register(_end)
        postgres_connection.connect = connect
        postgres_connection.close_connection = close_connection
    if _loop.is_used:
        return asyncio.new_event_loop()
    _loop.is_used = True
    return _loop


def _end() -> None:
    for one in _idle:
        one.terminate()
    if _loop is not None:
        asyncio.SelectorEventLoop.close(_loop)


async def connect(address: Address, statements: int = postgres_connection.STATEMENTS) -> asyncpg.Connection:
    """Return a connection with these options that an earlier test has left, or a new one."""
    if asyncio.get_running_loop() is not _loop or f":{postgres_server.shared_port}/" not in address.dsn:
        return await _connect(address, statements)
    # What a connection has prepared does not fit a schema that is created again.
    options = (address.dsn, address.pooled, statements, postgres_server.created)
    for one in [one for one in reversed(_idle) if _options[one] == options]:  # the last one is the warmest
        _idle.remove(one)
        try:
            await one.reset(timeout=10)
            return one
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            one.terminate()
        except asyncio.CancelledError:
            one.terminate()
            raise
    one = await _connect(address, statements)
    _options[one] = options
    return one


async def close_connection(one: asyncpg.Connection) -> None:
    """Keep a connection to the shared server; close another one, and those that no test can use."""
    if one not in _options or one.is_closed() or one.is_in_transaction():
        await _close_connection(one)
        return
    _idle.append(one)
    for old in [old for old in _idle if _options[old][-1] != postgres_server.created] or _idle[:-MOST]:
        _idle.remove(old)
        await _close_connection(old)
