"""`app.outbox`: the table in the caller's database, and the relay that empties it into the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ..commit.committer import Committer
from ..core.argument_checks import check_arguments
from ..core.durations import Duration, to_ms
from ..transactions.connections.connection import POSTGRES, SQLITE, wrap_connection
from ..transactions.outbox import create_statement
from ..transactions.outbox_database import Connect
from ..transactions.relay import FailedRow, Relay
from .arguments import check_choice


@check_arguments
class Outbox:
    """Creates and empties the table that `tx=` writes to when the store is in another database."""

    def __init__(self, committer: Committer, namespace: str) -> None:
        self._committer = committer
        self._namespace = namespace

    def sql(self, dialect: str = POSTGRES) -> str:
        """Return the statement that creates the table, for a migration.

        Args:
            dialect: "postgresql" or "sqlite".
        """
        return f"{create_statement(check_choice(dialect, (POSTGRES, SQLITE), 'dialect'))};"

    async def create(self, connection: Any) -> None:
        """Create the table if it does not exist. The caller commits.

        Args:
            connection: An open connection or session of your database.
        """
        wrapped = wrap_connection(connection)
        await wrapped.execute(create_statement(wrapped.dialect))

    async def drain(self, connect: Connect) -> int:
        """Deliver the rows that are in the outbox now and return how many there were, without those set aside.

        Args:
            connect: URL of the database with the outbox, or a function that returns a connection.
        """
        return await Relay(self._committer, self._namespace, connect).drain()

    async def failed(self, connect: Connect, *, after: int = 0, limit: int = 100) -> list[FailedRow]:
        """Return rows that cannot be delivered and were set aside, each with its number, summary and error.

        Args:
            connect: URL of the database with the outbox, or a function that returns a connection.
            after: Number (`seq`) of the last row of the page before.
            limit: Maximum number of rows.
        """
        return await Relay(self._committer, self._namespace, connect).failed(after, limit)

    async def retry(self, connect: Connect, seqs: Sequence[int] | None = None) -> None:
        """Let the relay deliver rows again that were set aside.

        Args:
            connect: URL of the database with the outbox, or a function that returns a connection.
            seqs: Numbers of the rows. Default: all that were set aside.
        """
        await Relay(self._committer, self._namespace, connect).retry(seqs)

    async def count_waiting(self, connect: Connect) -> int:
        """Return how many rows wait to be delivered.

        Args:
            connect: URL of the database with the outbox, or a function that returns a connection.
        """
        return await Relay(self._committer, self._namespace, connect).count_waiting()

    async def relay(self, connect: Connect, *, every: Duration = "200ms") -> None:
        """Deliver rows in order until cancelled.

        Args:
            connect: URL of the database with the outbox, or a function that returns a connection.
            every: Interval at which to look for new rows.
        """
        await Relay(self._committer, self._namespace, connect).run(to_ms(every) / 1000)

    @asynccontextmanager
    async def background(self, connect: Connect, *, every: Duration = "200ms") -> AsyncIterator[None]:
        """Run a relay in the background: `async with app.outbox.background(url):`.

        Args:
            connect: URL of the database with the outbox, or a function that returns a connection.
            every: Interval at which to look for new rows.
        """
        relay = Relay(self._committer, self._namespace, connect)
        task = asyncio.create_task(relay.run(to_ms(every) / 1000), name="penstock-relay")
        started = asyncio.create_task(relay.started.wait())
        try:
            await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
            if task.done():  # its first page failed: raise that here
                task.result()
            yield
        finally:
            task.cancel()
            started.cancel()
            await asyncio.wait((task, started))
