"""Parts of a run record that are kept beside it: the results and the compensations of a wide fan-out.

They are state of the run, some kilobytes in each part, so that a commit in a fan-out of ten thousand writes as much as
one in a fan-out of ten. Decisions read nothing: where one needs a part, its commit adds a job of the run, which reads
the part and decides.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..context.state import OWN_KEYS
from ..ports.unit import StateWrite
from .run_record import Compensation, MovedCompensations, MovedResults, RunRecord, encode

MAX_KEPT = 32  # results in the record; they may be more if they are small
MAX_KEPT_RESULTS_BYTES = 1024
MAX_KEPT_COMPENSATIONS_BYTES = 4096  # or MAX_KEPT of them
MAX_LISTED_STEPS = 100


LoadedWhat = Literal["results", "compensations", "kind"]


class PartLoad(msgspec.Struct, omit_defaults=True):
    """What a job of the run reads: the results, the last part of the compensations, or those for an event's kind."""

    n: int
    what: LoadedWhat
    part: int = 0
    kind: str = ""


class LoadedParts(msgspec.Struct):
    """What the job has read. `problem` says why it could not."""

    load: PartLoad
    results: dict[str, dict[str, msgspec.Raw]] = {}
    compensations: list[Compensation] = []
    problem: str | None = None


decode_results = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
decode_compensations = msgspec.json.Decoder(list[Compensation]).decode


def results_key(run: str, step: str, part: int) -> str:
    """Return the state key of a part of a step's results, counted from 1."""
    return f"run/{run}/{OWN_KEYS}results/{step}/{part}"


def compensations_key(run: str, part: int) -> str:
    """Return the state key of a part of the compensations, counted from 1, oldest first."""
    return f"run/{run}/{OWN_KEYS}compensations/{part}"


def parts_job_id(run: str, n: int) -> str:
    """Return the id of the job that reads parts of a run record."""
    return f"{run}.--parts.{n}"


def move_parts(run: str, record: RunRecord) -> list[StateWrite]:
    """Move what is too much for the record into new parts."""
    return _move_results(run, record) + _move_compensations(run, record)


def _move_results(run: str, record: RunRecord) -> list[StateWrite]:
    if not record.results or sum(map(len, record.results.values())) <= MAX_KEPT:
        return []
    moved_bytes = sum(moved.bytes for moved in record.moved_results.values())
    if record.results_bytes - moved_bytes <= MAX_KEPT_RESULTS_BYTES:
        return []
    writes = []
    for step, results in record.results.items():
        moved = record.moved_results.setdefault(step, MovedResults())
        moved.parts += 1
        moved.bytes += sum(len(bytes(result)) for result in results.values())
        writes.append(StateWrite(results_key(run, step, moved.parts), encode(results)))
    record.results.clear()
    return writes


def _move_compensations(run: str, record: RunRecord) -> list[StateWrite]:
    """Move all but the newest."""
    kept = record.compensations
    if len(kept) < 2 or (len(kept) <= MAX_KEPT and sum(map(_size, kept)) <= MAX_KEPT_COMPENSATIONS_BYTES):
        return []
    moved = record.moved_compensations = record.moved_compensations or MovedCompensations()
    writes: list[StateWrite] = []
    part: list[Compensation] = []
    for one in kept[:-1]:
        part.append(one)
        if one is kept[-2] or len(part) == MAX_KEPT or sum(map(_size, part)) > MAX_KEPT_COMPENSATIONS_BYTES:
            moved.parts += 1
            writes.append(StateWrite(compensations_key(run, moved.parts), encode(part)))
            part = []
    moved.count += len(kept) - 1
    moved.steps = (moved.steps + [one.step for one in kept[:-1]])[-MAX_LISTED_STEPS:]
    record.compensations = kept[-1:]
    return writes


def _size(one: Compensation) -> int:
    return len(bytes(one.input)) + len(bytes(one.result))
