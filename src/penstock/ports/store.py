"""The store port: small protocols, and `Store`, which is all of them together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import msgspec

from ..core.clock import Clock
from ..core.events import Event
from .monitoring import ErrorGroups, Presence, QueueKeys, QueueRates
from .unit import FLOW, Claim, ClaimBatch, ClaimRequest, CommitReply, JobState, RunParent, Unit


class StoreProfile(msgspec.Struct, frozen=True):
    """How a store is best driven. Every field is a hint about speed or caching; none changes what a call means.

    The defaults fit an embedded store: one commit at a time, nothing prefetched, nothing acknowledged is ever lost.
    """

    is_remote: bool = False
    """The store is behind a network: `App.open` retries a failed connection instead of reporting it at once."""

    max_commits_in_flight: int = 1
    """How many commits of any kind one process may have in flight. The store applies them in the order of the calls."""

    max_unordered_finishes: int = 1
    """How many commits may be in flight if each of them only finishes attempts. Larger than `max_commits_in_flight` on
    a store that keeps no order between concurrent commits: finishes need none."""

    prefetch: int = 0
    """How many jobs a worker with short handlers holds in total, running and prefetched, to keep itself and the store
    busy. 0 turns prefetching off."""

    may_rewind: bool = False
    """The server may come back without its last acknowledged writes, after a failover or a power loss. `rewind_epoch`
    then changes."""

    shows_status: bool = False
    """Other programs see `Unit.statuses`. Another store needs none."""


class WorkQueue(Protocol):
    """The hot path."""

    @property
    def profile(self) -> StoreProfile:
        """Return how this store is best driven; the value never changes."""
        ...

    @property
    def rewind_epoch(self) -> int:
        """Incremented when the server may have lost acknowledged writes; cached run versions are then dropped. Always
        0 unless `profile.may_rewind`."""
        ...

    async def commit(self, units: Sequence[Unit], request: ClaimRequest | None = None) -> CommitReply:
        """Apply each unit whole or not at all, in order, in one durable write; then claim jobs.

        A refused unit does not affect the others. A unit may expect the run version that an earlier unit of the same
        call writes, if it names that unit in `after`. Raises StoreUnavailable when the outcome is unknown; committing
        the same units again is safe.
        """
        ...

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        """Claim due jobs of queues that are not paused, by priority, each with its run record, and append their
        `started` events in the same write.

        A job whose lease expired is claimed again, and `crashes` counts it. A claim sees the writes of every commit
        that the same process called before it.
        """
        ...

    def renew(self, claims: Sequence[Claim], lease_ms: int) -> list[Claim]:
        """Extend the leases, and return the claims that are lost or whose run is closed.

        Blocking, and safe to call from any thread: leases are renewed on a thread of their own, which a busy event loop
        cannot starve.
        """
        ...


class Listener(Protocol):
    """Waits for signals on some topics. A signal carries no data: read the store to see what changed."""

    async def wait(self, timeout: float | None = None) -> bool:
        """Return True as soon as a topic has been signalled since the last wait, False after the timeout."""
        ...

    def notify(self) -> None:
        """Wake the listener as a signal would."""
        ...

    def take_topics(self) -> set[str]:
        """Return the topics that were signalled since the last call; `*` stands for any topic."""
        ...


class Signals(Protocol):
    """Wake-ups: without data, sometimes spurious, at most 50 ms late across processes.

    Topics: `queue:<name>` has jobs, `stream:<name>` has new events, `events`: any stream has, `run:<id>` was closed,
    `cancelled`: some run or job was, `schedules`: some schedule changed.
    """

    def listen(self, *topics: str) -> AbstractContextManager[Listener]:
        """Listen to topics inside a `with` block."""
        ...

    @property
    def listeners(self) -> int:
        """How many listeners there are. Each also polls, more rarely if they are many."""
        ...

    def notify_all(self) -> None:
        """Wake every listener: another process has written, or a test has moved its clock."""
        ...


class StreamRow(msgspec.Struct, frozen=True):
    """A stream: its name, the sequence and the time of its last event."""

    name: str
    seq: int
    ms: int


class EventLog(Protocol):
    """Event streams, read by cursor."""

    async def read(
        self,
        stream: str,
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int = 100,
        backward: bool = False,
    ) -> list[Event]:
        """Return the events strictly between the cursors, oldest first, or newest first with `backward`."""
        ...

    def tail(self, stream: str, *, after: str | None = None) -> AsyncIterator[Event]:
        """Yield each event after the cursor (None: from the first one) once, in order, then new ones without a gap."""
        ...

    async def streams(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> list[str]:
        """Return the names of streams, in order; `after` is the last one of the page before."""
        ...

    async def newest_streams(self, prefix: str, *, before: str | None = None, limit: int = 100) -> list[StreamRow]:
        """Return the streams of a type, such as `nq:flow:`, the last created first; `before` is the name of the last
        one of the page before."""
        ...

    async def trim(self, stream: str, *, keep: int | None = None, before_ms: int | None = None) -> int:
        """Remove the oldest events beyond `keep` or older than `before_ms`, in batches, and return how many."""
        ...


class FeedItem(msgspec.Struct, frozen=True):
    """An event of any stream, with its position in the order of commits. Only the store can read the cursor."""

    cursor: str
    stream: str
    event: Event


class Feed(Protocol):
    """All events of all streams, in the order they were committed."""

    async def feed(self, after: str | None, limit: int = 500) -> list[FeedItem]:
        """Return the events after the cursor: from the first one with "", only the newest one with None."""
        ...


class RunRow(msgspec.Struct, frozen=True):
    """The columns that a list of runs shows, and the run record."""

    id: str
    version: int
    flow: str
    status: str
    closed: bool
    created: int
    updated: int
    record: bytes
    kind: str = FLOW  # of its engine and of its stream
    parent: str | None = None  # the run that started it, see RunParent
    root: str | None = None
    depth: int = 0
    call: str | None = None

    @property
    def link(self) -> RunParent | None:
        """The run that started it, as its record has it too."""
        if self.parent is None:
            return None
        return RunParent(self.parent, self.root or self.parent, self.depth, self.call)


class Runs(Protocol):
    """Reads of runs; `commit` writes them."""

    async def run(self, id: str) -> RunRow | None:
        """Return a run, or None."""
        ...

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
        """Return runs, newest first; `before` is the id of the last row of the page before.

        With `statuses`, a run must have one of them. All are read at one moment: a run that changes its status
        meanwhile is found once.
        `since` (included) and `until` (excluded) bound when a run was created, in milliseconds. A run must have all
        `keys` (see RunWrite); the first one is looked up in an index. `first_event` is JSON that the body of the
        stream's first event must contain (see core/json_match.py). A run whose first event was trimmed is not found.
        """
        ...

    async def has_open_children(self, call: str) -> bool:
        """Return whether a run that this wait waits for is open. It takes as long with one child as with a million."""
        ...

    async def stuck_runs(self, limit: int = 100) -> list[str]:
        """Return open runs with no job and no wait. There are none unless a commit was torn; this call proves it."""
        ...


class JobRow(msgspec.Struct, frozen=True):
    """A job with all its columns."""

    id: str
    queue: str
    name: str
    state: JobState
    payload: bytes
    opts: bytes
    priority: int
    due: int
    attempt: int
    failures: int
    crashes: int
    run: str | None
    scope: str
    created: int
    finished: int | None
    progress: bytes | None
    result: bytes | None
    error: bytes | None
    lease: int | None = None  # when the lease of the worker that holds it expires
    parent: str | None = None  # the job that waits for it
    order_key: str | None = None
    waits_for: str | None = None  # the job before it with the same order key, if it is held


class QueueRow(msgspec.Struct, frozen=True):
    """A queue, and how many of its jobs are in each state."""

    name: str
    paused: bool
    counts: dict[str, int]
    # Since when the job that is next in line waits: of each priority the first one, and jobs whose delay is over.
    oldest: int | None = None


class QueueAdmin(Protocol):
    """Queues and jobs, for people and tools."""

    async def queues(self) -> list[QueueRow]:
        """Return all queues."""
        ...

    async def jobs(self, queue: str, state: JobState, *, after: str | None = None, limit: int = 50) -> list[JobRow]:
        """Return jobs in one state: waiting ones in the order they will run, others oldest first. `after` is the id of
        the last one of the page before."""
        ...

    async def job(self, id: str) -> JobRow | None:
        """Return a job, or None."""
        ...

    async def pause(self, queue: str) -> None:
        """Pause a queue: none of its jobs is claimed."""
        ...

    async def resume(self, queue: str) -> None:
        """Resume a paused queue."""
        ...

    async def promote(self, id: str) -> bool:
        """Make a delayed job due now; return False if it is not delayed."""
        ...

    async def retry(self, id: str) -> bool:
        """Return a failed or cancelled plain job to its queue and reset its failures; return False if it is neither.
        A job with an order key goes to the end of its key."""
        ...

    async def remove(self, id: str) -> bool:
        """Delete a job that no worker holds; return False if there is none."""
        ...

    async def reset_rates(self, queue: str) -> None:
        """Start the windows of the queue's rate limits over: the limit has changed. A queue that is held stays held."""
        ...

    async def drain(self, queue: str, *, delayed: bool = False) -> int:
        """Delete the waiting (and delayed) plain jobs of a queue, and all that are held behind a job of the same order
        key. Return how many."""
        ...


class ChildState(StrEnum):
    """The state of a child, in the words of BullMQ's counts."""

    UNPROCESSED = "unprocessed"  # the parent waits for it
    PROCESSED = "processed"
    IGNORED = "ignored"  # it failed, and the parent runs all the same
    FAILED = "failed"  # it failed, and so does the parent


class ChildRow(msgspec.Struct, frozen=True):
    """A child, as its parent sees it. The row keeps the child's result even after the child is removed."""

    key: str  # `bull:<queue>:<id>`
    queue: str
    id: str
    state: ChildState
    value: bytes | None = None  # the result, if processed
    reason: str | None = None  # the error, if ignored


class JobTrees(Protocol):
    """Parents and children. `commit` writes them, and so do the calls that remove or retry jobs.

    A parent no longer waits for a child that is removed. One that is cancelled counts as failed. It waits again for a
    failed child that is retried. A retried parent waits for those too.
    """

    async def children(self, id: str) -> list[ChildRow]:
        """Return the children of a job, in the order of their keys."""
        ...


class ScheduleRow(msgspec.Struct, frozen=True):
    """A schedule. `spec` and `target` belong to the scheduler and are opaque to the store."""

    id: str
    spec: bytes
    target: bytes
    next: int | None
    last: int | None = None
    paused: bool = False
    fired: int = 0


class PublishedSchedule(msgspec.Struct, frozen=True):
    """What other programs on the queue may know of a schedule: its times, and the job it adds or the flow it starts."""

    queue: str
    name: str
    cron: str | None = None
    every_ms: int | None = None
    tz: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    limit: int | None = None
    data: bytes = b"{}"


class ForeignSchedule(msgspec.Struct, frozen=True):
    """A schedule of another program in a queue that we share with it. Workers of both run its jobs."""

    queue: str
    id: str
    name: str
    next: int | None = None
    cron: str | None = None
    every_ms: int | None = None
    tz: str | None = None
    limit: int | None = None
    end: str | None = None
    data: bytes | None = None
    fired: int = 0


class DueSchedules(msgspec.Struct, frozen=True):
    """A page of schedules that are due by the store's clock, earliest first, and that clock's time."""

    now: int
    rows: list[ScheduleRow]


class Schedules(Protocol):
    """Schedules, each changed by compare-and-set."""

    async def put_schedule(
        self,
        row: ScheduleRow,
        was: ScheduleRow | None,
        unit: Unit | None = None,
        published: PublishedSchedule | None = None,
    ) -> bool:
        """Write a schedule if it is still equal to `was` (None: absent), and apply the unit in the same write.

        `published` is what other programs may know of it; None leaves that as it is.

        Returns False, and writes nothing, if it has changed.
        """
        ...

    async def remove_schedule(self, id: str, was: ScheduleRow | None = None) -> bool:
        """Remove a schedule; with `was`, only if its spec and target are unchanged. Return whether it was removed."""
        ...

    async def schedule(self, id: str) -> ScheduleRow | None:
        """Return a schedule, or None."""
        ...

    async def schedules(self) -> list[ScheduleRow]:
        """Return all schedules, by id."""
        ...

    async def due_schedules(self, after: ScheduleRow | None = None, limit: int = 100) -> DueSchedules:
        """Return due schedules that are not paused; `after` is the last row of the page before."""
        ...

    async def next_schedule(self, after_ms: int = 0) -> int | None:
        """Return when the next schedule after a moment is due, or None."""
        ...


@runtime_checkable
class ForeignSchedules(Protocol):
    """Schedules of other programs, on a store whose queues they share."""

    async def foreign_schedules(self, queues: Sequence[str] = ()) -> list[ForeignSchedule]:
        """Return the schedules of other programs in the queues that are used here and in `queues`."""
        ...

    async def remove_foreign_schedule(self, queue: str, id: str) -> bool:
        """Remove a schedule of another program with its next job. Return False if there is none."""
        ...


class WaitRow(msgspec.Struct, frozen=True):
    """A wait with its state; see NewWait."""

    id: str
    run: str
    scope: str
    kind: str
    state: str  # pending, resolved, expired or cancelled
    body: bytes
    due: int | None = None
    job: str = ""
    topic: str | None = None
    key: str | None = None
    created: int = 0
    settled: int | None = None  # when it was resolved, expired or cancelled
    position: str = ""  # a feed cursor: events after it are delivered to the wait


class Waits(Protocol):
    """Waits, and the events that may resolve them. Only `commit` writes both."""

    async def wait_row(self, id: str) -> WaitRow | None:
        """Return a wait, or None."""
        ...

    async def memos(self, scope: str) -> dict[str, bytes]:
        """Return the recorded durable calls of a scope, by name."""
        ...

    async def waits(
        self, run: str, *, kind: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[WaitRow]:
        """Return the pending waits of a run in the order of their ids; `after` is the last one of the page before.
        Waits that start flows have the run ""."""
        ...

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
        """Return waits in one state, newest first; `before` is the id of the last one of the page before.

        `since` (included) and `until` (excluded) bound when a wait was created, in milliseconds. Without a run, a state
        other than pending finds triggers only.
        """
        ...

    async def waits_for_topic(
        self,
        topic: str,
        keys: Sequence[str] | None,
        *,
        before: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[WaitRow]:
        """Return pending waits of a topic with one of these keys (None: any key), in the order of their ids. With
        `before`, a feed cursor, only those that were written before that event."""
        ...

    async def events_by_kind(
        self, kind: str, *, since: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[FeedItem]:
        """Return indexed events of a kind, in the order they were committed. With `since`, a stream, only those after
        its first event; times are not compared, because a clock may go back. `after` is a feed cursor. It is the read
        of code, not of people: the events are as emitted, without redaction."""
        ...


class StateRow(msgspec.Struct, frozen=True):
    """A state key with its value; `version` counts the writes since the key was absent."""

    key: str
    value: bytes
    version: int
    expires: int | None = None


class State(Protocol):
    """Reads of the state store; writes go through `commit`."""

    async def state(self, key: str) -> StateRow | None:
        """Return a key, or None."""
        ...

    async def states(self, prefix: str, *, after: str | None = None, limit: int = 100) -> list[StateRow]:
        """Return the keys under a prefix, in order; `after` is the last key of the page before."""
        ...


class Retention(msgspec.Struct, frozen=True):
    """What to remove: finished runs, jobs and events before a moment, and those beyond a count."""

    runs_before: int | None = None
    keep_runs: int | None = None
    jobs_before: int | None = None
    keep_jobs: int | None = None  # of each queue
    events_before: int | None = None  # of the streams of queues and webhooks, and of the global one
    keep_events: int | None = None  # of each of those streams
    entity_events_before: int | None = None
    keep_entity_events: int | None = None  # of each entity
    keep_deliveries: int | None = None  # finished jobs of the queue of deliveries


class Housekeeping(Protocol):
    """Retention, and facts about the store."""

    async def sweep(self, what: Retention, limit: int = 500) -> dict[str, int]:
        """Remove one batch in short transactions: at most `limit` runs, jobs, events, states and others (smaller rows).

        Return how many of each, oldest first. Until all are 0, call again. Open work is never removed. A run that owns
        more than a batch goes in several. A call that finds nothing to remove takes as long in a large store as in a
        small one; for that, it looks at some of the streams of webhooks and entities, and the next call continues.
        """
        ...

    async def describe(self) -> dict[str, Any]:
        """Return facts about the store for `doctor` and error reports."""
        ...


@runtime_checkable
class SharedQueues(Protocol):
    """A store whose queues other programs share, and which reports the events of their jobs."""

    def job_events(self, queue: str, *, after: str | None = None) -> AsyncIterator[Event]:
        """Yield the events of a queue's jobs, whichever program runs them, then new ones. The cursor is not that of the
        queue's stream. Events that are no longer kept are skipped."""
        ...

    async def other_workers(self) -> set[str]:
        """Return the queues that have workers of other programs, as far as the server lets us see them."""
        ...


@runtime_checkable
class Migratable(Protocol):
    """A store whose tables are created and updated by numbered migrations."""

    async def migrate(self) -> list[int]:
        """Apply the missing migrations, and return their numbers."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class DatabaseIdentity(msgspec.Struct, frozen=True):
    """The database that a connection leads to. The start time tells apart two servers with databases of one name."""

    database: str
    since: int


@runtime_checkable
class Enlists(Protocol):
    """A store in a database that also has the user's tables: units can be part of the user's transactions."""

    async def database_identity(self, *, fresh: bool = False) -> DatabaseIdentity:
        """Return the database's identity, cached unless `fresh`: the server may have been restarted."""
        ...

    @property
    def identity_query(self) -> str:
        """The statement that returns `database`, `since` and the isolation level of the connection's transaction."""
        ...

    def enlist(self, units: Sequence[Unit]) -> list[tuple[str, tuple[str, ...]]]:
        """Return statements for the user's connection, with `{0}` for the first value. The units take effect, whole or
        not at all, when its transaction commits, and listeners are notified then. They claim and finish no jobs."""
        ...


class Store(
    WorkQueue,
    EventLog,
    Feed,
    Runs,
    QueueAdmin,
    JobTrees,
    Schedules,
    Waits,
    State,
    Presence,
    QueueRates,
    QueueKeys,
    ErrorGroups,
    Housekeeping,
    Protocol,
):
    """A backend.

    Retention removes together what belongs together: with a run, its jobs (ids that start with `<run>.`), its state
    (under `run/<run>/`) and its stream; with the last job of a scope, the memos of that scope. A run that another one
    waited for stays as long as that one.
    """

    @property
    def signals(self) -> Signals: ...

    @property
    def clock(self) -> Clock:
        """Return the clock that due times are compared with, once the store is open.

        A store on a server shows the server's time. Every duration of a command, a retry, a wait or a state key is
        added to this clock, whatever the machine's own clock shows.
        """
        ...

    async def open(self) -> None:
        """Connect, and create what is missing."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
