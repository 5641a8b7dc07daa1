"""Checks of an exported run before anything of it is imported: a file may have been edited, cut or mixed up.

A run brings only what is its own: its stream, its jobs, its waits, its memos, and state under `run/<id>/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from ..core.clock import MAX_TIME_MS, to_iso
from ..core.errors import PenstockError, UnknownKind
from ..core.event_shapes import check_shape
from ..core.events import KIND_PATTERN, Event
from ..core.ids import check_id, check_name, digest, event_id, event_route_id, event_seq, route_id
from ..core.json_match import index_key
from ..core.options import check_priority
from ..core.payload import DECODE_ERRORS, pack, to_plain, unpack
from ..core.text import shorten
from ..durable.wait_records import CALL, EVENT, TIME, TRIGGER, decode_body, sortable_wait_id, wait_id
from ..flows.decide import Route
from ..flows.engine import table_key
from ..flows.record_check import check_load
from ..flows.record_parts import PartLoad, parts_job_id
from ..flows.run_record import CLOSED, OPEN, PAUSED
from ..handlers.trigger_table import decode as decode_table
from ..handlers.trigger_table import encode as encode_table
from ..jobs.dead_letters import DeadLetter
from ..ports.unit import DELIVERIES, FLOW, ROUTE, ROUTE_START, START, START_MANY, NewJob, RunParent
from ..worker.child_runs import ManyStarts, RunStart
from ..worker.engines import Engines, RecordSummary, RunEngine
from ..worker.routes import RoutedStart
from .export_format import ENGINE_JOBS, SavedJob, SavedRun, SavedStart, SavedWait, not_a_run

MAX_STATE_KEY_CHARS = 1_000
MAX_QUEUE_CHARS = 200
EXTRA_DEPTH = 8  # levels that the engine adds around the JSON of user code


class _Wrong(Exception):
    """A field of a line is wrong."""


def check_run(saved: SavedRun, number: int, engines: Engines | None = None) -> None:
    """Raise BadExport with the line's number, the field and its value if a run is not as `export` writes it.

    With `engines`, the engine of the run's kind also reads the record and the jobs."""
    try:
        _check_columns(saved)
        engine = engines.of_run_kind(saved.kind) if engines is not None else None
        _check_events(saved)
        _check_jobs(saved)
        _check_waits(saved)
        _check_memos(saved)
        _check_starts(saved)
        _check_routes(saved)
        if engine is not None:
            with _field("record"):
                engine.check_record(bytes(saved.record))
                summary = engine.read_record(bytes(saved.record))
            _check_record(saved, summary, engine)
            _check_links(saved, summary)
            _check_own_jobs(saved, engine)
        _check_state(saved, summary.state_keys if engine is not None else None)
    except UnknownKind as problem:
        raise UnknownKind(f"line {number}: {problem}") from None
    except _Wrong as problem:
        raise not_a_run(number, str(problem)) from None


def restore_jobs(engine: RunEngine, saved: SavedRun) -> list[NewJob]:
    """Build the open jobs of a run, as its engine would, and its dead letters. A closed run has no open jobs."""
    jobs: list[NewJob] = []
    for index, job in enumerate(saved.jobs):
        payload, opts = bytes(job.payload), bytes(job.opts)
        if job.run is None:
            group = unpack(payload).get("group")
            group = group if isinstance(group, str) else None
            jobs.append(NewJob(job.id, job.queue, job.name, payload, opts=opts, error_group=group))
        elif not saved.closed:
            # A job with memos needs an explicit scope, even if it is its own id: the store then reads its memos.
            scope = job.scope if job.scope != job.id or job.scope in saved.memos else None
            new = NewJob(job.id, job.queue, job.name, payload, job.priority, job.due, saved.run, scope, opts)
            with _field(f"jobs[{index}]"):
                jobs.append(engine.restore_job(saved.run, bytes(saved.record), new))
    return jobs


@contextmanager
def _field(name: str) -> Iterator[None]:
    """Name the field in whatever a check raises."""
    try:
        yield
    except _Wrong:
        raise
    except (PenstockError, *DECODE_ERRORS) as problem:
        raise _Wrong(f"{name}: {problem or type(problem).__name__}") from None


def _require(is_met: bool, field: str, rule: str, value: Any) -> None:
    if not is_met:
        raise _Wrong(f"{field} must be {rule}, got {shorten(value)}")


def _check_columns(saved: SavedRun) -> None:
    with _field("run"):
        check_id(saved.run, "run id")
    with _field("kind"):
        check_name(saved.kind, "kind of run")
    with _field("flow"):
        check_name(saved.flow, "flow")
    if saved.kind == FLOW:
        statuses = sorted(CLOSED) if saved.closed else list(OPEN)
        rule = f"one of {', '.join(statuses)}, because closed is {str(saved.closed).lower()}"
        _require(saved.status in statuses, "status", rule, saved.status)
    _check_time("created", saved.created)
    _check_time("updated", saved.updated)
    _check_json("record", saved.record)


def _check_time(field: str, value: int) -> None:
    _require(0 <= value <= MAX_TIME_MS, field, "a time in milliseconds", value)


def _check_json(field: str, raw: msgspec.Raw) -> Any:
    """Return the value of raw JSON, if every store can hold it."""
    with _field(field):
        return to_plain(unpack(bytes(raw)), field, -EXTRA_DEPTH)


def _check_events(saved: SavedRun) -> None:
    newest = 0
    for index, event in enumerate(saved.events):
        field = f"events[{index}]"
        with _field(f"{field}.id"):
            seq, ms = event_seq(event.id), int(event.id.partition("-")[0])
        is_next = seq == index + 1 and newest <= ms <= MAX_TIME_MS and event.id == event_id(ms, seq)
        rule = f"the event {index + 1} of the run, not earlier than the one before it"
        _require(is_next, f"{field}.id", rule, event.id)
        newest = ms
        _require(event.ts == to_iso(ms), f"{field}.ts", f"{to_iso(ms)!r}, the time in its id", event.ts)
        _check_event(saved, event, field)
    if saved.kind == FLOW:
        first = saved.events[0] if saved.events else None
        is_start = first is not None and (first.kind == "flow.started" or first.is_unreadable)
        _require(is_start, "events", "a list that starts with flow.started", first and first.kind)


def _check_event(saved: SavedRun, event: Event, field: str) -> None:
    is_kind = KIND_PATTERN.fullmatch(event.kind) is not None and len(event.kind) <= 256
    _require(is_kind, f"{field}.kind", "dotted words such as 'order.paid'", event.kind)
    _require(bool(event.subject), f"{field}.subject", "a non-empty string", event.subject)
    if event.step is not None:
        with _field(f"{field}.step"):
            check_name(event.step, "step")
    if saved.kind == FLOW:
        _check_flow_event(saved, event, field)
    with _field(f"{field}.data"):
        to_plain(event.data, "the data", -EXTRA_DEPTH)
        check_shape(event.kind, event.data, None)
    with _field(f"{field}.meta"):
        to_plain(event.meta, "meta", -EXTRA_DEPTH)
        check_shape(event.kind, None, event.meta)


def _check_flow_event(saved: SavedRun, event: Event, field: str) -> None:
    _require(event.flow == saved.run, f"{field}.flow", f"{saved.run!r}, the run", event.flow)
    _require(bool(event.correlation_id), f"{field}.correlationId", "a non-empty string", event.correlation_id)
    if not event.kind.startswith(("flow.", "step.")):
        return
    _require(event.subject == saved.run, f"{field}.subject", f"{saved.run!r}, the run", event.subject)
    is_of_flow = event.kind.startswith("flow.")
    _require(is_of_flow or event.step is not None, f"{field}.step", "the name of a step", event.step)
    is_object = isinstance(event.data, dict) or (event.data is None and not is_of_flow)
    _require(is_object, f"{field}.data", "an object", event.data)
    if event.kind == "flow.started":
        _require(event.data.get("name") == saved.flow, f"{field}.data.name", f"{saved.flow!r}, the flow", event.data)


def _check_jobs(saved: SavedRun) -> None:
    for field, jobs in (("jobs", saved.jobs), ("ended", saved.ended)):
        seen: set[str] = set()
        for index, job in enumerate(jobs):
            _check_job(saved, job, f"{field}[{index}]")
            _require(job.id not in seen, f"{field}[{index}].id", "unique in the run", job.id)
            seen.add(job.id)


def _check_job(saved: SavedRun, job: SavedJob, field: str) -> None:
    with _field(f"{field}.id"):
        check_id(job.id, "job id", 2 * MAX_QUEUE_CHARS)
    _require(job.id.startswith(f"{saved.run}."), f"{field}.id", f"a job of run {saved.run!r}", job.id)
    with _field(f"{field}.queue"):
        check_id(job.queue, "queue", MAX_QUEUE_CHARS)
    is_internal = job.queue == DELIVERIES and (saved.kind == FLOW or job.run is None)
    _require(not is_internal, f"{field}.queue", "a queue of steps, not an internal one", job.queue)
    with _field(f"{field}.name"):
        check_name(job.name, "name")
    with _field(f"{field}.priority"):
        check_priority(job.priority)
    _check_time(f"{field}.due", job.due)
    is_letter = job.run is None
    _require(is_letter or job.run == saved.run, f"{field}.run", f"{saved.run!r}, or null for a dead letter", job.run)
    scope = job.id if is_letter else job.letter_scope
    _require(job.scope == scope, f"{field}.scope", f"{scope!r}, as its id", job.scope)
    _check_json(f"{field}.payload", job.payload)
    _check_json(f"{field}.opts", job.opts)
    if is_letter:
        _check_letter(saved, job, field)


def _check_letter(saved: SavedRun, job: SavedJob, field: str) -> None:
    _require(job.id.endswith(".dlq"), f"{field}.run", f"{saved.run!r}; only a dead letter has none", None)
    with _field(f"{field}.payload"):
        letter = msgspec.json.decode(bytes(job.payload), type=DeadLetter)
    is_own = letter.original_job_id == job.failed_id and letter.run == saved.run
    rule = f"the dead letter of job {job.failed_id!r}"
    _require(is_own, f"{field}.payload", rule, (letter.original_job_id, letter.run))


def _check_own_jobs(saved: SavedRun, engine: RunEngine) -> None:
    """Let the engine read each job: an open one, or the failed one of a dead letter."""
    restore_jobs(engine, saved)
    for field, jobs in (("jobs", saved.jobs), ("ended", saved.ended)):
        for index, job in enumerate(jobs):
            if job.run is None or field == "ended":
                payload, name = bytes(job.payload), job.name
                if job.run is None:
                    payload, name = pack(unpack(payload)["originalData"], limit=2**24), name.removesuffix("-failed")
                new = NewJob(job.failed_id, job.queue, name, payload, opts=bytes(job.opts))
                with _field(f"{field}[{index}]"):
                    engine.restore_job(saved.run, bytes(saved.record), new)


def _check_waits(saved: SavedRun) -> None:
    jobs = {job.id: job for job in saved.jobs if job.run is not None}
    seen: set[str] = set()
    for index, wait in enumerate(saved.waits):
        field = f"waits[{index}]"
        _require(not saved.closed, field, "absent, because the run has ended", wait.id)
        kinds = (TIME, EVENT, TRIGGER, CALL)
        _require(wait.kind in kinds, f"{field}.kind", "time, event, trigger or call", wait.kind)
        _require(wait.job in jobs, f"{field}.job", "one of the jobs of the run", wait.job)
        _require(
            wait.scope == jobs[wait.job].scope, f"{field}.scope", f"{jobs[wait.job].scope!r}, as its job", wait.scope
        )
        if wait.due is not None:
            _check_time(f"{field}.due", wait.due)
        _require(wait.due is not None or wait.kind != TIME, f"{field}.due", "the time to resume at", wait.due)
        _check_wait_body(wait, saved.kind, jobs[wait.job] if saved.kind == FLOW else None, field)
        _require(wait.id not in seen, f"{field}.id", "unique in the run", wait.id)
        seen.add(wait.id)


def _check_wait_body(wait: SavedWait, kind: str, job: SavedJob | None, field: str) -> None:
    _check_json(f"{field}.body", wait.body)
    with _field(f"{field}.body"):
        body = decode_body(bytes(wait.body))
    make_id = wait_id if wait.kind == TRIGGER else sortable_wait_id
    id = make_id(wait.kind, wait.scope, body.key)
    _require(wait.id == id, f"{field}.id", f"{id!r}, as its scope and key", wait.id)
    _require(body.kind == kind, f"{field}.body.kind", f"{kind!r}, as its run", body.kind)
    _check_time(f"{field}.body.at", body.at)
    if job is not None:
        _require(body.step == job.name, f"{field}.body.step", f"{job.name!r}, as its job", body.step)
    if wait.kind == EVENT:
        is_topic = wait.topic is not None and KIND_PATTERN.fullmatch(wait.topic) is not None
        _require(is_topic, f"{field}.topic", "the kind of an event", wait.topic)
        key = index_key(body.match)
        _require(wait.key == key, f"{field}.key", f"{key!r}, as its match", wait.key)
    else:
        _require(wait.topic is None, f"{field}.topic", f"null, because it waits for a {wait.kind}", wait.topic)
        _require(wait.key is None, f"{field}.key", f"null, because it waits for a {wait.kind}", wait.key)


def _check_memos(saved: SavedRun) -> None:
    scopes = {scope for job in (*saved.jobs, *saved.ended) for scope in (job.scope, job.letter_scope)}
    for scope, memos in saved.memos.items():
        _require(scope in scopes, "memos", "of scopes of the run's jobs", scope)
        for name, value in memos.items():
            _require(bool(name) and "\0" not in name, f"memos.{scope}", "under the names of durable calls", name)
            _check_json(f"memos.{scope}.{name}", value)


_decode_start = msgspec.json.Decoder(RunStart).decode
_decode_routed = msgspec.json.Decoder(RoutedStart).decode
_decode_many = msgspec.json.Decoder(ManyStarts).decode


def decode_start(saved: SavedStart) -> RunStart:
    """Return the start of a child; of a page of many, the one that all of them share."""
    payload = bytes(saved.payload)
    if saved.name == ROUTE_START:
        return _decode_routed(payload).start
    return _decode_start(payload) if saved.name == START else _decode_many(payload).start


def _check_starts(saved: SavedRun) -> None:
    waits = {wait.id: wait for wait in saved.waits if wait.kind == CALL}
    seen: set[str] = set()
    for index, one in enumerate(saved.starts):
        field = f"starts[{index}]"
        names = (START, START_MANY, ROUTE_START)
        _require(one.name in names, f"{field}.name", f"one of {', '.join(names)}", one.name)
        _check_json(f"{field}.payload", one.payload)
        with _field(f"{field}.payload"):
            start = decode_start(one)
            check_id(start.run, "run id", 2 * MAX_QUEUE_CHARS)
            check_name(start.flow, "flow")
            check_name(start.kind, "kind of run")
            check_priority(start.priority)
        _check_time(f"{field}.payload.due", start.due)
        link = start.link
        is_own = link is not None and link.run == start.parent == saved.run
        _require(is_own, f"{field}.payload", f"the start of a child of run {saved.run!r}", start.parent)
        call = link.call if link is not None else None
        _require(call is None or call in waits, f"{field}.payload", "the start of a pending call", call)
        with _field(f"{field}.id"):
            check_id(one.id, "job id", 2 * MAX_QUEUE_CHARS)
        if one.name == START_MANY:
            many = _decode_many(bytes(one.payload))
            is_page = call is not None and waits[call].scope == many.scope and one.id == f"start.{call}.p{many.page}"
            _require(is_page, f"{field}.id", f"of page {many.page} of a pending call", one.id)
        else:
            is_launch = one.id == route_id(start.run) if one.name == ROUTE_START else one.id.startswith("start.")
            is_start = one.id == f"start.{call}" if call is not None else is_launch
            _require(is_start, f"{field}.id", "the id of a start", one.id)
        _require(one.id not in seen, f"{field}.id", "unique in the run", one.id)
        seen.add(one.id)


def _check_routes(saved: SavedRun) -> None:
    seen: set[str] = set()
    for index, one in enumerate(saved.routes):
        field = f"routes[{index}]"
        _require(one.name in ENGINE_JOBS, f"{field}.name", f"one of {', '.join(ENGINE_JOBS)}", one.name)
        _check_json(f"{field}.payload", one.payload)
        id = _check_route(saved, one, field) if one.name == ROUTE else _check_load(saved, one, field)
        _require(one.id == id and id not in seen, f"{field}.id", f"{id!r}, once", one.id)
        seen.add(id)


def _check_route(saved: SavedRun, one: SavedStart, field: str) -> str:
    """Check a job that routes an event, and return the id that it must have."""
    with _field(f"{field}.payload"):
        route = msgspec.json.decode(bytes(one.payload), type=Route)
        check_name(route.step, "step")
    is_kind = KIND_PATTERN.fullmatch(route.kind) is not None
    _require(is_kind, f"{field}.payload.kind", "the kind of an event", route.kind)
    return event_route_id(saved.run, route.n)


def _check_load(saved: SavedRun, one: SavedStart, field: str) -> str:
    """Check a job that reads parts of the run record, and return the id that it must have."""
    _require(saved.kind == FLOW, f"{field}.name", f"{ROUTE!r}; only the record of a flow has parts", one.name)
    with _field(f"{field}.payload"):
        load = msgspec.json.decode(bytes(one.payload), type=PartLoad)
        check_load(bytes(saved.record), load)
    return parts_job_id(saved.run, load.n)


def _check_links(saved: SavedRun, summary: RecordSummary) -> None:
    """Check that children are placed below their parent."""
    up = summary.parent or RunParent(saved.run, saved.run)
    for index, one in enumerate(saved.starts):
        link = decode_start(one).link
        assert link is not None
        depth = up.depth + 1 if link.call is not None else 0
        is_below = (link.root, link.depth) == (up.root, depth)
        rule = f"a child with the root {up.root!r} and the depth {depth}"
        _require(is_below, f"starts[{index}].payload.link", rule, (link.root, link.depth))


def _check_record(saved: SavedRun, summary: RecordSummary, engine: RunEngine) -> None:
    for field in ("flow", "status", "closed"):
        recorded, shown = getattr(summary, field), getattr(saved, field)
        _require(recorded in (None, shown), field, f"{recorded!r}, as in the record", shown)
    open_jobs = sum(job.run is not None for job in saved.jobs) + len(saved.routes)
    if not saved.closed:
        _require(open_jobs > 0, "jobs", "a list with an open job, because the run is open", open_jobs)
    if not saved.closed and summary.open_jobs is not None:
        rule = f"{summary.open_jobs} open jobs, as the record counts; stop the workers before an export"
        _require(open_jobs == summary.open_jobs, "jobs", rule, open_jobs)
    if saved.kind == FLOW and not any(event.is_unreadable for event in saved.events):
        folded = engine.view(saved.events).status
        is_same = folded == saved.status
        if not saved.closed:  # of a run that was just resumed, the events do not tell yet whether it still waits
            is_same = folded not in CLOSED and (folded == PAUSED) == (saved.status == PAUSED)
        _require(is_same, "events", f"the events of a run that is {saved.status}", f"those of one that is {folded}")


def _check_state(saved: SavedRun, shared: tuple[str, ...] | None) -> None:
    """Check that the state is the run's own, or what its record needs. Without a record, the second is not known."""
    prefix = f"run/{saved.run}/"
    for key, value in saved.state.items():
        _check_json(f"state.{key[:80]}", value)
        is_own = key.startswith(prefix) and len(prefix) < len(key) <= MAX_STATE_KEY_CHARS and "\0" not in key
        is_needed = key in shared if shared is not None else not key.startswith(("run/", "shared/"))
        _require(is_own or is_needed, "state", f"of keys under {prefix!r}", key)
        if key.startswith(table_key("")):
            with _field(f"state.{key[:80]}"):
                found = table_key(digest(encode_table(decode_table(bytes(value)))))
            _require(key == found, "state", f"under {found!r}, the hash of the table", key)
    for key in shared or ():
        if key.startswith(table_key("")):
            _require(
                key in saved.state, "state", f"with the key {key!r}, which the record needs", list(saved.state)[:5]
            )
