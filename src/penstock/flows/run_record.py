"""The run record: the small folded state of a run that decisions read.

It grows with the steps of a flow, not with the instances of a step.
"""

from __future__ import annotations

import msgspec

from ..core.payload import MAX_PAYLOAD_BYTES, NULL

RUNNING, COMPENSATING, COMPLETED, FAILED, COMPENSATED, CANCELLED = (
    "running",
    "compensating",
    "completed",
    "failed",
    "compensated",
    "cancelled",
)
PAUSED = "paused"  # shown, while a run is; underneath it has the status it had
STATUSES = (RUNNING, PAUSED, COMPENSATING, COMPLETED, FAILED, COMPENSATED, CANCELLED)
CLOSED = frozenset((COMPLETED, FAILED, COMPENSATED, CANCELLED))
MAX_FAILURES = 20


class StepCounts(msgspec.Struct, omit_defaults=True, array_like=True):
    """The instances of one step, counted."""

    started: int = 0
    open: int = 0  # queued, running or waiting
    completed: int = 0
    failed: int = 0


class Compensation(msgspec.Struct, omit_defaults=True):
    """A completed step that has a compensation."""

    step: str
    n: int
    by: str
    input: msgspec.Raw
    result: msgspec.Raw


class FailedStep(msgspec.Struct, omit_defaults=True):
    step: str
    n: int
    error: str
    code: str | None = None


class RunRecord(msgspec.Struct, omit_defaults=True, rename="camel"):
    """What a decision about a run needs to know."""

    flow: str
    correlation_id: str
    started_ms: int
    status: str = RUNNING
    priority: int = 0
    table: str | None = None  # the pinned trigger table of a versioned flow
    version: str | None = None  # of the flow, when the run began
    steps: dict[str, StepCounts] = {}
    arrived: dict[str, dict[str, msgspec.Raw]] = {}  # joins under way: step -> kind -> data
    results: dict[str, dict[str, msgspec.Raw]] = {}  # steps nothing followed: step -> n -> result
    results_bytes: int = 0
    lists: list[str] = []  # those of them that run for each event: what they give is a list
    dropped_results: list[str] = []  # those that gave more than can be kept
    followed: list[str] = []  # steps that run for each event and were followed by another: no end of the run
    undo: list[Compensation] = []
    failures: list[FailedStep] = []
    failed: int = 0
    tags: dict[str, str] = {}
    paused: bool = False

    @property
    def display_status(self) -> str:
        """The status a list of runs shows."""
        return PAUSED if self.paused and not self.closed else self.status

    def event_correlation(self, run: str) -> str | None:
        """The correlation id as events carry it: not at all when it is the run's own."""
        return None if self.correlation_id == run else self.correlation_id

    @property
    def open(self) -> int:
        return sum(tally.open for tally in self.steps.values())

    @property
    def closed(self) -> bool:
        return self.status in CLOSED

    def counts_of(self, step: str) -> StepCounts:
        found = self.steps.get(step)
        if found is None:
            found = self.steps[step] = StepCounts()
        return found

    def keep_result(self, step: str, n: int, result: bytes, each: bool = False) -> None:
        if result == NULL or step in self.followed or step in self.dropped_results:
            return  # a step that gives nothing adds nothing to what the run gives
        if self.results_bytes + len(result) > MAX_PAYLOAD_BYTES:
            self._drop_results(step)  # they will not be given, and the record is not to grow with them
            self.dropped_results.append(step)
            return
        if each and step not in self.lists:
            self.lists.append(step)
        self.results_bytes += len(result)
        self.results.setdefault(step, {})[str(n)] = msgspec.Raw(result)

    def mark_followed(self, step: str) -> None:
        """An instance of a step was followed by another step. So none of them is an end of the run: which of them is
        followed is often a matter of which came last."""
        if step not in self.followed:
            self.followed.append(step)
            self._drop_results(step)
            self.dropped_results = [other for other in self.dropped_results if other != step]

    def _drop_results(self, step: str) -> None:
        self.results_bytes -= sum(len(bytes(result)) for result in self.results.pop(step, {}).values())

    def result(self) -> bytes | None:
        """What the run gives: the result of its last step, or one for each if it ended in several.

        None when they are more than a payload may be; each is still in its `step.completed` event.
        """
        if self.dropped_results:
            return None
        ends = {step: self._merge_results(step, found) for step, found in self.results.items()}
        result = encode(next(iter(ends.values())) if len(ends) == 1 else ends or None)
        return result if len(result) <= MAX_PAYLOAD_BYTES else None

    def _merge_results(self, step: str, found: dict[str, msgspec.Raw]) -> msgspec.Raw:
        if step in self.lists:  # in the order of their events; null where an instance gave nothing
            nothing = msgspec.Raw(NULL)
            return msgspec.Raw(encode([found.get(str(n), nothing) for n in range(1, self.counts_of(step).started + 1)]))
        if list(found) == ["1"]:
            return found["1"]
        return msgspec.Raw(encode([found[n] for n in sorted(found, key=int)]))


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(RunRecord).decode
