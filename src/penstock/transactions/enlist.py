"""Enlist units in the caller's transaction: in the store itself if it is in the same database, else in the outbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..core.errors import NoOutbox, TransactionError
from ..ports.store import DatabaseIdentity, Enlists
from ..ports.unit import Unit
from .connections.connection import POSTGRES, UserConnection, check_in_transaction, wrap_connection
from .outbox import SQL, encode_row, exists_statement

# A transaction that keeps its first snapshot does not see a run that started to wait after it, so its event would not
# wake that run.
REQUIRED_ISOLATION = "read committed"

IdentifyDatabase = Callable[[bool], Awaitable[DatabaseIdentity]]  # True asks the server again


class TransactionWriter:
    """Writes units through the caller's connection."""

    def __init__(self, store: object, namespace: str, identify_database: IdentifyDatabase) -> None:
        self._store = store if isinstance(store, Enlists) else None
        self._namespace = namespace
        self._identify_database = identify_database

    async def write(self, connection: Any, units: Sequence[Unit]) -> None:
        """Write the units. They take effect when the connection's transaction commits."""
        wrapped = wrap_connection(connection)
        await check_in_transaction(wrapped)
        isolation = await self._isolation_if_same_database(wrapped)
        if self._store is not None and isolation == REQUIRED_ISOLATION:
            for statement, values in self._store.enlist(units):
                await wrapped.execute(statement, *values)
            return
        await self._check_outbox(wrapped, isolation)
        for row in [encode_row(unit) for unit in units]:
            await wrapped.execute(SQL.insert, row.id, self._namespace, row.summary, row.unit)

    async def _isolation_if_same_database(self, connection: UserConnection) -> str | None:
        """Return the transaction's isolation level if it is in the store's own database, else None."""
        if self._store is None or connection.dialect != POSTGRES:
            return None
        [(database, since, isolation)] = await connection.execute(self._store.identity_query)
        known = await self._identify_database(False)
        if known.database == database and known.since != since:
            known = await self._identify_database(True)  # the store's server was restarted, or this is another server
        return str(isolation) if known == DatabaseIdentity(database, since) else None

    async def _check_outbox(self, connection: UserConnection, isolation: str | None) -> None:
        if await connection.execute(exists_statement(connection.dialect)):
            return
        create = "`penstock outbox create --in URL`, app.outbox.create(connection), or app.outbox.sql() in a migration"
        if isolation is not None:
            raise TransactionError(
                f"tx= requires the isolation level {REQUIRED_ISOLATION}, but the transaction has {isolation}. "
                f"Begin the transaction with {REQUIRED_ISOLATION}, or create an outbox table: {create}"
            )
        raise NoOutbox(
            "tx= is a connection to another database than the store's, which requires an outbox table there. "
            f"Create the table: {create}"
        )
