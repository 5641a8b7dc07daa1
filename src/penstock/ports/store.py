"""What an engine asks of a store. Small protocols; a store is all of them together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import msgspec

from ..core.events import Event
from .unit import FLOW, Claim, ClaimBatch, ClaimRequest, CommitReply, JobState, Unit


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

    async def commit(self, units: Sequence[Unit], ask: ClaimRequest | None = None) -> CommitReply:
        """Applies each unit whole or not at all, in order, in one durable write; then hands out work.

        A refused unit leaves its neighbours untouched. A unit may expect the run version that an earlier unit of the
        same call writes, naming it in `after`. Raises StoreUnavailable when nothing is known; committing the same
        units again is safe.
        """
        ...

    async def claim(self, ask: ClaimRequest) -> ClaimBatch:
        """Hands out due jobs of running queues, priority first, each with its run record, and appends their
        `started` events in the same write. Jobs whose lease ran out are handed out again with `crashes` counted.
        A claim that is asked for after a commit was, in one process, sees what it wrote."""
        ...

    def renew(self, claims: Sequence[Claim], lease_ms: int) -> list[Claim]:
        """Extends the leases and gives those that are lost or whose run is closed.

        Blocking and safe to call from any thread: the lease keeper has its own, so that a busy event loop cannot
        starve it."""
        ...


class Listener(Protocol):
    """Hears that something changed under its topics; what changed is then read from the store."""

    async def wait(self, timeout: float | None = None) -> bool:
        """True as soon as one of the topics changed since the last wait; False when the time is up."""
        ...

    def notify(self) -> None:
        """Wakes it as a change would."""
        ...


class Signals(Protocol):
    """Wake-ups: never data, sometimes spurious, at most 50 ms late across processes.

    Topics: `queue:<name>` has work, `stream:<name>` grew, `events`: any stream did,
    `run:<id>` closed, `cancelled`: some run was, `schedules`."""

    def listen(self, *topics: str) -> AbstractContextManager[Listener]: ...

    def notify_all(self) -> None:
        """Everyone looks at the store: another process has written, or a test has moved its clock."""
        ...


class EventLog(Protocol):
    """Streams, read by cursor."""

    async def read(
        self,
        stream: str,
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int = 100,
        backward: bool = False,
    ) -> list[Event]:
        """Events strictly between the cursors, oldest first, or newest first with `backward`."""
        ...

    def tail(self, stream: str, *, after: str | None = None) -> AsyncIterator[Event]:
        """Every event after the cursor (None: from the beginning), each once, in order, then live without a gap."""
        ...

    async def streams(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> list[str]: ...

    async def trim(self, stream: str, *, keep: int | None = None, before_ms: int | None = None) -> int:
        """Removes the oldest events beyond `keep` or older than `before_ms`; gives how many."""
        ...


class FeedItem(msgspec.Struct, frozen=True):
    """An event of any stream, with its place in the order of commits. The cursor is the store's own."""

    cursor: str
    stream: str
    event: Event


class Feed(Protocol):
    """Every event of every stream, in the order they were committed."""

    async def feed(self, after: str | None, limit: int = 500) -> list[FeedItem]:
        """Events after the cursor, all of them with ""; with None just the newest one, to begin from."""
        ...


class RunRow(msgspec.Struct, frozen=True):
    """The few columns a list of runs is made of, and the record itself."""

    id: str
    version: int
    flow: str
    status: str
    closed: bool
    created: int
    updated: int
    record: bytes
    kind: str = FLOW  # of its engine and of its stream


class Runs(Protocol):
    async def run(self, id: str) -> RunRow | None: ...

    async def runs(
        self,
        *,
        flow: str | None = None,
        status: str | None = None,
        since: int | None = None,
        until: int | None = None,
        begun: Any = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[RunRow]:
        """Newest first; `before` is the id of the last row of the page before.

        `since` (included) and `until` (not included) are milliseconds that bound when it was created. `begun` is JSON
        that the body of the first event of its stream contains (see core/json_match.py); a run whose first event was
        trimmed away has nothing to be found by.
        """
        ...

    async def stuck_runs(self, limit: int = 100) -> list[str]:
        """Open runs with no job and no wait: there are none unless a commit was torn, which this is here to prove."""
        ...


class JobRow(msgspec.Struct, frozen=True):
    """A job as administrators see it."""

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
    lease: int | None = None  # until when the worker that holds it may be silent
    parent: str | None = None  # the job that waits for it


class QueueRow(msgspec.Struct, frozen=True):
    """A queue and how many jobs it has in each state."""

    name: str
    paused: bool
    counts: dict[str, int]


class QueueAdmin(Protocol):
    async def queues(self) -> list[QueueRow]: ...

    async def jobs(self, queue: str, state: JobState, *, after: str | None = None, limit: int = 50) -> list[JobRow]:
        """Waiting jobs in the order they will run, others oldest first; `after` is the id of the last one seen."""
        ...

    async def job(self, id: str) -> JobRow | None: ...

    async def pause(self, queue: str) -> None: ...

    async def resume(self, queue: str) -> None: ...

    async def promote(self, id: str) -> bool:
        """Makes a delayed job due now."""
        ...

    async def retry(self, id: str) -> bool:
        """Puts a failed or cancelled job of no run back into its queue, its failures forgotten."""
        ...

    async def remove(self, id: str) -> bool:
        """Deletes a job that no worker holds."""
        ...

    async def drain(self, queue: str, *, delayed: bool = False) -> int:
        """Deletes what waits (and what is delayed) in a queue and belongs to no run."""
        ...


class ChildState(StrEnum):
    """What became of a child, in the words of BullMQ's counts."""

    UNPROCESSED = "unprocessed"  # it is waited for
    PROCESSED = "processed"
    IGNORED = "ignored"  # it failed, and the parent goes on
    FAILED = "failed"  # it failed, and the parent with it


class ChildRow(msgspec.Struct, frozen=True):
    """A child as its parent sees it; what it gave is kept here even if the child itself is forgotten."""

    key: str  # `bull:<queue>:<id>`
    queue: str
    id: str
    state: ChildState
    value: bytes | None = None  # of one that is processed
    reason: str | None = None  # of one that was ignored


class JobTrees(Protocol):
    """Jobs that wait for others. Written by `commit` alone, and by whatever removes or retries jobs: a child that is
    removed or cancelled is waited for no more, a failed one that is retried is waited for again, and a retried parent
    waits for those."""

    async def children(self, id: str) -> list[ChildRow]:
        """The children of a job in the order of their keys."""
        ...


class ScheduleRow(msgspec.Struct, frozen=True):
    """A schedule: `spec` and `target` are the engine's, opaque to the store."""

    id: str
    spec: bytes
    target: bytes
    next: int | None
    last: int | None = None
    paused: bool = False
    fired: int = 0


class DueSchedules(msgspec.Struct, frozen=True):
    """A page of what is due by the store's clock, earliest first, and what that clock said."""

    now: int
    rows: list[ScheduleRow]


class Schedules(Protocol):
    async def put_schedule(self, row: ScheduleRow, was: ScheduleRow | None, unit: Unit | None = None) -> bool:
        """Puts a schedule in if it still is as it was (None: not there), and applies the unit in the same write.

        False, and nothing is written, when it has changed meanwhile."""
        ...

    async def remove_schedule(self, id: str, was: ScheduleRow | None = None) -> bool:
        """Removes a schedule, with `was` only if it still is for the same."""
        ...

    async def schedule(self, id: str) -> ScheduleRow | None: ...

    async def schedules(self) -> list[ScheduleRow]: ...

    async def due_schedules(self, after: ScheduleRow | None = None, limit: int = 100) -> DueSchedules:
        """What is due and not paused; `after` is the last row of the page before."""
        ...

    async def next_schedule(self, after_ms: int = 0) -> int | None:
        """When the next schedule is due after a moment."""
        ...


class WaitRow(msgspec.Struct, frozen=True):
    """A gate as it is; see OpenWait."""

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


class Waits(Protocol):
    """Gates, and the events that may open them. Both are written by `commit` alone."""

    async def wait_row(self, id: str) -> WaitRow | None: ...

    async def memos(self, scope: str) -> dict[str, bytes]:
        """What is recorded of the durable calls of a scope."""
        ...

    async def waits(
        self, *, run: str | None = None, kind: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[WaitRow]:
        """Open gates in the order of their ids; `after` is the last one seen."""
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
        """Open gates of a topic whose key is one of these (None: whatever it is), in the order of their ids; with
        `before`, a feed cursor, those that were there before that event."""
        ...

    async def events_by_kind(
        self, kind: str, *, since: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[FeedItem]:
        """Events of a kind that others may wait for, in the order they were committed; with `since`, those after the
        first event of that stream. `after` is a feed cursor. Times are not asked: a clock may go back."""
        ...


class StateRow(msgspec.Struct, frozen=True):
    """A key as it is; its version counts the writes since it was absent."""

    key: str
    value: bytes
    version: int
    expires: int | None = None


class State(Protocol):
    """Reads of the state store; writes go through `commit`."""

    async def state(self, key: str) -> StateRow | None: ...

    async def states(self, prefix: str, *, after: str | None = None, limit: int = 100) -> list[StateRow]: ...


class Retention(msgspec.Struct, frozen=True):
    """What to forget: finished runs and jobs older than an age, and beyond a count."""

    runs_before: int | None = None
    keep_runs: int | None = None
    jobs_before: int | None = None
    keep_jobs: int | None = None  # of each queue
    events_before: int | None = None  # of queue and global streams
    keep_events: int | None = None  # of each of those streams
    keep_deliveries: int | None = None  # finished jobs of the queue on which events are delivered


class Housekeeping(Protocol):
    async def sweep(self, what: Retention, limit: int = 500) -> dict[str, int]:
        """Deletes one batch; gives how many runs, jobs, events and states went. Live work is never touched."""
        ...

    async def describe(self) -> dict[str, Any]:
        """Facts about the store for `doctor` and error reports."""
        ...


@runtime_checkable
class SharedQueues(Protocol):
    """A store whose queues other programs work on too, and which hears what becomes of their jobs."""

    def job_events(self, queue: str, *, after: str | None = None) -> AsyncIterator[Event]:
        """What happens to the jobs of a queue, whoever works on them, then live. The cursor is not that of the queue's
        stream, and what is not kept any more is passed over."""
        ...


@runtime_checkable
class Migratable(Protocol):
    """A store whose tables are created and updated by numbered steps."""

    async def migrate(self) -> list[int]:
        """Applies what is missing; gives the numbers of what was applied."""
        ...

    async def close(self) -> None: ...


class DatabaseIdentity(msgspec.Struct, frozen=True):
    """Which database of which server a connection leads to. Two servers may have the same one: since when they run
    tells them apart."""

    database: str
    since: int


@runtime_checkable
class Enlists(Protocol):
    """A store in a database that users have tables in too: units can be part of their transactions."""

    async def database_identity(self, *, fresh: bool = False) -> DatabaseIdentity:
        """Where it is, as far as is known; `fresh` asks the server, which may have been started anew."""
        ...

    @property
    def identity_query(self) -> str:
        """The statement that asks a connection for `database`, `since` and the isolation level of its transaction."""
        ...

    def enlist(self, units: Sequence[Unit]) -> list[tuple[str, tuple[str, ...]]]:
        """Statements for the user's own connection, with `{0}` for the first value: the units take effect, whole or
        not at all, when its transaction commits, and whoever listens is told then. They take no jobs and end none."""
        ...


class Store(WorkQueue, EventLog, Feed, Runs, QueueAdmin, JobTrees, Schedules, Waits, State, Housekeeping, Protocol):
    """A backend.

    What goes together: the ids of a run's jobs begin with `<run>.`, state under `run/<run>/` and the stream of a run go
    with it, and memos of a scope with the last job that could read them.
    """

    @property
    def signals(self) -> Signals: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...
