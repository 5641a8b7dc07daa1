"""Write commands from outside of runs: to the store at once, or as part of the caller's own transaction."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from ..commit.command_sink import CommandSink, DirectSink, TransactionSink
from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.argument_checks import check_event_key
from ..core.errors import ConfigError, StoreError, UnknownRun
from ..core.event_tags import check_event_tags
from ..core.events import check_kind
from ..core.ids import check_id
from ..core.payload import pack, unpack
from ..flows.run_commands import FlowCommands, OtherKind, RunClosed
from ..ports.store import DatabaseIdentity, Enlists, RunRow
from ..ports.unit import DELIVERIES, EMIT, FLOW, NewJob, Unit
from ..worker.outcomes import pack_record
from ..worker.routes import find_own_id
from .enqueuer import JobEnqueuer
from .events import EventAppender
from .run_starter import RunStarter

if TYPE_CHECKING:
    from ..entities.commands import EntityCommands
    from ..transactions.enlist import TransactionWriter
    from .app import App

T = TypeVar("T")


class Writers:
    """Starts runs, enqueues jobs and emits events, all into one sink."""

    def __init__(self, app: App, sink: CommandSink) -> None:
        runtime, advice = app._runtime, app._advice
        self.commands = FlowCommands(app._engine, sink)
        self.events = EventAppender(runtime, sink)
        self.runs = RunStarter(runtime, self.commands, app._engines, sink, advice)
        self.jobs = JobEnqueuer(runtime, sink, advice)
        self._app = app
        self._store = runtime.store
        self._sink = sink
        self._engine = app._engine
        self._engines = app._engines

    @cached_property
    def entities(self) -> EntityCommands:
        from ..entities.commands import EntityCommands  # most programs have no entities

        return EntityCommands(self._app._entity_engine, self._sink)

    async def emit(self, kind: str, data: Any, run: str | None, key: str | None, tags: Any = None) -> bool:
        """Emit an event to one run, or globally. Return False if its key was used before, as far as is known now."""
        words = check_event_tags(tags)
        with self._engine.runtime.produce("emit", str(kind)):
            return await self._emit(kind, data, run, key, words)

    async def _emit(self, kind: str, data: Any, run: str | None, key: str | None, words: list[str]) -> bool:
        if run is None:
            is_new, _ = await self.events.append(self._engine.bodies.global_stream, kind, data, key=key, tags=words)
            return is_new
        if self._sink.is_deferred:
            await self._emit_by_job(run, kind, data, key, words)
            return True
        return await self.emit_to_run(check_id(run, "run id"), check_kind(kind), data, check_event_key(key), words)

    async def emit_to_run(self, run: str, kind: str, data: Any, key: str | None, tags: Sequence[str] = ()) -> bool:
        """Emit an event to one run now, by the commands of its engine. Return False if its key was used before."""
        try:
            return await self.commands.emit(run, kind, data, key=key, tags=tags)
        except UnknownRun:
            own = await find_own_id(self._store, run)
            if own is None or own == run:
                raise
            return await self.commands.emit(own, kind, data, key=key, tags=tags)
        except OtherKind as problem:  # most runs are of flows: they are not read twice
            return await self._engines.of_run_kind(problem.kind).commands.emit(run, kind, data, key=key, tags=tags)

    async def _emit_by_job(self, run: str, kind: str, data: Any, key: str | None, tags: list[str]) -> None:
        """Enqueue a job that emits the event after the transaction has committed.

        Deciding now what the event starts would lock the run until the caller commits. The job decides on the run's
        record as it is then.
        """
        body = pack(data, f"the data of {check_kind(kind)}")
        await self._check_run(check_id(run, "run id"), kind, body)
        unit_id = self._engine.new_unit_id()
        emission = {
            "run": run,
            "kind": kind,
            "data": unpack(body),
            "key": check_event_key(key) or f"tx-{unit_id}",
            **({"tags": tags} if tags else {}),
        }
        unit = Unit(unit_id, jobs=[NewJob(f"emit.{unit_id}", DELIVERIES, EMIT, pack_record(emission))])
        await self._sink.submit(CommitRequest(lambda _v, _r: unit))

    async def _check_run(self, run: str, kind: str, body: bytes) -> None:
        """Raise what is already wrong with the event. A missing run is fine: the same transaction may start it."""
        row = await self._find_run(run)
        if row is not None and row.closed:
            raise RunClosed(f"run {run!r} is {row.status} and cannot receive {kind!r}")
        if row is not None and row.kind == FLOW:
            self._engine.check_event(row.flow, kind, body)

    async def _find_run(self, run: str) -> RunRow | None:
        try:
            return await self._store.run(run)
        except StoreError:  # the outbox accepts the event while the store is down
            return None


class Transactions:
    """Picks the writers for each call: straight to the store, or into the transaction passed as `tx=`."""

    def __init__(self, runtime: Runtime, make: Callable[[CommandSink], Writers]) -> None:
        self._store = runtime.store
        self.writers_to = make
        self.direct = make(DirectSink(runtime.committer))
        self._namespace = runtime.bodies.namespace

    @cached_property
    def _transaction(self) -> TransactionWriter:
        from ..transactions.enlist import TransactionWriter

        return TransactionWriter(self._store, self._namespace, self._identify_database)

    def write(self, tx: Any, command: Callable[[Writers], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T]:
        """Call a command with the writers of one call. With a `tx`, its units are in that transaction afterwards."""
        return command(self.direct) if tx is None else self._write_in(tx, command)

    async def _write_in(self, tx: Any, command: Callable[[Writers], Coroutine[Any, Any, T]]) -> T:
        sink = tx if isinstance(tx, TransactionSink) else TransactionSink()
        result = await command(self.writers_to(sink))
        if sink is not tx:
            await self._transaction.write(tx, sink.units)
        return result

    async def _identify_database(self, fresh: bool) -> DatabaseIdentity:
        if not isinstance(self._store, Enlists):
            raise ConfigError(
                "tx= requires a store that is a SQLite file or a Postgres database; this store is neither"
            )
        return await self._store.database_identity(fresh=fresh)
