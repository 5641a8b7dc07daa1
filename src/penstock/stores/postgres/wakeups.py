"""Wake-ups between processes: one side connection that listens, and that tells others what was touched.

A NOTIFY inside each commit would make them queue up for a lock of the whole database. So commits leave their topics
here, and what has come together is sent at most every few milliseconds. Nothing depends on it: whoever listens looks at
the store from time to time anyway.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import asyncpg

from ...core.errors import StoreError
from ...core.ids import new_token
from ..signals import TopicSignals
from .address import Address
from .connection import Connection, connect, end
from .statements import Statements

log = logging.getLogger("penstock.store")

PAUSE = 0.02  # seconds between two messages: many commits share one
MAX_PAYLOAD = 7900  # bytes; Postgres takes 8000
EVERYTHING = "*"
LONGEST_WAIT = 1.0  # seconds until a lost connection is sought again


class Wakeups:
    """Hears what other processes committed, and says what this one did."""

    def __init__(self, address: Address, sql: Statements, signals: TopicSignals) -> None:
        self._address = address
        self._sql = sql
        self._signals = signals
        self._channel = f"{address.schema}_wake"
        self._me = new_token()
        self._connection: Connection | None = None
        self._pending: set[str] = set()
        self._some = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        if not self._address.pooled:  # a pooler would take the connection away: then everyone looks for themselves
            self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._send())]

    def tell(self, topics: set[str]) -> None:
        if self._tasks and topics:
            self._pending |= topics
            self._some.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._connection is not None:
            await end(self._connection)

    async def _listen(self) -> None:
        wait = 0.05
        while True:
            try:
                await self._listen_once()
                wait = 0.05
            except (StoreError, OSError, asyncpg.PostgresError) as problem:
                log.debug("cannot listen for wake-ups, looking from time to time instead: %s", problem)
            except Exception as problem:
                log.warning("cannot listen for wake-ups, looking from time to time instead: %r", problem)
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)

    async def _listen_once(self) -> None:
        """Listens until the connection is lost."""
        connection = await connect(self._address)
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        try:
            await connection.execute(self._sql.careless)  # a message is not worth waiting for the disk
            await connection.add_listener(self._channel, self._hear)
            self._connection = connection
            self._signals.notify_all()  # what was said while nobody listened is looked for
            await lost.wait()
        finally:
            self._connection = None
            connection.terminate()

    def _hear(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        sender, *topics = str(payload).split("\n")
        if sender == self._me:
            return
        if topics == [EVERYTHING]:
            self._signals.notify_all()
        else:
            self._signals.fire(topics)

    async def _send(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            connection = self._connection
            if connection is not None:
                topics, self._pending = self._pending, set()
                try:
                    await connection.execute(self._sql.notify, self._channel, self._payload(topics))
                except Exception as problem:
                    log.debug("a wake-up was not sent: %s", problem)
                    self._pending |= topics
            await asyncio.sleep(PAUSE)
            if self._pending:
                self._some.set()

    def _payload(self, topics: set[str]) -> str:
        text = "\n".join((self._me, *topics))
        return text if len(text.encode()) <= MAX_PAYLOAD else f"{self._me}\n{EVERYTHING}"
