"""Transactions and the outbox for code without an event loop. The calling thread uses the connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..commit.sink import TransactionSink
from ..core.durations import Duration
from ..core.errors import UnknownConnection
from ..ports.store import DatabaseIdentity, Enlists, Store
from ..transactions.connections.connection import run_blocking, wrap_connection
from ..transactions.enlist import TransactionWriter
from ..transactions.relay_source import Connect
from .outbox import Outbox
from .sync_parts import Call


@contextmanager
def with_sink(call: Call, store: Store, namespace: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the options with a sink in place of the connection, and write its units there when the block ends."""
    tx = options.get("tx")
    if tx is None:
        yield dict(options)
        return
    check_blocks(tx)
    sink = TransactionSink()
    yield {**options, "tx": sink}

    async def identify_database(fresh: bool) -> DatabaseIdentity:
        assert isinstance(store, Enlists)
        return call(store.database_identity(fresh=fresh))

    run_blocking(TransactionWriter(store, namespace, identify_database).write(tx, sink.units))


def check_blocks(connection: Any) -> None:
    """Raise UnknownConnection for an async connection: it belongs to an event loop, and there is none here."""
    if wrap_connection(connection).is_async:
        raise UnknownConnection(
            f"tx is an async {type(connection).__name__}, which SyncApp cannot await: use App, or a blocking connection"
        )


class SyncOutbox:
    """`app.outbox`; see Outbox."""

    def __init__(self, call: Call, outbox: Outbox) -> None:
        self._call = call
        self._outbox = outbox

    def sql(self, dialect: str = "postgresql") -> str:
        return self._outbox.sql(dialect)

    def create(self, connection: Any) -> None:
        check_blocks(connection)
        run_blocking(self._outbox.create(connection))

    def drain(self, connect: Connect) -> int:
        return self._call(self._outbox.drain(connect))

    def relay(self, connect: Connect, *, every: Duration = "200ms") -> None:
        """Deliver rows until Ctrl-C."""
        self._call(self._outbox.relay(connect, every=every))

    @contextmanager
    def background(self, connect: Connect, *, every: Duration = "200ms") -> Iterator[None]:
        background = self._outbox.background(connect, every=every)
        self._call(background.__aenter__())
        try:
            yield
        finally:
            self._call(background.__aexit__(None, None, None))
