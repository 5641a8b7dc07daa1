"""What the checks of some units need to know, read at once and kept up to date as the units are applied."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from ...ports.unit import Unit
from .append import Appender
from .statements import SQL

Fence = tuple[int, int, str | None, str | None]  # state, attempt, token and last unit of a job
Head = tuple[int, str, int, int, str]  # version, status, closed, paused and last unit of a run

_encode = msgspec.json.Encoder().encode
_names = msgspec.json.Decoder(list[str]).decode
_fences = msgspec.json.Decoder(list[tuple[int, int, int, str | None, str | None]]).decode
_heads = msgspec.json.Decoder(list[tuple[str, int, str, int, int, str]]).decode
_streams = msgspec.json.Decoder(list[tuple[str, int, int, int]]).decode


class Seen:
    """Jobs, runs and names as they are, the writes on the tape included."""

    __slots__ = ("fences", "jobs", "queues", "runs", "units")

    def __init__(self) -> None:
        self.fences: dict[int, Fence] = {}
        self.runs: dict[str, Head] = {}
        self.units: set[str] = set()
        self.jobs: set[str] = set()
        self.queues: set[str] = set()


def look(cursor: apsw.Cursor, units: Sequence[Unit], appender: Appender) -> Seen:
    """Reads all that the units name. What is written by other statements than the tape's is not among it."""
    handles: list[int] = []
    runs: set[str] = set()
    jobs: list[str] = []
    queues: set[str] = set()
    streams: set[str] = set()
    for unit in units:
        claim, run = unit.claim, unit.run
        if claim is not None:
            handles.append(claim.handle)
        if run is not None:
            runs.add(run.id)
        elif claim is not None and claim.run is not None:
            runs.add(claim.run)
        for event in unit.events:
            streams.add(event.stream)
        for job in unit.jobs:
            jobs.append(job.id)
            queues.add(job.queue)
            if job.added is not None:
                streams.add(job.added.stream)
    ids = [unit.id for unit in units if forgettable(unit)]
    wanted = appender.unknown(streams)
    row = cursor.execute(
        SQL.look, [_encode(names).decode() if names else None for names in (handles, runs, ids, jobs, queues, wanted)]
    ).fetchone()
    return _seen(row, wanted, appender)  # type: ignore[arg-type]


def _seen(row: tuple[str, ...], wanted: set[str], appender: Appender) -> Seen:
    seen = Seen()
    seen.fences = {pk: (state, attempt, token, last) for pk, state, attempt, token, last in _fences(row[0])}
    seen.runs = {
        id: (version, status, closed, paused, last) for id, version, status, closed, paused, last in _heads(row[1])
    }
    seen.units, seen.jobs, seen.queues = set(_names(row[2])), set(_names(row[3])), set(_names(row[4]))
    appender.know(wanted, _streams(row[5]))
    return seen


def forgettable(unit: Unit) -> bool:
    """Whether neither its job nor its run would know the unit again, and applying it twice would write twice.

    The job row keeps the unit that ended an attempt, the run row the one that began the run; what only adds jobs
    and memos is idempotent by their names.
    """
    if unit.claim is not None and unit.outcome is not None:
        return False
    if unit.run is not None:
        return unit.run.expect > 0
    if unit.events or unit.takes or unit.wakes or unit.waits or unit.state:
        return True
    return unit.schedule is not None or unit.once is not None
