"""The run record of a dag: the small folded state that decisions read.

It does not list the nodes. It has two bits for each node, the joins that have some of their inputs, and the results of
a few last nodes; if they are many or large, they are state of the run. So a commit in a dag of ten thousand nodes
writes little more than one in a dag of a hundred.
"""

from __future__ import annotations

import msgspec

from ..core.stored import read_stored
from ..flows.run_record import (
    CANCELLED,
    COMPLETED,
    FAILED,
    MAX_FAILURES,
    MAX_WAITING,
    PAUSED,
    RUNNING,
    WAITING,
    FailedStep,
)
from ..ports.store import RunRow
from ..ports.unit import RunParent

CLOSED = frozenset((COMPLETED, FAILED, CANCELLED))
# Data of few and small inputs waits in the record for the last input of a join.
MAX_JOIN_PARENTS, MAX_JOIN_DATA_BYTES, MAX_JOINS_BYTES = 8, 128, 1024
MAX_RESULTS, MAX_RESULTS_BYTES = 32, 4096  # in the record, if the dag has several last nodes
FailedNode = FailedStep  # `step` is the id of the node


class Join(msgspec.Struct, array_like=True):
    """A node that has some of its inputs: how many are missing, whether one of them was not skipped, and the data of
    those that are small. The data of the others is state of the run."""

    missing: int
    is_live: bool = False
    data: dict[str, msgspec.Raw] = {}
    is_whole: bool = True  # no data of it is state of the run


class DagRecord(msgspec.Struct, omit_defaults=True, rename="camel"):
    """The state of a run of a dag."""

    dag: str
    version: int
    correlation_id: str
    started_ms: int
    status: str = RUNNING
    priority: int = 0
    started: bytes = b""  # a bit for each node that was enqueued
    open: bytes = b""  # a bit for each node that is queued, running or waiting
    open_count: int = 0
    joins: dict[int, Join] = {}
    joins_bytes: int = 0  # of the data in them
    failed: bytes = b""  # a bit for each node that failed and did not continue
    failed_count: int = 0
    failures: list[FailedNode] = []
    again: dict[int, int] = {}  # node -> number of its newest job, for nodes that were retried after their failure
    results: dict[str, msgspec.Raw] = {}  # of last nodes
    results_bytes: int = 0
    stored_results: int = 0  # how many results are state of the run instead
    tags: dict[str, str] = {}
    paused: bool = False
    paused_by: str | None = None
    parent: RunParent | None = None
    has_called: bool = False
    cancel_reason: str | None = None
    waiting: list[str] = []  # suspended nodes
    held: bytes = b""  # a bit for each node that is ready, and not enqueued because of maxConcurrency
    held_count: int = 0
    trace: str | None = None  # the `traceparent` of what started the run

    @property
    def closed(self) -> bool:
        return self.status in CLOSED

    @property
    def display_status(self) -> str:
        """The status that lists of runs show."""
        if self.paused and not self.closed:
            return PAUSED
        is_waiting = self.status == RUNNING and bool(self.waiting) and len(self.waiting) == self.open_count
        return WAITING if is_waiting else self.status

    def event_correlation(self, run: str) -> str | None:
        """Return the correlation id for events: None if it is the run's own id."""
        return None if self.correlation_id == run else self.correlation_id

    def mark_waiting(self, node: str) -> None:
        if node not in self.waiting and len(self.waiting) < MAX_WAITING:
            self.waiting.append(node)

    def unmark_waiting(self, node: str) -> bool:
        if node not in self.waiting:
            return False
        self.waiting.remove(node)
        return True

    def job_number(self, n: int) -> int:
        """Return the number of a node's newest job: 1, or more after retries of a failed node."""
        return self.again.get(n, 1)

    def remember_failure(self, failure: FailedNode) -> None:
        self.failed_count += 1
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(failure)

    def keep_result(self, node: str, data: bytes, is_only: bool) -> dict[str, bytes]:
        """Keep the result of a last node, and return those that are to be stored as state instead."""
        self.results_bytes += len(data)
        fits = len(self.results) < MAX_RESULTS and self.results_bytes <= MAX_RESULTS_BYTES
        if is_only or (fits and not self.stored_results):
            self.results[node] = msgspec.Raw(data)
            return {}
        moved = {id: bytes(kept) for id, kept in self.results.items()} | {node: data}
        self.results.clear()
        self.stored_results += len(moved)
        return moved

    def result(self) -> bytes | None:
        """Return the run's result: that of its last node, or a mapping if several last nodes have run; None if it is
        state of the run."""
        if self.stored_results:
            return None
        value = next(iter(self.results.values())) if len(self.results) == 1 else self.results or None
        return encode(value)


def first_bit(bits: bytes) -> int:
    """Return the lowest bit that is set."""
    return list_bits(bits)[0]


def has_bit(bits: bytes, n: int) -> bool:
    """Return whether bit `n` is set."""
    at, bit = divmod(n, 8)
    return at < len(bits) and bool(bits[at] >> bit & 1)


def set_bit(bits: bytes, n: int) -> bytes:
    """Return the bits with bit `n` set."""
    at, bit = divmod(n, 8)
    changed = bytearray(bits.ljust(at + 1, b"\0"))
    changed[at] |= 1 << bit
    return bytes(changed)


def clear_bit(bits: bytes, n: int) -> bytes:
    """Return the bits with bit `n` cleared."""
    at, bit = divmod(n, 8)
    changed = bytearray(bits)
    changed[at] &= ~(1 << bit)
    return bytes(changed)


def list_bits(bits: bytes) -> list[int]:
    """Return the numbers of the bits that are set."""
    return [at * 8 + bit for at, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1]


encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(DagRecord).decode


def decode(data: bytes, run: str | None = None) -> DagRecord:
    """Decode the record of a run. Raise UnreadableRecord if it is damaged."""
    try:
        return _decode(data)
    except Exception:
        name = f"run {run!r}" if run is not None else "the run"
        hint = f"restore it from a backup, or cancel the run: `penstock runs cancel {run or 'RUN'}`"
        return read_stored(_decode, data, f"the record of {name}", hint)


def replace_record(row: RunRow) -> DagRecord:
    """Build a record for a run whose own cannot be read, from its row: enough to cancel the run."""
    status = row.status if row.status in CLOSED else CANCELLED
    # It may have called other runs: a needless look for them does no harm.
    return DagRecord(
        row.flow,
        0,
        row.id,
        row.created,
        status=status if row.closed else RUNNING,
        parent=row.link,
        has_called=True,
    )
