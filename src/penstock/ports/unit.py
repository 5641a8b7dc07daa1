"""The unit: everything one attempt changes, applied whole or not at all."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class JobState(StrEnum):
    """Where a job is. Completed, failed and cancelled are final; held ones belong to a paused run, and a parent waits
    for its children."""

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

# Where the store puts the news of an event that someone waits for; every worker works on it.
DELIVERIES = "penstock-events"
DELIVER = "deliver"
EMIT = "emit"


class NewEvent(msgspec.Struct, frozen=True):
    """An event to append. The store assigns `<ms>-<seq>`; the body is JSON it never looks into.

    An event that others may wait for has its `kind` said here: it can be found by it afterwards, and if a wait with
    that topic is open, a job named DELIVER with the payload `{"stream":…,"id":…,"cursor":…}` (of the feed) is added to
    DELIVERIES in the same write. A store may add `"body":…`, which saves whoever delivers it from reading it, and may
    tell of several events of a kind by one job, `{"events":[…]}`, oldest first, if no wait was opened between them.
    """

    stream: str
    body: bytes
    kind: str | None = None


class Started(msgspec.Struct, frozen=True):
    """The event a claim appends, all but its end.

    `head` is the body's JSON up to inside its `meta` object, with a trailing comma; the store completes it with
    `"attempt":N,"worker":"W"}}`, so that attempts are recorded in the same write that hands the job out.
    """

    stream: str
    body_prefix: bytes

    def body(self, attempt: int, worker: str) -> bytes:
        return b'%b"attempt":%d,"worker":"%b"}}' % (self.body_prefix, attempt, worker.encode())


class OnFailure(StrEnum):
    """What the final failure of a child means to its parent."""

    WAIT = "wait"  # nothing: it is still waited for, until it is retried, removed or sent again
    FAIL = "fail"  # the parent is handed out at once, to fail without being run
    CONTINUE = "continue"  # the parent is handed out at once, though other children may be under way
    IGNORE = "ignore"  # it is waited for no more; the parent can see that it failed
    REMOVE = "remove"  # it is waited for no more, as if it had never been there


class Parent(msgspec.Struct, frozen=True):
    """The job that waits for a new one.

    `instead` names a child whose place the new one takes, if that is still waited for: it failed, and is sent again.
    """

    id: str
    queue: str
    on_failure: OnFailure = OnFailure.WAIT
    replaces: str | None = None


class KeepJobs(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What stays of a queue's finished jobs when one more of them ends: the newest `count`, and none that ended
    `age_ms` ago. With neither all of them stay, until retention takes them.

    Jobs of runs are neither counted nor removed: they go with their run.
    """

    count: int | None = None  # 0: the job that ends goes at once
    age_ms: int | None = None


class Dedupe(msgspec.Struct, frozen=True):
    """A key by which jobs of a queue stand for each other: one is not added while another holds the key.

    With `ttl_ms` a job holds it for that long after it was added, ended or not; without, until it has ended. Removing
    the job lets go of it.
    """

    key: str
    ttl_ms: int | None = None


class PublishedOptions(msgspec.Struct, frozen=True):
    """On what terms a job was added, for stores whose queues other programs show and work on. Ours ask the handler."""

    attempts: int = 1
    backoff: str = "exponential"
    backoff_ms: int = 0
    jitter: bool = False
    keep_completed: KeepJobs | None = None
    keep_failed: KeepJobs | None = None


class NewJob(msgspec.Struct, frozen=True):
    """A job to add. Adding an id that exists changes nothing.

    With `waits` it is handed out when the last of its children has ended, and its delay begins then. A unit whose first
    job waits adds a tree, parents before their children: nothing of it if its first id exists, and refused ("job") if
    another one does.
    """

    id: str
    queue: str
    name: str
    payload: bytes
    priority: int = 0  # lower first
    due: int = 0  # milliseconds; 0 means now
    run: str | None = None
    scope: str | None = None  # whose memos it reads; None means its own id
    opts: bytes = b"{}"  # the engine's, opaque to the store
    started: Started | None = None
    rate_key: str | None = None
    added: NewEvent | None = None  # appended if the id is new
    waits_for_children: bool = False  # for children, which are added with it
    parent: Parent | None = None
    dedupe: Dedupe | None = None
    published: PublishedOptions | None = None


class Claim(msgspec.Struct, frozen=True):
    """A job handed to one worker, with what it needs to decide: its run record and its memos.

    `(job, attempt, token)` is the fence: a commit that carries it is refused once the lease has gone to another.
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
    crashes: int  # attempts whose lease ran out
    handle: int = 0  # the store's own shortcut to the job
    run: str | None = None
    version: int = 0
    record: bytes | None = None
    memos: dict[str, bytes] = {}
    at: int = 0  # when it was handed out, by the store's clock
    kind: str = FLOW  # of the run: which engine understands it


class Completed(msgspec.Struct, frozen=True, tag="completed"):
    result: bytes | None = None
    keep: KeepJobs | None = None


class RetryAt(msgspec.Struct, frozen=True, tag="retry"):
    due: int
    error: bytes


class Dead(msgspec.Struct, frozen=True, tag="dead"):
    error: bytes
    keep: KeepJobs | None = None


class Suspended(msgspec.Struct, frozen=True, tag="suspended"):
    """The job sleeps until it is woken, or until `due`."""

    due: int | None = None


class Cancelled(msgspec.Struct, frozen=True, tag="cancelled"):
    reason: str


class Released(msgspec.Struct, frozen=True, tag="given_back"):
    """The job goes back to its queue unharmed: a worker that stops, a limit that was met.

    With `hold` nobody is handed a job of that queue before then; a hold that lasts longer stays.
    """

    due: int = 0
    hold_until: int | None = None


Outcome = Completed | RetryAt | Dead | Suspended | Cancelled | Released


class RunWrite(msgspec.Struct, frozen=True):
    """The run record's next state. Refused unless the stored version is `expect` (0: the run must not exist).

    `after` is the unit this one was decided on before that was committed: refused unless that wrote the stored version.
    The number alone would not tell: if that unit was refused, another's commit may have been given the same one.
    """

    id: str
    expect: int
    record: bytes
    flow: str
    status: str
    closed: bool = False  # a closed run's jobs are never claimed again, its open waits are cancelled
    paused: bool = False  # a paused run's jobs are held when they come up, and released when it goes on
    cancel_jobs: bool = False  # drop what is waiting or delayed, in the same write
    after: str | None = None
    kind: str = FLOW  # of its engine and of its stream, `<namespace>:<kind>:<id>`


class Memo(msgspec.Struct, frozen=True):
    """The recorded result of a durable call. Writing a name that exists changes nothing."""

    scope: str
    name: str
    value: bytes


class NewWait(msgspec.Struct, frozen=True, tag="open"):
    """A gate that holds a step until it is closed.

    Opening it again, by the step that did, replaces what it says, and opens one that was cancelled. If it is resolved
    or expired the unit is refused: the step is to look at what became of it before it goes to sleep.
    """

    id: str
    run: str
    scope: str
    kind: str  # time, event, trigger or flow
    body: bytes = b"{}"
    due: int | None = None
    job: str = ""  # whom to wake
    topic: str | None = None  # the kind of event that may close it
    key: str | None = None  # narrows the topic: what the event must hold


class SettleWait(msgspec.Struct, frozen=True, tag="close"):
    """Closes an open gate. Unless `lenient`, the unit is refused if it is closed already, so the first one wins."""

    id: str
    state: str  # resolved, expired or cancelled
    lenient: bool = False


WaitChange = NewWait | SettleWait


class StateWrite(msgspec.Struct, frozen=True):
    """One key of the state store. `value=None` deletes; `expect` (a version, 0 for absent) makes it compare-and-set."""

    key: str
    value: bytes | None
    expect: int | None = None
    expires: int | None = None  # milliseconds


class ScheduleMove(msgspec.Struct, frozen=True):
    """Moves a schedule on from the slot that fired; refused if another scheduler moved it first."""

    id: str
    slot: int
    next: int | None  # None ends the schedule


class Unit(msgspec.Struct):
    """Everything one attempt, or one command from outside, changes."""

    id: str  # a commit repeated after a lost reply is recognised by it
    claim: Claim | None = None
    outcome: Outcome | None = None
    run: RunWrite | None = None
    events: list[NewEvent] = []
    jobs: list[NewJob] = []
    memos: list[Memo] = []
    waits: list[WaitChange] = []
    state: list[StateWrite] = []
    progress: bytes | None = None
    logs: list[str] = []  # what its handler logged, for stores whose queues other programs show; it is in events too
    wakes: list[str] = []  # ids of suspended or delayed jobs that are due now
    removes: list[str] = []  # ids of unclaimed jobs to remove; the unit is refused if one is gone
    schedule: ScheduleMove | None = None
    once_key: str | None = None  # applied at most once for this key
    parent: str | None = None  # of the job that ends here: it is told in the same write
    children_settled: bool = (
        True  # else the job has children, and can complete only when all have ended and none has failed it
    )


class Committed(msgspec.Struct, frozen=True):
    """The unit is durable."""

    events: list[tuple[int, int]] = []  # (ms, seq) of each event, in order
    added: list[bool] = []  # for each job, whether it was added
    deduplicated: dict[int, str] = {}  # for jobs (by their place) whose dedupe key is held: the job that holds it
    repeated: bool = False  # this unit was applied before and its reply was lost


class Fenced(msgspec.Struct, frozen=True):
    """The lease is lost, or the run is closed and the unit does not end the attempt; nothing was written."""


class Conflict(msgspec.Struct, frozen=True):
    """Another commit came first; nothing was written. The run as it is now, to decide again on."""

    version: int
    record: bytes | None


class Refused(msgspec.Struct, frozen=True):
    """A precondition other than fence and version failed; nothing was written."""

    why: str  # taken, state, schedule, wait, duplicate, job or children
    key: str


Receipt = Committed | Fenced | Conflict | Refused


class RateLimit(msgspec.Struct, frozen=True):
    """At most `max` claims each `duration_ms`, for the whole queue or for each rate key."""

    max: int
    duration_ms: int
    per_key: bool = False


class QueueDemand(msgspec.Struct, frozen=True):
    """How many jobs of a queue a worker can take."""

    queue: str
    limit: int
    rate: RateLimit | None = None
    max_active: int | None = None  # over all workers


class ClaimRequest(msgspec.Struct, frozen=True):
    """A request for work: what, for how long, for whom."""

    queues: tuple[QueueDemand, ...]
    lease_ms: int
    worker: str
    limit: int | None = None  # over all queues


class ClaimBatch(msgspec.Struct, frozen=True):
    """Jobs handed out, and when the next delayed one of those queues is due."""

    claims: list[Claim] = []
    next_due: int | None = None


class CommitReply(msgspec.Struct, frozen=True):
    """A receipt for each unit in order, and the work asked for with them."""

    receipts: list[Receipt]
    claimed: ClaimBatch = ClaimBatch()


def may_be_removed(unit: Unit) -> bool:
    """Whether jobs it adds or ends may be gone before its reply is asked for again, so that they cannot tell."""
    if isinstance(unit.outcome, Completed | Dead) and unit.outcome.keep is not None:
        return True
    return any(
        job.published is not None and (job.published.keep_completed or job.published.keep_failed) for job in unit.jobs
    )


def needs_receipt(unit: Unit) -> bool:
    """Whether neither its job nor its run would know the unit again, and applying it twice would write twice.

    The job keeps the unit that ended an attempt, the run the one that began it; what only adds jobs and memos is
    idempotent by their names.
    """
    if may_be_removed(unit):
        return True
    if unit.claim is not None and unit.outcome is not None:
        return False
    if unit.run is not None:
        return unit.run.expect > 0
    if unit.events or unit.removes or unit.wakes or unit.waits or unit.state:
        return True
    return unit.schedule is not None or unit.once_key is not None
