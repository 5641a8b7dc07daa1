"""The run record: the small folded state of a run that decisions read.

It grows with the steps of a flow, not with the instances of a step.
"""

from __future__ import annotations

import msgspec

from ..core.payload import MAX_BYTES, NULL

RUNNING, COMPENSATING, COMPLETED, FAILED, COMPENSATED, CANCELLED = (
    "running",
    "compensating",
    "completed",
    "failed",
    "compensated",
    "cancelled",
)
CLOSED = frozenset((COMPLETED, FAILED, COMPENSATED, CANCELLED))
MAX_FAILURES = 20


class Tally(msgspec.Struct, omit_defaults=True, array_like=True):
    """The instances of one step, counted."""

    started: int = 0
    open: int = 0  # queued, running or waiting
    completed: int = 0
    failed: int = 0


class Undo(msgspec.Struct, omit_defaults=True):
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
    steps: dict[str, Tally] = {}
    arrived: dict[str, dict[str, msgspec.Raw]] = {}  # joins under way: step -> kind -> data
    results: dict[str, dict[str, msgspec.Raw]] = {}  # steps nothing followed: step -> n -> result
    results_bytes: int = 0
    undo: list[Undo] = []
    failures: list[FailedStep] = []
    failed: int = 0
    tags: dict[str, str] = {}

    def shown_correlation(self, run: str) -> str | None:
        """The correlation id as events carry it: not at all when it is the run's own."""
        return None if self.correlation_id == run else self.correlation_id

    @property
    def open(self) -> int:
        return sum(tally.open for tally in self.steps.values())

    @property
    def closed(self) -> bool:
        return self.status in CLOSED

    def tally(self, step: str) -> Tally:
        found = self.steps.get(step)
        if found is None:
            found = self.steps[step] = Tally()
        return found

    def keep_result(self, step: str, n: int, result: bytes) -> None:
        if result == NULL:
            return  # a step that gives nothing adds nothing to what the run gives
        self.results_bytes += len(result)
        if self.results_bytes > MAX_BYTES:
            self.results.clear()  # they will not be given, and the record is not to grow with them
        else:
            self.results.setdefault(step, {})[str(n)] = msgspec.Raw(result)

    def result(self) -> bytes | None:
        """What the run gives: the result of its last step, or one for each if it ended in several.

        None when they are more than a payload may be; each is still in its `step.completed` event.
        """
        if self.results_bytes > MAX_BYTES:
            return None
        ends = {step: _merged(found) for step, found in self.results.items()}
        if len(ends) == 1:
            return bytes(next(iter(ends.values())))
        return encode(ends) if ends else b"null"


def _merged(found: dict[str, msgspec.Raw]) -> msgspec.Raw:
    if list(found) == ["1"]:
        return found["1"]
    return msgspec.Raw(encode([found[n] for n in sorted(found, key=int)]))


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(RunRecord).decode
