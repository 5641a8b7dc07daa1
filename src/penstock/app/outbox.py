"""`app.outbox`: the table in a database of the user's, and the relay that empties it into the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ..commit.committer import Committer
from ..core.durations import Duration, to_ms
from ..transactions.connections.connection import POSTGRES, SQLITE, line_of
from ..transactions.outbox import creation
from ..transactions.relay import Relay
from ..transactions.relay_source import Connect
from .arguments import one_of


class Outbox:
    """What is written with `tx=` goes here when the store is not in the database of that connection."""

    def __init__(self, committer: Committer, namespace: str) -> None:
        self._committer = committer
        self._namespace = namespace

    def sql(self, dialect: str = POSTGRES) -> str:
        """The statement that creates the table, for a migration: of `postgresql` or `sqlite`."""
        return f"{creation(one_of(dialect, (POSTGRES, SQLITE), 'dialect'))};"

    async def create(self, connection: Any) -> None:
        """Creates the table if it is not there; the connection's owner commits."""
        line = line_of(connection)
        await line.run(creation(line.dialect))

    async def drain(self, connect: Connect) -> int:
        """Hands over all that is in the outbox now and gives how many rows it was; those that nobody can read are set
        aside and not counted. `connect` is a URL, or a function that gives a connection."""
        return await Relay(self._committer, self._namespace, connect).drain()

    async def relay(self, connect: Connect, *, every: Duration = "200ms") -> None:
        """Hands over what comes into the outbox, in order, until cancelled; looks `every` so often."""
        await Relay(self._committer, self._namespace, connect).run(to_ms(every) / 1000)

    @asynccontextmanager
    async def background(self, connect: Connect, *, every: Duration = "200ms") -> AsyncIterator[None]:
        """`async with app.outbox.background(url):` runs a relay in the background."""
        relay = Relay(self._committer, self._namespace, connect)
        task = asyncio.create_task(relay.run(to_ms(every) / 1000), name="penstock-relay")
        begun = asyncio.create_task(relay.begun.wait())
        try:
            await asyncio.wait((task, begun), return_when=asyncio.FIRST_COMPLETED)
            if task.done():  # it could not begin: whoever relies on it is told why
                task.result()
            yield
        finally:
            task.cancel()
            begun.cancel()
            await asyncio.wait((task, begun))
