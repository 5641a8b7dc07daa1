"""Wake-ups between processes: one extra connection that listens for topics and notifies others of touched ones.

A NOTIFY inside each commit would make commits wait for a lock of the whole database. So commits leave their topics
here, and one message every few milliseconds carries what has accumulated. Nothing depends on it: listeners also poll.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import asyncpg

from ...core.errors import StoreError
from ...core.ids import new_token
from ..change_signals import TopicSignals
from .address import Address
from .connection import CUT, Connection, Connections, connect
from .statements import Statements

log = logging.getLogger("penstock.store")

SEND_INTERVAL_S = 0.02  # many commits share one message
MAX_PAYLOAD_BYTES = 7900  # Postgres takes 8000
EVERYTHING = "*"
RECONNECT_MIN_S, RECONNECT_MAX_S = 0.05, 1.0
CLOSE_TIMEOUT_S = 1.0  # to send the last wake-ups


class Notifier:
    """Listens for topics that other processes touched, and notifies them of those this one touched."""

    def __init__(self, address: Address, sql: Statements, signals: TopicSignals) -> None:
        self._address = address
        self._sql = sql
        self._signals = signals
        self._channel = f"{address.schema}_wake"
        self._sender = new_token()
        self._connection: Connection | None = None
        self._unsent: set[str] = set()
        self._has_unsent = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        if not self._address.pooled:  # a pooler would take the connection away: every process polls instead
            self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._send())]

    def notify(self, topics: set[str]) -> None:
        """Send topics to the other processes, soon."""
        if self._tasks and topics:
            self._unsent |= topics
            self._has_unsent.set()

    async def close(self, connections: Connections) -> None:
        """Stop, and send what is pending. Call it after the last commit, before `connections` is closed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._unsent:
            # The listening connection may not be open yet: a command opens the store, commits and closes it.
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await connections.run(self._send_on)

    async def _listen(self) -> None:
        delay = RECONNECT_MIN_S
        while True:
            try:
                await self._listen_once()
                delay = RECONNECT_MIN_S
            except (StoreError, OSError, asyncpg.PostgresError, *CUT) as problem:
                log.debug("cannot listen for wake-ups, polling instead: %s", problem)
            except Exception as problem:
                log.warning("cannot listen for wake-ups, polling instead: %r", problem)
            await asyncio.sleep(delay)
            delay = min(delay * 2, RECONNECT_MAX_S)

    async def _listen_once(self) -> None:
        """Listen until the connection is lost."""
        connection = await connect(self._address)
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        try:
            await connection.execute(self._sql.commit_without_flush)  # a message is not worth a disk flush
            await connection.add_listener(self._channel, self._receive)
            self._connection = connection
            self._signals.notify_all()  # messages sent while nobody listened are lost: everyone looks at the store
            await lost.wait()
        finally:
            self._connection = None
            connection.terminate()

    def _receive(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        sender, *topics = str(payload).split("\n")
        if sender == self._sender:
            return
        if topics == [EVERYTHING]:
            self._signals.notify_all()
        else:
            self._signals.fire(topics)

    async def _send(self) -> None:
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            if self._connection is not None:
                try:
                    await self._send_on(self._connection)
                except Exception as problem:
                    log.debug("a wake-up was not sent: %s", problem)
            await asyncio.sleep(SEND_INTERVAL_S)
            if self._unsent:
                self._has_unsent.set()

    async def _send_on(self, connection: Connection) -> None:
        topics, self._unsent = self._unsent, set()
        try:
            await connection.execute(self._sql.notify, self._channel, self._payload(topics))
        except BaseException:  # `close` may have cancelled it: then it sends them
            self._unsent |= topics
            raise

    def _payload(self, topics: set[str]) -> str:
        text = "\n".join((self._sender, *topics))
        return text if len(text.encode()) <= MAX_PAYLOAD_BYTES else f"{self._sender}\n{EVERYTHING}"
