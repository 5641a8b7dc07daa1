"""Transactions and the outbox for code without an event loop. A connection is used by the thread it was given in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..commit.sink import TransactionSink
from ..core.durations import Duration
from ..core.errors import UnknownConnection
from ..ports.store import DatabaseIdentity, Enlists, Store
from ..transactions.connections.connection import line_of
from ..transactions.enlist import Enlisting
from ..transactions.relay_source import Connect, now
from .outbox import Outbox
from .sync_parts import Call


@contextmanager
def carried(call: Call, store: Store, namespace: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The options with a draft in place of the connection; what is in it when the block ends is written there."""
    tx = options.get("tx")
    if tx is None:
        yield dict(options)
        return
    check_blocks(tx)
    sink = TransactionSink()
    yield {**options, "tx": sink}

    async def home(fresh: bool) -> DatabaseIdentity:
        assert isinstance(store, Enlists)
        return call(store.database_identity(fresh=fresh))

    now(Enlisting(store, namespace, home).write(tx, sink.units))


def check_blocks(connection: Any) -> None:
    """An async connection belongs to a loop, and there is none here."""
    if line_of(connection).waits:
        raise UnknownConnection(
            f"tx is an async {type(connection).__name__}, which SyncApp cannot wait for: use App, or a connection that "
            "blocks"
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
        now(self._outbox.create(connection))

    def drain(self, connect: Connect) -> int:
        return self._call(self._outbox.drain(connect))

    def relay(self, connect: Connect, *, every: Duration = "200ms") -> None:
        """Hands over what comes into the outbox until Ctrl-C."""
        self._call(self._outbox.relay(connect, every=every))

    @contextmanager
    def relaying(self, connect: Connect, *, every: Duration = "200ms") -> Iterator[None]:
        background = self._outbox.relaying(connect, every=every)
        self._call(background.__aenter__())
        try:
            yield
        finally:
            self._call(background.__aexit__(None, None, None))
