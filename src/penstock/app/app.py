"""`App`: settings to store to engines. Everything that starts here also stops here."""

from __future__ import annotations

import itertools
import logging
import os
import random
import re
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from ..commit.committer import Committer
from ..commit.runtime import Runtime
from ..commit.sink import CommandSink
from ..core.clock import Clock, SystemClock, datetime_ms, iso
from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument, ConfigError
from ..core.event_bodies import EventBodies
from ..core.events import Event
from ..core.ids import check_name
from ..core.priority import check_priority
from ..core.redaction import Redactor
from ..core.retry import Retries
from ..durable.trigger_commands import Signature, TriggerCommands
from ..flows.delivery import Deliveries
from ..flows.engine import FlowEngine
from ..flows.reducer import FlowView
from ..flows.start_on import Starters, start_inputs
from ..handlers.decorators import FlowDefinition, definitions_in
from ..handlers.discovery import Found, Problem, bridges_of, discover, from_functions
from ..handlers.manifest import describe
from ..handlers.options import KeepOption
from ..handlers.registry import Flow, Registry, build
from ..handlers.reload import rediscover
from ..jobs.engine import JobEngine
from ..jobs.job_trees import JobTree, Node
from ..ports.bridge import Bridge
from ..ports.store import RunRow, ScheduleRow, Store
from ..ports.unit import DELIVERIES, Claim
from ..schedules.spec import CatchUp, Overlap, Target, make_spec
from ..settings import SettingOptions, Settings
from ..telemetry.logging import configure
from ..worker.outcomes import Work
from .advice import Doubts
from .arguments import count, dedupe_key, several
from .bridges import AppBridgeHost, moving
from .connect_retry import opened
from .events import once_known
from .jobs import Families
from .options import NoInput, RunSearch, StartOptions, WorkerOptions
from .outbox import Outbox
from .queues import DeadLetters, Queues
from .runs import waited
from .schedules import Scheduling
from .state import AppState
from .store_urls import mask, open_store
from .transactions import Transactions, Writers
from .waits import Waiting, WaitView
from .workers import Working

log = logging.getLogger("penstock")
I = TypeVar("I")  # noqa: E741
"""The input of a flow."""

_PARTS = {
    *("store", "events", "state", "queues", "dead_letters", "outbox"),
    *(
        "_commands",
        "_runs",
        "_committer",
        "_enqueuing",
        "_families",
        "_transactions",
        "_scheduling",
        "_working",
        "_engine",
        "_jobs",
        "_triggers",
        "_deliveries",
    ),
}


class NotOpen(ConfigError, AttributeError):
    """An App was used before it was opened."""

    code = "not_open"


class App:
    """Penstock in one object: start flows, add jobs, look at them, work on them.

        async with App(dir="workers") as app:
            run = await app.start("shop", {"order": 7})
            print(await app.result(run))

    Used with `async with`. `url` names the store (default `PENSTOCK_URL`, else a SQLite file under `.penstock/`),
    `dir` the folder of worker files (default `workers` if it exists), `handlers` gives decorated functions instead.
    `bridges` join other systems' queues, such as pg-boss'. Further keyword arguments are settings.
    """

    def __init__(
        self,
        url: str | None = None,
        dir: str | Path | None = None,
        *,
        handlers: Iterable[Callable[..., Any]] | None = None,
        clock: Clock | None = None,
        store: Store | None = None,
        bridges: Iterable[Bridge] = (),
        **settings: Unpack[SettingOptions],
    ) -> None:
        given = {**settings, "url": url, "dir": str(dir) if dir is not None else None}
        self.settings = Settings.load(given)
        redactor = Redactor(self.settings.redact)
        if settings.get("log") is not None or settings.get("log_format") is not None:
            configure(self.settings.log, self.settings.log_format, redactor=redactor)
        self.clock: Clock = clock or SystemClock()
        self.registry = self._load(handlers, dir is not None or (handlers is None and "PENSTOCK_DIR" in os.environ))
        self._bodies = EventBodies(self.settings.namespace, redactor)
        self._store = store
        self._bridges = tuple(several(bridges, "bridges"))
        self._prefix = f"{os.urandom(6).hex()}-"
        self._numbers = itertools.count(1)
        self._is_open = False

    # Life

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Most parts come with opening: what is missing may be so because nobody opened."""
            if name in _PARTS:
                raise NotOpen("this App is not open: write `async with App(…) as app:`, or await app.open() first")
            raise AttributeError(f"App has no attribute {name!r}")

    async def open(self, *, patience: Duration | None = None) -> None:
        """Opens the store; `async with` does it. A server that cannot be reached is waited for, as long as `patience`
        says."""
        if self._is_open:
            raise ConfigError("this App is open already")
        store = self._store or open_store(self.settings.url, clock=self.clock, namespace=self.settings.namespace)
        # A file that cannot be opened is not going to be there soon.
        await opened("the store is not open yet", store.open, patience if store.profile.is_remote else None)
        committer = Committer(store)
        self.store = store
        self._committer = committer
        runtime = Runtime(store, committer, self._bodies, self.clock, self._unit_id, lambda: self.registry)
        self._runtime = runtime
        self._engine = FlowEngine(runtime, self.settings.public_url)
        self._triggers = TriggerCommands(runtime)
        self._deliveries = Deliveries(runtime, self._start_on_event, self._emit_to)
        self._starters = Starters(runtime)
        self._jobs = JobEngine(runtime)
        self._doubts = Doubts(runtime)
        self._transactions = Transactions(runtime, self._make_writers)
        direct = self._transactions.direct
        self._commands, self._runs, self._enqueuing = direct.commands, direct.runs, direct.enqueuing
        self.events = direct.events
        self.outbox = Outbox(committer, self.settings.namespace)
        self.state = AppState(runtime)
        self.queues = Queues(runtime)
        self.dead_letters = DeadLetters(runtime, self._commands)
        self._families = Families(runtime, self._enqueuing)
        self._scheduling = Scheduling(runtime, self._commands, self._enqueuing)
        self._working = Working(
            runtime,
            self.open_claim,
            self._scheduling,
            self._starters,
            self.settings,
            self._bridges,
            lambda: moving(self, self._files_bridges),
        )
        self._is_open = True
        try:
            for bridge in self._bridges:
                await opened("a bridge is not open yet", partial(bridge.open, AppBridgeHost(self)), patience)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stops working, writes what is in hand, closes the store."""
        if not self._is_open:
            return
        self._is_open = False
        await self._working.close()
        for bridge in self._bridges:
            await bridge.close()
        await self.events.close()
        await self._committer.close()
        await self.store.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Runs

    @overload
    async def start(self, flow: str, input: Any = None, **options: Unpack[StartOptions]) -> str: ...

    @overload
    async def start(self, flow: NoInput, input: None = None, **options: Unpack[StartOptions]) -> str: ...

    @overload
    async def start(self, flow: Callable[[I, Any], Any], input: I, **options: Unpack[StartOptions]) -> str: ...

    @overload
    async def start(self, flow: Callable[[I], Any], input: I, **options: Unpack[StartOptions]) -> str: ...

    async def start(
        self,
        flow: str | Callable[..., Any],
        input: Any = None,
        *,
        idempotency_key: str | None = None,
        correlation_id: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        tags: Mapping[str, str] | None = None,
        tx: Any = None,
    ) -> str:
        """Starts a run of a flow and gives its id. The same `idempotency_key`, which becomes the id, starts it once.

        With `tx`, a connection or session of your own, it is started when that commits."""
        async with self._transactions.writers(tx) as writers:
            return await writers.runs.start(
                self._flow(flow),
                input,
                idempotency_key=idempotency_key,
                correlation_id=correlation_id,
                priority=priority,
                delay_ms=self._delay(delay, at),
                tags=tags,
            )

    async def run(self, id: str) -> FlowView:
        """A run's state, folded from its events."""
        return await self._runs.view(id)

    async def run_at(self, id: str, event: str) -> FlowView:
        """A run's state as it was just after an event."""
        return await self._runs.view(id, event)

    async def runs(self, **which: Unpack[RunSearch]) -> list[RunRow]:
        """Runs, newest first: of a `flow`, with a `status`, with some `tags`, begun `since` or `until` a moment (or so
        long ago), with an input that contains what `where` says. `before` is the id of the last one of the page before.
        """
        return await self._runs.list(**which)

    async def wait(self, id: str, *, timeout: Duration | None = None) -> RunRow:
        """Waits until a run has ended, however it ended."""
        return await self._runs.wait(id, timeout)

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Waits for a run and gives what it returned; raises RunFailed or RunCancelled if there is nothing to give."""
        return await self._runs.result(id, timeout)

    async def cancel(self, id: str, reason: str = "cancelled by request") -> bool:
        """Cancels a run for good: queued steps are dropped, running ones are told. False if it had ended before."""
        return await self._commands.cancel(id, reason)

    async def pause(self, id: str, reason: str = "paused by request") -> bool:
        """Halts a run: what is running may end, nothing more of it is begun until `resume`. What it waits for may come
        meanwhile. False if it was paused or had ended before."""
        return await self._commands.pause(id, reason)

    async def resume(self, id: str, reason: str = "resumed by request") -> bool:
        """Lets a paused run go on. False if it was not paused."""
        return await self._commands.resume(id, reason)

    async def fork(self, id: str, event: str, *, key: str | None = None) -> str:
        """Starts a new run that has the past of a run up to an event and goes on from there, and gives its id.

        What was open at that point is begun anew, by the present code. The same `key`, which becomes the id, forks it
        once.
        """
        return await self._runs.fork(id, event, key)

    async def waits(
        self, *, run: str | None = None, kind: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[WaitView]:
        """What runs wait for, of one run or of all, in the order of their ids; `after` is the last one seen."""
        return await Waiting(self.store).list(run=run, kind=kind, after=after, limit=count(limit))

    async def emit(
        self, kind: str, data: Any = None, *, run: str | None = None, key: str | None = None, tx: Any = None
    ) -> None:
        """Says that something happened: to a run, whose steps may be started by it, or to everyone (`nq:global`).

        The same `key` is taken once. With `tx`, a connection or session of your own, it is said when that commits.
        Nobody has to wait for it: a wait opened later looks back at it. `waits` shows what is waited for now."""
        async with self._transactions.writers(tx) as writers:
            await writers.emit(kind, data, run, key)

    async def fire(self, token: str, payload: Any = None, *, signature: Signature | None = None) -> str:
        """Fires a trigger by its token (or its URL) and gives the id of the run that goes on. A token works once."""
        return await self._triggers.fire(token, payload, signature)

    async def trigger_token(self, id: str) -> str:
        """A new token for an open trigger (`penstock waits` lists them): for a declared wait, or after a lost link."""
        return await self._triggers.token(id)

    # Jobs

    async def enqueue(
        self,
        queue: str | Callable[..., Any],
        payload: Any = None,
        *,
        name: str | None = None,
        id: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        retry: Retries | None = None,
        correlation_id: str | None = None,
        dedupe: str | None = None,
        dedupe_ttl: Duration | None = None,
        keep_completed: KeepOption | None = None,
        keep_failed: KeepOption | None = None,
        tx: Any = None,
    ) -> str:
        """Adds a job to a queue, or for a function marked with `@job`, and gives its id; an `id` that exists is not
        added again.

        With `dedupe`, a key within the queue, nothing is added while another job with that key has not ended, or for
        `dedupe_ttl` after it was added; the id is then that job's. With `tx`, a connection or session of your own, it
        is added when that commits.
        """
        if tx is not None and dedupe is not None:
            raise BadArgument("who holds a key is known only when `tx` commits: give `id` instead of `dedupe`")
        queue, name = self._families.place(queue, name)
        async with self._transactions.writers(tx) as writers:
            ids = await writers.enqueuing.add(
                queue,
                [payload],
                name=name,
                id=id,
                delay_ms=self._delay(delay, at),
                priority=priority,
                retry=retry,
                correlation_id=correlation_id,
                keep_completed=keep_completed,
                keep_failed=keep_failed,
                dedupe=dedupe_key(dedupe, dedupe_ttl),
            )
        return ids[0]

    async def enqueue_many(
        self,
        queue: str | Callable[..., Any],
        payloads: Sequence[Any],
        *,
        name: str | None = None,
        delay: Duration | None = None,
        priority: int | None = None,
        retry: Retries | None = None,
        keep_completed: KeepOption | None = None,
        keep_failed: KeepOption | None = None,
        tx: Any = None,
    ) -> list[str]:
        """Adds many jobs, a few hundred to a commit, and gives their ids in order. With `tx`, all or none of them."""
        queue, name = self._families.place(queue, name)
        async with self._transactions.writers(tx) as writers:
            return await writers.enqueuing.add(
                queue,
                payloads,
                name=name,
                delay_ms=self._delay(delay, None),
                priority=priority,
                retry=retry,
                keep_completed=keep_completed,
                keep_failed=keep_failed,
            )

    async def add_flow(self, tree: Node | Mapping[str, Any], *, correlation_id: str | None = None) -> JobTree:
        """Adds a job with its children, and theirs, in one write, and gives their ids.

        A parent is run when all its children have ended, and can ask for what they returned. `tree` is a `Node`, or the
        dict that BullMQ's FlowProducer takes. A tree whose root has an id is added once.
        """
        return await self._families.add(tree, correlation_id)

    async def job_result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Waits for a plain job and gives its result; raises RunFailed if it finally failed."""
        async with waited(f"job {id!r}", timeout, "its queue") as patience:
            return await self._enqueuing.result(id, patience=patience)

    # Schedules

    async def schedule(
        self,
        id: str,
        *,
        flow: str | Callable[..., Any] | None = None,
        queue: str | None = None,
        name: str | None = None,
        payload: Any = None,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str = "UTC",
        at: datetime | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        overlap: Overlap = "allow",
        catch_up: CatchUp = "one",
        priority: int | None = None,
    ) -> ScheduleRow:
        """Creates or changes a schedule: it starts a flow or adds a job, `every` so often, by `cron`, or once `at`.

        `start` and `end` bound its slots, `limit` how often it fires. `overlap` says what happens to a slot while what
        the last one started is still under way, `catch_up` to slots that were missed while nothing ran.
        """
        target = Target(
            self._flow(flow).name if flow is not None else None,
            check_name(queue, "queue name") if queue is not None else None,
            name,
            payload,
            check_priority(priority) if priority is not None else None,
        )
        spec = make_spec(
            every=every, cron=cron, tz=tz, at=at, start=start, end=end, limit=limit, overlap=overlap, catch_up=catch_up
        )
        return await self._scheduling.upsert(id, spec, target)

    async def unschedule(self, id: str) -> bool:
        """Removes a schedule."""
        return await self.store.remove_schedule(id)

    async def schedules(self) -> list[ScheduleRow]:
        """All schedules, by id."""
        return await self.store.schedules()

    async def pause_schedule(self, id: str) -> ScheduleRow:
        """Lets a schedule fire no more until it is resumed; what it has started goes on."""
        return await self._scheduling.pause(id)

    async def resume_schedule(self, id: str) -> ScheduleRow:
        """Lets a paused schedule go on with its next slot; those that passed meanwhile stay unfired."""
        return await self._scheduling.resume(id)

    async def run_schedule(self, id: str) -> str:
        """Starts what a schedule is for now, besides its slots and paused or not; gives the run's or the job's id."""
        return await self._scheduling.run_now(id)

    # Working

    async def run_worker(
        self, queues: Sequence[str] | None = None, *, concurrency: int | None = None, name: str | None = None
    ) -> None:
        """Works on the queues of the loaded handlers (or those given) until cancelled or `stop_worker`."""
        await self._working.run(queues, concurrency, self._worker_name(name))

    def stop_worker(self) -> None:
        """Lets `run_worker` finish or give back what is in hand, and return."""
        self._working.stop()

    def working(self, **options: Unpack[WorkerOptions]) -> AbstractAsyncContextManager[None]:
        """`async with app.working():` runs a worker in the background."""
        name = self._worker_name(options.get("name"))
        return self._working.background(name, options.get("queues"), options.get("concurrency"))

    def reload(self) -> Registry:
        """Loads the worker files anew; a file that cannot be loaded keeps the version it had.

        What is running goes on with the code it began with; a running worker takes the new queues and limits.
        """
        if self._has_dir:
            self.registry = self._built(*rediscover(self.settings.dir, self.settings.queue_names, self.registry))
        if self._is_open:
            self._working.refresh()
        return self.registry

    def describe(self) -> dict[str, Any]:
        """The frozen, JSON-safe registry: what was found, and what is wrong with it."""
        return describe(
            self.registry,
            version=1,
            compiled_at=iso(self.clock.now_ms()),
            store=self.settings.url.partition(":")[0] or "memory",
            namespace=self.settings.namespace,
        )

    def follow(self, id: str, *, after: str | None = None) -> AsyncIterator[Event]:
        """A run's events, then live."""
        return once_known(lambda: self._row(id), self.events.subscribe(self._bodies.flow(id), after=after))

    # Parts

    def open_claim(self, claim: Claim) -> Coroutine[Any, Any, Work]:
        """The engine a claim belongs to opens it; called by the worker."""
        if claim.queue == DELIVERIES:
            return self._deliveries.open(claim)
        return (self._jobs if claim.run is None else self._engine).open(claim)

    async def _start_on_event(self, flow: str, run: str, event: Event) -> None:
        known = self.registry.flow(flow)
        for input in start_inputs(known, event):
            await self._commands.start(known, run, input, correlation_id=event.correlation_id, cause=event.id)

    async def _emit_to(self, run: str, kind: str, data: Any, key: str) -> None:
        await self._commands.emit(run, kind, data, key=key)

    def _make_writers(self, sink: CommandSink) -> Writers:
        return Writers(self._engine, sink, self._doubts, mask(self.settings.url))

    def _load(self, handlers: Iterable[Callable[..., Any]] | None, dir_given: bool) -> Registry:
        self._given = from_functions(several(handlers, "handlers")) if handlers is not None else []
        self._has_dir = dir_given or (handlers is None and Path(self.settings.dir).is_dir())
        self._files_bridges: list[Bridge] = []
        if not self._has_dir:
            return self._built([], [])
        registry = self._built(*discover(self.settings.dir, self.settings.queue_names))
        self._files_bridges = bridges_of(self.settings.dir)
        return registry

    def _built(self, found: list[Found], problems: list[Problem]) -> Registry:
        registry = build([*self._given, *found], problems)
        for problem in registry.problems:
            log.warning("%s [%s]", problem, problem.code)
        return registry

    def _unit_id(self) -> str:
        return f"{self._prefix}{next(self._numbers)}"

    def _worker_name(self, given: str | None) -> str:
        if given is not None:
            return check_name(given, "worker name")
        host = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname())
        return f"{host[:50]}-{os.getpid()}-{random.randrange(16**4):04x}"

    def _flow(self, flow: str | Callable[..., Any]) -> Flow:
        if isinstance(flow, str):
            return self.registry.flow(flow)
        for definition in definitions_in(flow):
            if isinstance(definition, FlowDefinition):
                return self.registry.flow(definition.name)
        raise ConfigError(f"{getattr(flow, '__name__', flow)!r} is not marked with @flow, so it cannot be started")

    def _delay(self, delay: Duration | None, at: datetime | None) -> int:
        if at is not None and delay is not None:
            raise BadArgument(f"delay={delay!r} and at={at!r}: give one of them")
        if at is not None:
            return max(datetime_ms(at) - self.clock.now_ms(), 0)
        return to_ms(delay) if delay is not None else 0

    async def _row(self, id: str) -> RunRow:
        return await self._runs.row(id)
