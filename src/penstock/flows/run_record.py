"""The run record: the small folded state of a run that decisions read.

It does not list the instances of a step. Of a step that was started once and has completed it keeps the name only, in
one string: to read and write a string of a thousand names costs about as much as one of ten.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ..core.payload import MAX_PAYLOAD_BYTES, NULL
from ..core.stored import read_stored
from ..ports.store import RunRow
from ..ports.unit import RunParent

RUNNING, COMPENSATING, COMPLETED, FAILED, COMPENSATED, CANCELLED = (
    "running",
    "compensating",
    "completed",
    "failed",
    "compensated",
    "cancelled",
)
# Shown instead of the status in the record: while a run is paused, and while it only waits.
PAUSED, WAITING = "paused", "waiting"
STATUSES = (RUNNING, WAITING, PAUSED, COMPENSATING, COMPLETED, FAILED, COMPENSATED, CANCELLED)
OPEN = (RUNNING, WAITING, PAUSED, COMPENSATING)
CLOSED = frozenset((COMPLETED, FAILED, COMPENSATED, CANCELLED))
MAX_FAILURES = 20
MAX_JOB_IDS = 1000  # of a step in a run; they are part of the record
MAX_WAITING = 100  # waiting instances that a record lists; a run with more of them is shown as running


class StepCounts(msgspec.Struct, omit_defaults=True, array_like=True):
    """Counts of the instances of one step."""

    started: int = 0
    open: int = 0  # queued, running or waiting
    completed: int = 0
    failed: int = 0


_RAN_ONCE = StepCounts(started=1, completed=1)


class Compensation(msgspec.Struct, omit_defaults=True):
    """A completed step instance and the step that compensates it."""

    step: str
    n: int
    compensated_by: str
    input: msgspec.Raw
    result: msgspec.Raw


class MovedResults(msgspec.Struct, array_like=True):
    """Results of a step that are in parts beside the record, see record_parts."""

    parts: int = 0
    bytes: int = 0


class MovedCompensations(msgspec.Struct, array_like=True):
    """Compensations that are in parts beside the record. They are older than those in it."""

    parts: int = 0
    count: int = 0
    steps: list[str] = []  # of the newest ones, oldest first
    kinds: list[tuple[str, int]] = []  # events that are looked for in the parts, each with the part that is next


class FailedStep(msgspec.Struct, omit_defaults=True):
    step: str
    n: int
    error: str
    code: str | None = None
    name: str | None = None  # the class of the exception


class RunRecord(msgspec.Struct, omit_defaults=True, rename="camel"):
    """The state of a run that decisions read and change."""

    flow: str
    correlation_id: str
    started_ms: int
    status: str = RUNNING
    priority: int = 0
    table: str | None = None  # the pinned trigger table of a versioned flow
    version: str | None = None  # of the flow, when the run started
    steps: dict[str, StepCounts] = {}  # without those in `done`
    done: str = ""  # the names of steps that were started once and have completed, each between two spaces
    pending_joins: dict[str, dict[str, msgspec.Raw]] = {}  # step -> kind -> data of the events received so far
    results: dict[str, dict[str, msgspec.Raw]] = {}  # of last steps: step -> n -> result
    results_bytes: int = 0  # of the moved ones too
    moved_results: dict[str, MovedResults] = {}
    list_results: list[str] = []  # last steps with mode "each": their results form a list
    dropped_results: list[str] = []  # last steps whose results are too large to keep
    followed: list[str] = []  # steps with mode "each" that another step followed: they are not last steps
    compensations: list[Compensation] = []  # oldest first
    moved_compensations: MovedCompensations | None = None
    lost_compensations: bool = False  # a part of them could not be read: some steps were not compensated
    failures: list[FailedStep] = []
    failed: int = 0
    tags: dict[str, str] = {}
    attributes: dict[str, str] = {}  # that the flow declares, of the input
    paused: bool = False
    paused_by: str | None = None  # the run that called it, if its pause has paused this one
    parent: RunParent | None = None
    has_called: bool = False  # it has called other runs, which follow it
    cancel_reason: str | None = None  # of a run that another one called
    waiting: list[str] = []  # suspended instances, `step#n`
    routed: int = 0  # events that a worker was to route, and parts that it was to read
    routing: int = 0  # those that it has not yet
    trace: str | None = None  # the `traceparent` of what started the run
    job_ids: dict[str, list[str]] = {}  # step -> the `opts.jobId` of its instances, for steps whose `map` returns one

    @property
    def display_status(self) -> str:
        """The status that lists of runs show."""
        if self.paused and not self.closed:
            return PAUSED
        is_waiting = self.status == RUNNING and bool(self.waiting) and len(self.waiting) == self.open
        return WAITING if is_waiting else self.status

    def mark_waiting(self, step: str, n: int) -> None:
        """Record that an instance is suspended."""
        if (instance := f"{step}#{n}") not in self.waiting and len(self.waiting) < MAX_WAITING:
            self.waiting.append(instance)

    def remember_job_id(self, step: str, job_id: str) -> bool:
        """Record that a step was started with a job id; return False if the record can keep no more of them."""
        known = self.job_ids.setdefault(step, [])
        if job_id in known:
            return True
        if len(known) >= MAX_JOB_IDS:
            return False
        known.append(job_id)
        return True

    def unmark_waiting(self, step: str, n: int) -> bool:
        """Record that an instance is not suspended; return whether it was."""
        if not self.waiting or (instance := f"{step}#{n}") not in self.waiting:
            return False
        self.waiting.remove(instance)
        return True

    def event_correlation(self, run: str) -> str | None:
        """Return the correlation id for events: None if it is the run's own id."""
        return None if self.correlation_id == run else self.correlation_id

    @property
    def open(self) -> int:
        """The number of step instances that are queued, running or waiting, and of the engine's jobs in the run."""
        return sum(counts.open for counts in self.steps.values()) + self.routing

    @property
    def closed(self) -> bool:
        return self.status in CLOSED

    @property
    def started(self) -> int:
        """The number of step instances that were started."""
        return sum(counts.started for counts in self.steps.values()) + max(self.done.count(" ") - 1, 0)

    def started_of(self, step: str) -> int:
        """Return how many instances of a step were started."""
        counts = self.steps.get(step)
        return counts.started if counts is not None else int(self._is_done(step))

    def _is_done(self, step: str) -> bool:
        return f" {step} " in self.done

    def counts_of(self, step: str) -> StepCounts:
        """Return the counts of a step, to change them."""
        found = self.steps.get(step)
        if found is None:
            found = self.steps[step] = StepCounts()
            if self._is_done(step):
                found.started, found.completed = _RAN_ONCE.started, _RAN_ONCE.completed
                self.done = self.done.replace(f" {step} ", " ", 1)
        return found

    def list_counts(self) -> Iterator[tuple[str, StepCounts]]:
        """Yield every step that was started, with its counts."""
        yield from ((step, _RAN_ONCE) for step in self.done.split())
        yield from self.steps.items()

    def count_completed(self, step: str) -> None:
        """Count an instance of a step as completed."""
        counts = self.counts_of(step)
        counts.open -= 1
        counts.completed += 1
        if counts == _RAN_ONCE:
            del self.steps[step]
            self.done = f"{self.done or ' '}{step} "

    def keep_result(self, step: str, n: int, result: bytes, each: bool = False) -> None:
        if result == NULL or step in self.followed or step in self.dropped_results:
            return  # a step that returns None adds nothing to the run's result
        if self.results_bytes + len(result) > MAX_PAYLOAD_BYTES and (self.results or self.moved_results):
            # One result alone is as large as a result may be.
            self._drop_results(step)  # the run returns no result then, so the record need not keep them
            self.dropped_results.append(step)
            return
        if each and step not in self.list_results:
            self.list_results.append(step)
        self.results_bytes += len(result)
        self.results.setdefault(step, {})[str(n)] = msgspec.Raw(result)

    def mark_followed(self, step: str) -> None:
        """Record that another step followed an instance of this step.

        Then no instance of it is a last step of the run: which instance was followed often depends on their order.
        """
        if step not in self.followed:
            self.followed.append(step)
            self._drop_results(step)
            self.dropped_results = [other for other in self.dropped_results if other != step]

    def _drop_results(self, step: str) -> None:
        self.results_bytes -= sum(len(bytes(result)) for result in self.results.pop(step, {}).values())
        if step in self.moved_results:
            self.results_bytes -= self.moved_results.pop(step).bytes

    def result(self) -> bytes | None:
        """Return the run's result: that of its last step, or a mapping of them if it ended in several.

        Return None if they exceed the size limit of a payload; each is still in its `step.completed` event.
        """
        if self.dropped_results:
            return None
        ends = {step: self._merge_results(step, found) for step, found in self.results.items()}
        result = encode(next(iter(ends.values())) if len(ends) == 1 else ends or None)
        is_one = sum(map(len, self.results.values())) == 1
        return result if is_one or len(result) <= MAX_PAYLOAD_BYTES else None

    def _merge_results(self, step: str, found: dict[str, msgspec.Raw]) -> msgspec.Raw:
        if step in self.list_results:  # in the order of their events; null for an instance that returned None
            nothing = msgspec.Raw(NULL)
            return msgspec.Raw(encode([found.get(str(n), nothing) for n in range(1, self.started_of(step) + 1)]))
        if list(found) == ["1"]:
            return found["1"]
        return msgspec.Raw(encode([found[n] for n in sorted(found, key=int)]))


encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RunRecord).decode


def decode(data: bytes, run: str | None = None) -> RunRecord:
    """Decode the record of a run. Raise UnreadableRecord if it is damaged."""
    try:
        return _decode(data)
    except Exception:
        name = f"run {run!r}" if run is not None else "the run"
        hint = f"restore it from a backup, or cancel the run: `penstock runs cancel {run or 'RUN'}`"
        return read_stored(_decode, data, f"the record of {name}", hint)


def replace_record(row: RunRow) -> RunRecord:
    """Build a record for a run whose own cannot be read, from its row: enough to cancel the run."""
    status = row.status if row.status in CLOSED else CANCELLED
    # It may have called other runs: a needless look for them does no harm.
    return RunRecord(
        row.flow,
        row.id,
        row.created,
        status=status if row.closed else RUNNING,
        parent=row.link,
        has_called=True,
    )
