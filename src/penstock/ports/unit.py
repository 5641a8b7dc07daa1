"""The unit: everything one attempt changes, applied whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class JobState(StrEnum):
    """The state of a job. Completed, failed and cancelled are final.

    A held job belongs to a paused run, or follows an open job with the same order key.
    """

    WAITING = "waiting"
    DELAYED = "delayed"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    WAITING_CHILDREN = "waiting-children"
    HELD = "held"


FLOW = "flow"  # the kind of run that most runs are
DAG, ENTITY = "dag", "entity"  # the other kinds
DAG_QUEUE = "default"  # of nodes whose executor names none

# The queue of deliveries: the store adds a job to it for an event that a wait may match. Every worker serves it.
DELIVERIES = "penstock-events"
DELIVER = "deliver"
EMIT = "emit"
EMIT_ENTITY = "emit-entity"  # emit an event to an entity later
START = "start"
CANCEL_CHILDREN = "cancel-children"
# Of child runs: start many, note the end of one, cancel those of a call, follow a parent that was stopped or resumed.
START_MANY = "start-many"
CHILD_ENDED = "child-ended"
CANCEL_RUN = "cancel-run"
FOLLOW_PARENT = "follow-parent"
ALERT = "alert"  # send an alert to the webhook
# What evaluates functions of another language: a `when` or `map`, the key of a run, the keys of a job, the rate key of
# a step or node. The first and the last are jobs of a run.
ROUTE = "route"
ROUTE_START = "route-start"
ROUTE_JOB = "route-job"
ROUTE_STEP = "route-step"
READ_PARTS = "read-parts"  # a job of a run: reads parts of its record that are kept beside it


class NewEvent(msgspec.Struct, frozen=True):
    """An event to append. The store assigns the id `<ms>-<seq>` and never reads the body, which is JSON.

    Set `kind` if other runs may wait for the event. The store then indexes the event by its kind. If a wait with that
    topic is pending, the same write adds a job named DELIVER to DELIVERIES, with the payload
    `{"stream":…,"id":…,"cursor":…,"body":…}` (a feed cursor). A store may deliver several events of one kind with one
    job, `{"events":[…]}`, oldest first, if no wait was added between them.

    Streams show `body`, in which secrets are redacted. `original` is the body before redaction, if it differs: the
    delivery job and `events_by_kind` have it, no other read does.
    """

    stream: str
    body: bytes
    kind: str | None = None
    original: bytes | None = None


class Started(msgspec.Struct, frozen=True):
    """The event that a claim appends, without its end.

    `body_prefix` is the body's JSON up to inside its `meta` object, with a trailing comma. The store completes it with
    `"attempt":N,"worker":"W"}}`, so that the write that claims a job also records its attempt.
    """

    stream: str
    body_prefix: bytes

    def body(self, attempt: int, worker: str) -> bytes:
        """Return the complete body."""
        return b'%b"attempt":%d,"worker":"%b"}}' % (self.body_prefix, attempt, worker.encode())


class OnFailure(StrEnum):
    """What the final failure of a child does to its parent."""

    WAIT = "wait"  # nothing: the parent waits until the child is retried, removed or redriven
    FAIL = "fail"  # the parent becomes due at once, and fails without running
    CONTINUE = "continue"  # the parent becomes due at once, even if other children are pending
    IGNORE = "ignore"  # the parent no longer waits for it, and can see that it failed
    REMOVE = "remove"  # the parent no longer waits for it, as if it had never existed


class Parent(msgspec.Struct, frozen=True):
    """The parent of a new job.

    `replaces` names a failed child that is redriven: the new job takes its place if the parent still waits for it.
    """

    id: str
    queue: str
    on_failure: OnFailure = OnFailure.WAIT
    replaces: str | None = None


class KeepJobs(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Which finished jobs of a queue to keep when another one ends: the newest `count`, and none older than `age_ms`.
    With neither, retention alone removes them.

    Jobs of runs are neither counted nor removed: they are removed with their run.
    """

    count: int | None = None  # 0 removes the job as soon as it ends
    age_ms: int | None = None


class Dedupe(msgspec.Struct, frozen=True):
    """A deduplication key: a job is not added while another job of the queue holds the key.

    A job holds its key until it ends, or with `ttl_ms` for that long after it was added, ended or not. Removing the job
    releases the key.
    """

    key: str
    ttl_ms: int | None = None


class PublishedOptions(msgspec.Struct, frozen=True):
    """Retry and retention options of a job, published for other programs that share the queue. Our own workers use the
    handler's options instead."""

    attempts: int = 1
    backoff: str = "exponential"
    backoff_ms: int = 0
    jitter: bool = False
    keep_completed: KeepJobs | None = None
    keep_failed: KeepJobs | None = None
    trace: str | None = None  # the `traceparent` of what sends it; our own jobs have it in their payload


class NewJob(msgspec.Struct, frozen=True):
    """A job to add. Adding an id that exists changes nothing.

    With `waits_for_children` it becomes due when its last child has ended, and its delay starts then. A unit whose
    first job waits for children adds a tree, parents before their children. Nothing of the tree is added if its first
    id exists; the unit is refused ("job") if another id exists.

    Open jobs of a queue with the same `order_key` run one at a time, in the order in which they were committed: the
    first one is waiting, delayed, active or suspended, the others are held. A job with an order key has no run, no
    parent and no children.
    """

    id: str
    queue: str
    name: str
    payload: bytes
    priority: int = 0  # lower first
    due: int = 0  # milliseconds; 0 means now
    run: str | None = None
    scope: str | None = None  # the scope of its memos; None means its own id
    opts: bytes = b"{}"  # owned by the engine, opaque to the store
    started: Started | None = None
    rate_key: str | None = None
    added: NewEvent | None = None  # appended only if the id is new
    waits_for_children: bool = False  # its children are added by the same unit
    parent: Parent | None = None
    dedupe: Dedupe | None = None
    published: PublishedOptions | None = None
    order_key: str | None = None
    error_group: str | None = None  # of a dead letter: those that failed in the same way have the same one


class Claim(msgspec.Struct, frozen=True):
    """A job that one worker holds under a lease, with its run record and its memos.

    `(job, attempt, token)` is the fence: a commit that carries it is refused once another worker has claimed the job.
    """

    job: str
    queue: str
    name: str
    payload: bytes
    opts: bytes
    scope: str
    attempt: int
    token: str
    failures: int  # attempts that ended in a recorded failure
    crashes: int  # attempts whose lease expired
    handle: int = 0  # the store's internal key of the job
    run: str | None = None
    version: int = 0
    record: bytes | None = None
    memos: dict[str, bytes] = {}
    at: int = 0  # when it was claimed, by the store's clock
    kind: str = FLOW  # of the run: which engine understands it
    unreadable: str | None = None  # why the job cannot be decoded: it fails and is not run


class Completed(msgspec.Struct, frozen=True, tag="completed"):
    """The handler returned."""

    result: bytes | None = None
    keep: KeepJobs | None = None


class RetryAt(msgspec.Struct, frozen=True, tag="retry"):
    """The attempt failed; the next one is due at `due`."""

    due: int
    error: bytes


class Dead(msgspec.Struct, frozen=True, tag="dead"):
    """The job failed for good."""

    error: bytes
    keep: KeepJobs | None = None
    gives_attempt_back: bool = False  # see gives_attempt_back()


class Suspended(msgspec.Struct, frozen=True, tag="suspended"):
    """The job is suspended until a unit wakes it, or until `due`."""

    due: int | None = None


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    """The job is cancelled."""

    reason: str


class Released(msgspec.Struct, frozen=True, tag="released"):
    """The job returns to its queue with no failure counted: its worker stops, or its handler hit a rate limit.

    With `hold_until`, no job of the queue is claimed before then. A longer hold that exists already stays.
    """

    due: int = 0
    hold_until: int | None = None
    gives_attempt_back: bool = False  # see gives_attempt_back()


Outcome = Completed | RetryAt | Dead | Suspended | Cancelled | Released


def gives_attempt_back(outcome: Outcome | None) -> bool:
    """Return whether the job's attempt goes back by one, so that its next claim has the same number.

    Attempts count starts of the handler, and the claim numbers them before it is known whether the handler runs. A
    resume after a wait continues its attempt. The fence stays safe: the token is unique to each claim.
    """
    return isinstance(outcome, Suspended) or (isinstance(outcome, Released | Dead) and outcome.gives_attempt_back)


class RunParent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The run that started another one."""

    run: str
    root: str  # the first run of the chain
    depth: int = 0  # how many runs wait for it, one above the other
    call: str | None = None  # the wait that its end resolves; None if nothing waits for it


class RunWrite(msgspec.Struct, frozen=True):
    """The next version of a run record. Refused unless the stored version is `expect` (0: the run must not exist).

    `after` is the id of an uncommitted unit that this one was built on. The write is refused unless that unit wrote the
    stored version. The version number is not enough: if that unit was refused, another commit may have the same number.
    """

    id: str
    expect: int
    record: bytes
    flow: str
    status: str
    closed: bool = False  # jobs of a closed run are never claimed again, and its pending waits are cancelled
    paused: bool = False  # due jobs of a paused run are held until it is resumed
    cancel_jobs: bool = False  # cancel its waiting and delayed jobs in the same write
    after: str | None = None
    kind: str = FLOW  # of its engine and of its stream, `<namespace>:<kind>:<id>`
    keys: tuple[str, ...] = ()  # index keys to add: `Store.runs(keys=…)` finds the run by them until it is removed
    parent: RunParent | None = None  # the same in every write of the run


class Memo(msgspec.Struct, frozen=True):
    """The recorded result of a durable call. Writing a name that exists changes nothing."""

    scope: str
    name: str
    value: bytes


class NewWait(msgspec.Struct, frozen=True, tag="pending"):
    """A pending wait that suspends a step until it is settled.

    Writing it again, from the same step, replaces its body and makes a cancelled wait pending again. If the wait is
    resolved, expired or cancelled with a result, the unit is refused: the step must read the result before it suspends.
    """

    id: str
    run: str
    scope: str
    kind: str  # time, event, trigger, call (of a child run) or flow (an event starts a run)
    body: bytes = b"{}"
    due: int | None = None
    job: str = ""  # the suspended job to wake
    topic: str | None = None  # the kind of event that may resolve it
    key: str | None = None  # narrows the topic: an index key of what the event must contain


class SettleWait(msgspec.Struct, frozen=True, tag="settle"):
    """Settles a pending wait. Unless `lenient`, the unit is refused if the wait is settled: the first one wins.

    A wait that is cancelled with `final` has a result, and cannot be registered again.
    """

    id: str
    state: str  # resolved, expired or cancelled
    lenient: bool = False
    final: bool = False


WaitChange = NewWait | SettleWait


class StateWrite(msgspec.Struct, frozen=True):
    """A write to a state key. `value=None` deletes it. `expect` (a version, 0: absent) makes it a compare-and-set."""

    key: str
    value: bytes | None
    expect: int | None = None
    expires: int | None = None  # milliseconds


class ScheduleMove(msgspec.Struct, frozen=True):
    """Moves a schedule from the slot that fires to the next one; refused if another scheduler moved it first."""

    id: str
    slot: int
    next: int | None  # None ends the schedule


class CancelJob(msgspec.Struct, frozen=True):
    """Cancels a plain job in any open state, also one that a worker runs: its lease is lost.

    Its parent takes it as a failure, see OnFailure. `error` is JSON, as in Dead. The unit is refused as taken if the
    job has ended, or has another attempt than expected."""

    id: str
    error: bytes
    attempt: int | None = None


class JobStatus(msgspec.Struct, frozen=True):
    """A status for other programs that follow a queue; a store that shares its queues shows it as progress of a job."""

    queue: str
    job: str
    data: bytes


class Unit(msgspec.Struct):
    """Everything that one attempt or one command changes. The store applies it whole or not at all."""

    id: str  # the store recognises a unit that is sent again after a lost reply
    claim: Claim | None = None
    outcome: Outcome | None = None
    run: RunWrite | None = None
    events: list[NewEvent] = []
    jobs: list[NewJob] = []
    memos: list[Memo] = []
    waits: list[WaitChange] = []
    state: list[StateWrite] = []
    progress: bytes | None = None
    statuses: list[JobStatus] = []
    logs: list[str] = []  # log lines for other programs that show the queue; the events have them too
    wakes: list[str] = []  # ids of suspended or delayed jobs to make due now
    removes: list[str] = []  # ids of unclaimed jobs to remove; the unit is refused if one is gone
    cancels: list[CancelJob] = []  # the unit is refused ("taken") if one has ended or is gone
    schedule: ScheduleMove | None = None
    once_key: str | None = None  # an idempotency key: at most one unit with this key is applied
    parent: str | None = None  # the parent of the job that ends; the same write updates it
    # False for a job with children: it can complete only when all of them have ended and none has failed it.
    children_settled: bool = True
    order_key: str | None = None  # of the job that ends; the same write releases the next job of that key

    @property
    def adds_tree(self) -> bool:
        """Whether its jobs are a tree: the root first. A tree is added as a whole, or not if its root exists."""
        return bool(self.jobs) and self.jobs[0].waits_for_children

    @property
    def frees_order_key(self) -> bool:
        """Whether it ends a job with an order key for good."""
        return self.order_key is not None and isinstance(self.outcome, Completed | Dead | Cancelled)


class Committed(msgspec.Struct, frozen=True):
    """The unit is applied and durable."""

    events: list[tuple[int, int]] = []  # (ms, seq) of each event, in order
    added: list[bool] = []  # for each job, whether it was added
    deduplicated: dict[int, str] = {}  # index of a job whose deduplication key is held: id of the job that holds it
    repeated: bool = False  # the unit was applied before, and its reply was lost


class Fenced(msgspec.Struct, frozen=True):
    """The lease is lost, or the run is closed and the unit does not end the attempt. Nothing was written."""


class Conflict(msgspec.Struct, frozen=True):
    """Another commit changed the run first. Nothing was written. Build the unit again from this version and record."""

    version: int
    record: bytes | None


class Refused(msgspec.Struct, frozen=True):
    """A precondition other than fence and version failed. Nothing was written."""

    why: str  # taken, state, schedule, wait, duplicate, job, children, queue, uploading or unstored
    key: str


UPLOADING = "uploading"  # why a unit is refused whose large values are not uploaded yet
UNSTORED = "unstored"  # why a unit is refused whose large values cannot be uploaded now; nothing of it was written
BROKEN_QUEUE = "queue"  # why a unit is refused that would write a queue of which another program broke a key


Receipt = Committed | Fenced | Conflict | Refused


class RateLimit(msgspec.Struct, frozen=True):
    """At most `max` claims per `duration_ms`, for the whole queue or for each rate key."""

    max: int
    duration_ms: int
    per_key: bool = False


class QueueDemand(msgspec.Struct, frozen=True):
    """How many jobs of one queue a worker can take."""

    queue: str
    limit: int
    rate: RateLimit | None = None
    max_active: int | None = None  # of all workers together


class ClaimFilter(msgspec.Struct, frozen=True):
    """The jobs that may be claimed: those of some runs, and some others by id. Deliveries may always be claimed."""

    runs: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


class ClaimRequest(msgspec.Struct, frozen=True):
    """What a worker wants to claim, for how long, and under which name."""

    queues: tuple[QueueDemand, ...]
    lease_ms: int
    worker: str
    limit: int | None = None  # of all queues together
    only: ClaimFilter | None = None  # None: any job of the queues


class ClaimBatch(msgspec.Struct, frozen=True):
    """Claimed jobs, and when the next job of the requested queues is due, by the store's clock.

    `drained` are requested queues that had no due job left. A store may leave some out."""

    claims: list[Claim] = []
    next_due: int | None = None
    drained: Sequence[str] = ()


class CommitReply(msgspec.Struct, frozen=True):
    """A receipt for each unit, in order, the jobs claimed by the same call, and the store's time."""

    receipts: list[Receipt]
    claimed: ClaimBatch = ClaimBatch()
    now: int = 0


def may_be_removed(unit: Unit) -> bool:
    """Return whether jobs that the unit adds or ends may be removed before it is sent again. Then they cannot prove
    that it was applied."""
    if isinstance(unit.outcome, Completed | Dead) and unit.outcome.keep is not None:
        return True
    for job in unit.jobs:
        if job.published is not None and (job.published.keep_completed or job.published.keep_failed):
            return True
    return False


def needs_receipt(unit: Unit) -> bool:
    """Return whether the store must remember the unit's id, because applying it twice would write twice.

    A job remembers the unit that ended its attempt, and a run the unit that started it. A unit that only adds jobs and
    memos is idempotent by their names.
    """
    if may_be_removed(unit):
        return True
    if unit.claim is not None and unit.outcome is not None:
        return False
    if unit.run is not None:
        return unit.run.expect > 0
    if unit.events or unit.removes or unit.cancels or unit.wakes or unit.waits or unit.state:
        return True
    return unit.schedule is not None or unit.once_key is not None


def only_records_calls(unit: Unit) -> bool:
    """Return whether a unit only records durable calls of a running attempt: memos with their events. No other unit
    writes these memos, so a store that finds the first of them has applied the unit before."""
    return (
        unit.claim is not None
        and unit.outcome is None
        and bool(unit.memos and unit.events)
        and not (unit.jobs or unit.waits or unit.state or unit.logs or unit.wakes or unit.removes or unit.cancels)
        and unit.run is None
        and unit.progress is None
        and unit.schedule is None
        and unit.once_key is None
    )
