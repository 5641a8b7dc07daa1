"""Putting units into a transaction: into the store itself where it is the same database, else into the outbox table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..core.errors import NoOutbox, TransactionError
from ..ports.store import DatabaseIdentity, Enlists
from ..ports.unit import Unit
from .connections.connection import POSTGRES, Line, check_begun, line_of
from .outbox import SQL, presence, row_of

# In a transaction that keeps to its first snapshot, an event could miss whoever began to wait for it meanwhile.
JOINED = "read committed"

AskHome = Callable[[bool], Awaitable[DatabaseIdentity]]  # whether to ask anew


class Enlisting:
    """Writes units by way of users' connections."""

    def __init__(self, store: object, namespace: str, ask_home: AskHome) -> None:
        self._store = store if isinstance(store, Enlists) else None
        self._namespace = namespace
        self._ask_home = ask_home

    async def write(self, connection: Any, units: Sequence[Unit]) -> None:
        """The units take effect when the connection's transaction commits."""
        line = line_of(connection)
        await check_begun(line)
        isolation = await self._shared(line)
        if self._store is not None and isolation == JOINED:
            for statement, values in self._store.enlist(units):
                await line.run(statement, *values)
            return
        await self._check_there(line, isolation)
        for row in [row_of(unit) for unit in units]:
            await line.run(SQL.put, row.id, self._namespace, row.what, row.unit)

    async def _shared(self, line: Line) -> str | None:
        """The isolation level, if the line leads to the store's own database."""
        if self._store is None or line.dialect != POSTGRES:
            return None
        [(database, since, isolation)] = await line.run(self._store.identity_query)
        known = await self._ask_home(False)
        if known.database == database and known.since != since:
            known = await self._ask_home(True)  # it was started anew, or it is another server's
        return str(isolation) if known == DatabaseIdentity(database, since) else None

    async def _check_there(self, line: Line, isolation: str | None) -> None:
        if await line.run(presence(line.dialect)):
            return
        create = "`penstock outbox create --in URL`, app.outbox.create(connection), or app.outbox.sql() in a migration"
        if isolation is not None:
            raise TransactionError(
                f"the transaction is {isolation}, and only one that is {JOINED} can carry this: begin it so, or let it "
                f"go by way of an outbox table, made by {create}"
            )
        raise NoOutbox(
            "the connection leads to another database than the store's, so this goes by way of an outbox table, and "
            f"there is none: create it with {create}"
        )
