"""The Redis store: one script call commits a batch of units, and the queues are BullMQ's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import hiredis
import msgspec

from ...core.clock import Clock, SystemClock
from ...core.errors import StoreClosed, StoreError, StoreUnavailable
from ...core.events import Event
from ...core.ids import event_seq, new_token, parse_feed_cursor
from ...ports.monitoring import ErrorGroupRow, KeyRow, MinuteCounts, WorkerRow
from ...ports.store import (
    ChildRow,
    DueSchedules,
    FeedItem,
    ForeignSchedule,
    JobRow,
    PublishedSchedule,
    QueueRow,
    Retention,
    RunRow,
    ScheduleRow,
    StateRow,
    StoreProfile,
    StreamRow,
    WaitRow,
)
from ...ports.unit import Claim, ClaimBatch, ClaimRequest, CommitReply, Committed, JobState, Unit
from ..batches import BATCH_SIZE, SweepBatch, in_batches
from ..change_signals import TopicSignals
from ..run_search import RunStart, search
from ..server_clock import ServerClock, elapsed_ms
from ..stream_retention import StreamSweeper
from ..tail import SharedReads, follow
from . import claim as claiming
from . import commit as committing
from . import decode_rows, server_checks
from .address import parse
from .bullmq_schedulers import ScheduledJob, next_job
from .connection import Client
from .connections import Connections
from .housekeeping import sweep_arguments
from .job_options import escape_id, unescape_id
from .other_workers import queues_of_clients
from .pubsub import ChannelListener
from .queue_events import follow_queue_events
from .queue_problems import QueueProblems
from .resp import Part, pack, translate
from .scripts import scripts

log = logging.getLogger("penstock.redis")
METRICS_MINUTES = 10_080  # BullMQ's metrics cover a week
# Options of BullMQ's moveToFinished: we release the lock ourselves and remove nothing.
FINISH_OPTIONS = msgspec.msgpack.encode(
    {"token": "0", "keepJobs": {"count": -1}, "attempts": 0, "maxMetricsSize": METRICS_MINUTES, "lockDuration": 30_000}
)


class RedisStore:
    """Keeps runs, jobs, events and state in one Redis; BullMQ workers in other languages share its queues."""

    # Two commits in flight: while a script runs on the server, handlers run here. A worker with more than 42 slots
    # needs no prefetch, because its commits overlap anyway.
    profile = StoreProfile(
        shows_status=True,
        is_remote=True,
        max_commits_in_flight=2,
        max_unordered_finishes=2,
        prefetch=42,
        may_rewind=True,
    )

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        namespace: str = "nq",
        queue_prefix: str | None = None,
        connections: Connections | None = None,
    ) -> None:
        self.address = parse(url)
        self.url = url
        self.signals = TopicSignals()
        self._shared_reads = SharedReads(self.read)
        # All processes use the server's clock; only a test has its own.
        self._test_clock = None if clock is None or isinstance(clock, SystemClock) else clock
        self._server_clock = ServerClock(self._read_time)
        self._namespace = namespace
        self._prefix = queue_prefix or self.address.queue_prefix or server_checks.default_queue_prefix(namespace)
        self._owns_prefix = False  # set by the first commit: opening a store writes nothing
        self._queue_problems = QueueProblems(str(self.address))
        self._unscheduled: list[ScheduledJob] = []  # claimed jobs of job schedulers without a next job
        self._stream_sweeper = StreamSweeper(namespace, self.streams, self._trim_batch)
        self._origin = new_token()
        self._channel = f"{namespace}:live:{self.address.db}"
        self._connections = connections or Connections(self.address)
        self._is_counted = connections is None  # one that was never opened releases nothing that others use
        self._is_closed = False
        self._topology = self._connections.topology
        self._client = self._connections.client
        self._lease_client = self._connections.lease_client
        self._subscription = self._connections.subscription
        self._listener = ChannelListener(self._channel, self._origin, self.signals.fire, self.signals.notify_all)

    async def open(self) -> None:
        try:
            await server_checks.check_server(self._client, self._namespace, self._prefix)
            await server_checks.check_prefix(self._client, self._namespace, self._prefix, claims_it=False)
            if self._test_clock is None:
                await self._server_clock.start()
            await self._subscription.add(self._listener)
            self._connections.acquire()
            self._is_counted = True
        except BaseException as problem:
            await self._server_clock.stop()
            self._connections.drop_unused()
            if isinstance(problem, ValueError | TypeError | LookupError | AttributeError):
                raise StoreError(
                    f"{self.address} does not answer as Redis does ({problem}); check that the address is right"
                ) from problem
            raise

    async def close(self) -> None:
        await self._server_clock.stop()
        if self._is_closed:
            return
        self._is_closed = True
        await self._subscription.remove(self._listener)
        if self._is_counted:
            await self._connections.release()
        await asyncio.sleep(0)  # lets the event loop close the sockets, in case it ends right after

    @property
    def clock(self) -> Clock:
        return self._test_clock or self._server_clock

    @property
    def queue_prefix(self) -> str:
        """Return the prefix of BullMQ's keys."""
        return self._prefix

    @property
    def client(self) -> Client:
        """Return the connection for calls, for what the scripts do not read."""
        return self._client

    async def _read_time(self) -> int:
        reply = await self._client.call("TIME")
        try:
            seconds, microseconds = reply
            return int(seconds) * 1000 + int(microseconds) // 1000
        except (ValueError, TypeError):
            raise StoreError(f"{self.address} answered TIME with {repr(reply)[:80]}; check the address") from None

    @property
    def rewind_epoch(self) -> int:
        return self._client.rewind_epoch

    def _call(self, script: str, parts: Sequence[Part]) -> list[Part]:
        """Return a script call: the arguments that all scripts share, then its own."""
        now = "" if self._test_clock is None else self._test_clock.now_ms()
        shared: list[Part] = [scripts()[script].sha, 1, self._channel, self._namespace, self._prefix, now, self._origin]
        return [*shared, FINISH_OPTIONS, *parts]

    async def _send(self, calls: list[tuple[str, Sequence[Part]]]) -> list[Any]:
        if self._is_closed:
            raise StoreClosed.of(self._topology)
        commands = [pack(["EVALSHA", *self._call(script, parts)]) for script, parts in calls]
        replies = await self._client.send(commands)
        for reply in replies:
            if isinstance(reply, hiredis.HiredisError):
                raise translate(reply, str(self.address))
        return replies

    async def _read(self, *parts: Part | None) -> Any:
        (reply,) = await self._send([("read", ["" if part is None else part for part in parts])])
        return reply

    async def _admin(self, *parts: Part | None) -> Any:
        ((reply, topics),) = await self._send([("admin", ["" if part is None else part for part in parts])])
        if topics:
            self.signals.fire(topics.decode(errors="replace").split("\n"))
        return reply

    # Commits

    async def commit(self, units: Sequence[Unit], request: ClaimRequest | None = None) -> CommitReply:
        if not units and request is None:
            return CommitReply([])
        if not self._owns_prefix:
            await server_checks.check_prefix(self._client, self._namespace, self._prefix, claims_it=True)
            self._owns_prefix = True
        *others, last = committing.batches(units) or [[]]
        calls: list[tuple[str, Sequence[Part]]] = [("commit", [0, *batch]) for batch in others]
        calls.append(("commit", [*claiming.encode(request), *last]))
        sent_ms = elapsed_ms()
        replies = await self._send(calls)
        now: int = replies[-1][2]
        if self._test_clock is None:
            self._server_clock.note(now, sent_ms)
        work = ClaimBatch()
        changed = committing.topics(replies)
        problems = [problem for reply in replies if reply[6] for problem in claiming.problems(reply)]
        self._queue_problems.report(request, problems)
        if request is not None:
            reply = replies[-1]
            work = claiming.claims(reply)
            # The caller has just claimed every due job of the drained queues: do not wake it for them.
            changed = (changed - claiming.drained(reply)) | claiming.topics(reply)
            if not units and (problem := self._queue_problems.find_error(request, problems, work)) is not None:
                raise problem
            self._unscheduled += claiming.scheduled_jobs(reply)
            if self._unscheduled:
                await self._schedule_next(now)
        self.signals.fire(changed)
        return CommitReply([receipt for reply in replies for receipt in committing.receipts(reply)], work, now)

    async def _schedule_next(self, now_ms: int) -> None:
        """Create the next jobs of job schedulers. Raises nothing: the commit before it is applied."""
        waiting, self._unscheduled = self._unscheduled, []
        for job in waiting:
            following = next_job(job, now_ms)
            try:
                if following is not None:
                    await self._admin("advance", job.queue, job.job, job.scheduler, *following)
            except StoreUnavailable:
                self._unscheduled.append(job)  # for the next claim
            except StoreError as problem:
                log.warning("stopping job scheduler %r of queue %r: %s", job.scheduler[:100], job.queue, problem)

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        return (await self.commit((), request)).claimed

    def renew(self, claims: Sequence[Claim], lease_ms: int) -> list[Claim]:
        if not claims:
            return []
        parts: list[Part] = [lease_ms]
        for claim in claims:
            parts += (claim.queue, escape_id(claim.job), claim.attempt, claim.token, claim.run or "")
        script = scripts()["renew"]
        return [claims[n] for n in self._lease_client.evaluate(script, self._call("renew", parts)[1:])]

    # Events

    async def read(
        self,
        stream: str,
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int = 100,
        backward: bool = False,
    ) -> list[Event]:
        for cursor in (after, before):
            if cursor:
                event_seq(cursor)
        found = await self._read("read", stream, after, before, limit, int(backward))
        return [decode_rows.event(stream, *entry) for entry in found]

    def tail(self, stream: str, *, after: str | None = None) -> AsyncIterator[Event]:
        return follow(self._shared_reads, self.signals, stream, after)

    def job_events(self, queue: str, *, after: str | None = None) -> AsyncIterator[Event]:
        if after:
            event_seq(after)
        return follow_queue_events(self._client, f"{self._prefix}:{queue}:events", after)

    async def other_workers(self) -> set[str]:
        try:
            clients = await self._client.call("CLIENT", "LIST")
        except StoreError:  # some providers refuse it
            return set()
        return queues_of_clients(clients.decode(errors="replace"), self._prefix)

    async def feed(self, after: str | None, limit: int = 500) -> list[FeedItem]:
        if after:
            parse_feed_cursor(after)
        found = await (self._read("newest_event") if after is None else self._read("feed", after, limit))
        return [decode_rows.feed_item(item) for item in found]

    async def streams(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> list[str]:
        return [name.decode(errors="replace") for name in await self._read("streams", prefix, after, limit)]

    async def newest_streams(self, prefix: str, *, before: str | None = None, limit: int = 100) -> list[StreamRow]:
        found = await self._read("newest_streams", prefix, before, limit)
        return [StreamRow(name.decode(errors="replace"), seq, ms) for name, seq, ms in found]

    async def trim(self, stream: str, *, keep: int | None = None, before_ms: int | None = None) -> int:
        return await in_batches(lambda limit: self._trim_batch(stream, keep, before_ms, limit))

    async def _trim_batch(self, stream: str, keep: int | None, before_ms: int | None, limit: int) -> int:
        return int(await self._admin("trim", stream, keep, before_ms, limit))

    # Runs

    async def run(self, id: str) -> RunRow | None:
        found = await self._read("run", id)
        return decode_rows.run(found) if found is not None else None

    async def runs(
        self,
        *,
        flow: str | None = None,
        statuses: Sequence[str] = (),
        since: int | None = None,
        until: int | None = None,
        first_event: Any = None,
        keys: Sequence[str] = (),
        before: str | None = None,
        limit: int = 50,
    ) -> list[RunRow]:
        which = (flow, "\n".join(statuses), since, until)
        if first_event is None:
            return [decode_rows.run(row) for row in await self._read("runs", *which, before, limit, " ".join(keys))]

        async def page(before: str | None, limit: int) -> list[RunStart]:
            return [
                decode_rows.run_with_first_event(row)
                for row in await self._read("runs_with_first_event", *which, before, limit, " ".join(keys))
            ]

        return await search(page, first_event, before, limit)

    async def has_open_children(self, call: str) -> bool:
        return bool(await self._read("has_open_children", call))

    async def stuck_runs(self, limit: int = 100) -> list[str]:
        return [id.decode() for id in await self._read("stuck_runs", limit)]

    # Queues

    async def queues(self) -> list[QueueRow]:
        return sorted((decode_rows.queue(row) for row in await self._read("queues")), key=lambda row: row.name)

    async def jobs(self, queue: str, state: JobState, *, after: str | None = None, limit: int = 50) -> list[JobRow]:
        return [
            decode_rows.job(row)
            for row in await self._read("jobs", queue, state.value, after and escape_id(after), limit)
        ]

    async def job(self, id: str) -> JobRow | None:
        found = await self._read("job", escape_id(id))
        return decode_rows.job(found) if found is not None else None

    async def pause(self, queue: str) -> None:
        await self._admin("pause", queue)

    async def resume(self, queue: str) -> None:
        await self._admin("resume", queue)

    async def reset_rates(self, queue: str) -> None:
        await self._admin("reset_rates", queue)

    async def promote(self, id: str) -> bool:
        return await self._change("promote", id)

    async def retry(self, id: str) -> bool:
        return await self._change("retry", id)

    async def remove(self, id: str) -> bool:
        return await self._change("remove", id)

    async def drain(self, queue: str, *, delayed: bool = False) -> int:
        return int(await self._admin("drain", queue, int(delayed)))

    async def children(self, id: str) -> list[ChildRow]:
        return sorted(
            (decode_rows.child(row) for row in await self._read("children", escape_id(id))), key=lambda row: row.key
        )

    async def _change(self, verb: str, id: str) -> bool:
        return await self._admin(verb, escape_id(id)) is not None

    async def memos(self, scope: str) -> dict[str, bytes]:
        try:
            flat = await self._client.call("HGETALL", f"{self._namespace}:memos:{scope}")
        except StoreError as problem:
            if "WRONGTYPE" not in str(problem):
                raise
            return {"memos#0": str(problem).encode()}  # unreadable, as in a claim of the step
        return {name.decode(errors="replace"): value for name, value in zip(flat[::2], flat[1::2], strict=True)}

    # Schedules

    async def put_schedule(
        self,
        row: ScheduleRow,
        was: ScheduleRow | None,
        unit: Unit | None = None,
        published: PublishedSchedule | None = None,
    ) -> bool:
        parts = committing.encode(unit if unit is not None else Unit(id=f"put-{new_token()}"))
        replies = await self._send([("commit", [0, *parts, *committing.encode_put(row, was, published)])])
        self.signals.fire(committing.topics(replies))
        return isinstance(committing.receipts(replies[0])[0], Committed)

    async def remove_schedule(self, id: str, was: ScheduleRow | None = None) -> bool:
        same = (0, "", "") if was is None else (1, was.spec, was.target)
        return bool(await self._admin("remove_schedule", id, *same))

    async def schedule(self, id: str) -> ScheduleRow | None:
        found = await self._read("schedule", id)
        return decode_rows.schedule(found) if found is not None else None

    async def schedules(self) -> list[ScheduleRow]:
        return [decode_rows.schedule(row) for row in await self._read("schedules")]

    async def due_schedules(self, after: ScheduleRow | None = None, limit: int = 100) -> DueSchedules:
        cursor = (after.next, after.id) if after is not None else (None, None)
        now, found = await self._read("due_schedules", *cursor, limit)
        return DueSchedules(now, [decode_rows.schedule(row) for row in found])

    async def next_schedule(self, after_ms: int = 0) -> int | None:
        found: int | None = await self._read("next_schedule", after_ms)
        return found

    async def foreign_schedules(self, queues: Sequence[str] = ()) -> list[ForeignSchedule]:
        return [
            decode_rows.foreign_schedule(row) for row in await self._read("foreign_schedules", len(queues), *queues)
        ]

    async def remove_foreign_schedule(self, queue: str, id: str) -> bool:
        return bool(await self._admin("remove_foreign_schedule", queue, id))

    # Waits

    async def wait_row(self, id: str) -> WaitRow | None:
        found = await self._read("wait", id)
        return decode_rows.wait(found) if found is not None else None

    async def waits(
        self, run: str, *, kind: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[WaitRow]:
        return [decode_rows.wait(row) for row in await self._read("waits", run, kind, after, limit)]

    async def waits_by_time(
        self,
        *,
        run: str | None = None,
        kind: str | None = None,
        state: str = "pending",
        since: int | None = None,
        until: int | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[WaitRow]:
        found = await self._read("waits_by_time", run, int(run is not None), kind, state, since, until, before, limit)
        return [decode_rows.wait(row) for row in found]

    async def waits_for_topic(
        self,
        topic: str,
        keys: Sequence[str] | None,
        *,
        before: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[WaitRow]:
        found = await self._read("waits_for_topic", topic, before, after, limit, int(keys is not None), *(keys or ()))
        return [decode_rows.wait(row) for row in found]

    async def events_by_kind(
        self, kind: str, *, since: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[FeedItem]:
        return [decode_rows.feed_item(item) for item in await self._read("events_by_kind", kind, since, after, limit)]

    # State

    async def state(self, key: str) -> StateRow | None:
        found = await self._read("state", key)
        return decode_rows.state(found) if found is not None else None

    async def states(self, prefix: str, *, after: str | None = None, limit: int = 100) -> list[StateRow]:
        return [decode_rows.state(row) for row in await self._read("states", prefix, after, limit)]

    # Monitoring

    async def report_worker(self, id: str, facts: bytes, ttl_ms: int) -> None:
        await self._admin("report_worker", id, facts, ttl_ms)

    async def remove_worker(self, id: str) -> None:
        await self._admin("remove_worker", id)

    async def workers(self) -> list[WorkerRow]:
        return sorted((decode_rows.worker(row) for row in await self._read("workers")), key=lambda row: row.id)

    async def add_counts(self, counts: Sequence[MinuteCounts]) -> None:
        values = [value for one in counts for value in msgspec.structs.astuple(one)]
        await self._admin("add_counts", *values)

    async def rates(self, queue: str | None, since: int) -> list[MinuteCounts]:
        found = (decode_rows.minute_counts(row) for row in await self._read("rates", queue, since))
        return sorted(found, key=lambda one: (one.minute, one.queue))

    async def open_keys(self, queue: str, look: int) -> list[KeyRow]:
        found = (decode_rows.key_count(row) for row in await self._read("open_keys", queue, look))
        return sorted(found, key=lambda one: (one.key, one.state))

    async def error_groups(self, queue: str) -> list[ErrorGroupRow]:
        return [decode_rows.error_group(row) for row in await self._read("error_groups", queue)]

    async def jobs_of_error_group(
        self, queue: str, group: str, *, after: str | None = None, limit: int = 50
    ) -> list[str]:
        return [
            unescape_id(id)
            for id in await self._read("jobs_of_error_group", queue, group, after and escape_id(after), limit)
        ]

    # Housekeeping

    async def sweep(self, what: Retention, limit: int = BATCH_SIZE) -> dict[str, int]:
        removed = await self._admin("sweep", *sweep_arguments(what, limit))
        batch = SweepBatch(limit)
        batch.removed.update(zip(SweepBatch.KINDS, removed, strict=True))
        await self._stream_sweeper.sweep(what, batch)
        return batch.removed

    async def describe(self) -> dict[str, Any]:
        facts = await server_checks.describe(self._client)
        facts["doubts"] += [text.decode(errors="replace") for text in await self._read("broken_queues")]
        facts["doubts"] += [decode_rows.set_aside(row, self._prefix) for row in await self._read("set_aside")]
        facts["doubts"] += [decode_rows.key_set_aside(row) for row in await self._read("keys_set_aside")]
        return facts
