"""Which values of a unit are large, and the same unit with references in their places. Pure: nothing is uploaded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ...core.references import REFERENCES, make_reference
from ...ports.unit import Completed, NewEvent, NewJob, RunWrite, StateWrite, Unit

FENCES = "blob/fence/"
RUN, JOB, STREAM = "run", "job", "stream"
ENTITY = "entity"


class LargeValue(NamedTuple):
    """A value that does not stay in the store, and who owns it: when the last owner is gone, so is the value."""

    digest: str
    data: bytes
    owners: tuple[str, ...]


class _Body(msgspec.Struct):
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_body = msgspec.json.Decoder(_Body).decode


def has_large_values(unit: Unit, threshold: int) -> bool:
    """Return whether anything in a unit is larger than the threshold."""
    if type(unit.outcome) is Completed and unit.outcome.result is not None and len(unit.outcome.result) > threshold:
        return True
    if unit.run is not None and len(unit.run.record) > threshold and unit.run.kind != ENTITY:
        return True
    return (
        any(len(event.body) > threshold for event in unit.events)
        or any(len(job.payload) > threshold or _is_large(job.added, threshold) for job in unit.jobs)
        or any(len(memo.value) > threshold for memo in unit.memos)
    )


def _is_large(event: NewEvent | None, threshold: int) -> bool:
    return event is not None and len(event.body) > threshold


def find_large_values(unit: Unit, threshold: int) -> list[LargeValue]:
    """Return the large values of a unit."""
    return [LargeValue(_digest(data), data, owners) for data, owners in _values(unit, threshold)]


Names = Mapping[str, Sequence[str]]
"""The names of the objects of each value, by its digest."""


def replace_values(unit: Unit, threshold: int, names: Names, objects: Mapping[str, Iterable[str]], now: int) -> Unit:
    """Return the unit with references. `objects` has the owners of each object by its name.

    The same commit writes who refers to each value, and is refused if the value is being deleted."""

    def put(data: bytes | None) -> bytes | None:
        return data if data is None or len(data) <= threshold else make_reference(names[_digest(data)])

    outcome, run = unit.outcome, unit.run
    if type(outcome) is Completed:
        outcome = msgspec.structs.replace(outcome, result=put(outcome.result))
    if run is not None and run.kind != ENTITY:
        run = msgspec.structs.replace(run, record=put(run.record))
    return msgspec.structs.replace(
        unit,
        outcome=outcome,
        run=run,
        jobs=[_replace_job(job, threshold, names) for job in unit.jobs],
        memos=[msgspec.structs.replace(memo, value=put(memo.value)) for memo in unit.memos],
        events=[_replace_event(event, threshold, names) for event in unit.events],
        state=[*unit.state, *_write_references(objects, now)],
    )


def _write_references(objects: Mapping[str, Iterable[str]], now: int) -> list[StateWrite]:
    keys = [f"{REFERENCES}{name}/{owner}" for name, owners in objects.items() for owner in owners]
    fences = [StateWrite(f"{FENCES}{name}", None, expect=0) for name in objects]
    return fences + [StateWrite(key, b"%d" % now) for key in keys]


def _values(unit: Unit, threshold: int) -> Iterator[tuple[bytes, tuple[str, ...]]]:
    own = tuple(_owners(unit))
    if type(unit.outcome) is Completed and (result := unit.outcome.result) is not None and len(result) > threshold:
        yield result, own
    if unit.run is not None and unit.run.kind != ENTITY and len(unit.run.record) > threshold:
        yield unit.run.record, own
    for memo in unit.memos:
        if len(memo.value) > threshold:
            yield memo.value, own
    for job in unit.jobs:
        if len(job.payload) > threshold:
            yield job.payload, (_owner(RUN, job.run) if job.run is not None else _owner(JOB, job.id),)
    for event in (*unit.events, *(job.added for job in unit.jobs if job.added is not None)):
        owner = _stream_owner(unit, event)
        for body in (event.body, event.original):
            if body is not None and (data := _large_data(body, threshold)) is not None:
                yield data, (owner,)


def _owners(unit: Unit) -> Iterator[str]:
    """Yield who keeps results and memos of a unit: its run or its job, and the parent that reads the result."""
    if unit.run is not None:
        yield _owner(RUN, unit.run.id)
    elif unit.claim is not None:
        yield _owner(RUN, unit.claim.run) if unit.claim.run is not None else _owner(JOB, unit.claim.job)
    else:
        yield from (_owner(JOB, id) for id in unit.wakes)
    if unit.parent is not None:
        yield _owner(JOB, unit.parent)


def _stream_owner(unit: Unit, event: NewEvent) -> str:
    """Return who keeps an event: the run of its stream, or the stream, whose events are trimmed one by one."""
    run = unit.run.id if unit.run is not None else unit.claim.run if unit.claim is not None else None
    if run is not None and event.stream.partition(":")[2].partition(":")[2] == run and not _is_entity(unit.run):
        return _owner(RUN, run)
    return _owner(STREAM, event.stream)


def _is_entity(run: RunWrite | None) -> bool:
    return run is not None and run.kind == ENTITY


def _replace_job(job: NewJob, threshold: int, names: Names) -> NewJob:
    payload = make_reference(names[_digest(job.payload)]) if len(job.payload) > threshold else job.payload
    added = _replace_event(job.added, threshold, names) if job.added is not None else None
    return msgspec.structs.replace(job, payload=payload, added=added)


def _replace_event(event: NewEvent, threshold: int, names: Names) -> NewEvent:
    body, original = (_replace_body(one, threshold, names) for one in (event.body, event.original))
    assert body is not None
    return msgspec.structs.replace(event, body=body, original=original)


def _replace_body(body: bytes | None, threshold: int, names: Names) -> bytes | None:
    if body is None or (data := _large_data(body, threshold)) is None:
        return body
    start = body.index(data, body.index(b'"data":'))
    return body[:start] + make_reference(names[_digest(data)]) + body[start + len(data) :]


def _large_data(body: bytes, threshold: int) -> bytes | None:
    """Return the data of an event if it is large. What else an event has is small, and is needed to find it."""
    if len(body) <= threshold:
        return None
    data = _decode_body(body).data
    return bytes(data) if data is not msgspec.UNSET and len(bytes(data)) > threshold else None


def _owner(kind: str, id: str) -> str:
    return f"{kind}:{id}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
