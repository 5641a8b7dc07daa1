"""What writes to the store from outside of runs: at once, or as part of a transaction of the user's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ..commit.committer import Intent, Submits
from ..commit.runtime import Runtime
from ..core.errors import ConfigError, StoreError
from ..core.events import check_kind
from ..core.ids import check_id
from ..core.payload import pack, unpack
from ..flows.commands import Commands, check_open
from ..flows.engine import FlowEngine
from ..flows.fork import Forks
from ..flows.run_record import decode
from ..ports.store import DatabaseIdentity, Enlists, RunRow
from ..ports.unit import DELIVERIES, EMIT, NewJob, Unit
from ..transactions.draft_committer import Draft
from ..transactions.enlist import Enlisting
from ..worker.outcomes import packed
from .advice import Doubts
from .arguments import text
from .events import Events
from .jobs import Enqueuing
from .runs import Runs


class Writers:
    """Makes runs, jobs and events, and hands them to whoever commits them."""

    def __init__(self, engine: FlowEngine, committer: Submits, doubts: Doubts, where: str) -> None:
        runtime = engine.runtime
        self.commands = Commands(engine, committer)
        self.events = Events(runtime, committer)
        self.runs = Runs(runtime, self.commands, Forks(engine), self.events, doubts, where)
        self.enqueuing = Enqueuing(runtime, committer, doubts)
        self._store = runtime.store
        self._committer = committer
        self._engine = engine

    async def emit(self, kind: str, data: Any, run: str | None, key: str | None) -> None:
        """An event to a run, or to everyone."""
        if run is not None:
            await self.commands.emit(run, check_kind(kind), data, key=key)
        else:
            await self.events.append(self._engine.bodies.global_stream, kind, data, key=key)


class DraftWriters(Writers):
    """The same for a transaction that is still open."""

    async def emit(self, kind: str, data: Any, run: str | None, key: str | None) -> None:
        if run is None:
            await super().emit(kind, data, run, key)
            return
        body = pack(data, f"the data of {check_kind(kind)}")
        await self._check_run(check_id(run, "run id"), kind, body)
        # Deciding now what the event starts would mean to lock the run until someone commits. So the event goes as a
        # job, and is decided on the run as it is then.
        unit_id = self._engine.new_unit_id()
        told = {"run": run, "kind": kind, "data": unpack(body), "key": text(key, "the key") or f"tx-{unit_id}"}
        unit = Unit(unit_id, jobs=[NewJob(f"emit.{unit_id}", DELIVERIES, EMIT, packed(told))])
        await self._committer.submit(Intent(lambda _v, _r: unit))

    async def _check_run(self, run: str, kind: str, body: bytes) -> None:
        """What is wrong with it now is said now. A run that is not there may be begun by the same transaction."""
        row = await self._found(run)
        if row is not None:
            check_open(run, row.record, f"receive {kind!r}")
            self._engine.check_event(decode(row.record).flow, kind, body)

    async def _found(self, run: str) -> RunRow | None:
        try:
            return await self._store.run(run)
        except StoreError:  # an outbox takes it all the same
            return None


class Transactions:
    """Writers for each call: the usual ones, or those whose units a transaction carries."""

    def __init__(self, runtime: Runtime, make: Callable[[type[Writers], Submits], Writers]) -> None:
        self._make = make
        self._store = runtime.store
        self.usual = make(Writers, runtime.committer)
        self.enlisting = Enlisting(runtime.store, runtime.bodies.namespace, self.home)

    @asynccontextmanager
    async def writers(self, tx: Any) -> AsyncIterator[Writers]:
        """For `tx=None` the usual ones; else what they have made is in the transaction when the block ends."""
        if tx is None:
            yield self.usual
            return
        draft = tx if isinstance(tx, Draft) else Draft()
        yield self._make(DraftWriters, draft)
        if draft is not tx:
            await self.enlisting.write(tx, draft.units)

    async def home(self, fresh: bool) -> DatabaseIdentity:
        if not isinstance(self._store, Enlists):
            raise ConfigError("this store is in no database that others connect to")
        return await self._store.database_identity(fresh=fresh)
