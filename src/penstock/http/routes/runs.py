"""`/api/_flow/{flow}/runs` and `/api/_run`: start runs, look at them, act on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
from starlette.responses import StreamingResponse

from ...app.app import App
from ...app.arguments import UNSET
from ...app.preflight import PreflightReport
from ...app.run_bulk import BulkAction, BulkResult
from ...app.tokens import ADMIN
from ...app.views import RunSummary
from ...commit.preview import Preview
from ...core.api_errors import ApiError
from ...core.errors import UnknownRun
from ...core.events import Event
from ...core.payload import parse_json
from ...core.text import shorten
from ...flows.reducer import RunView
from ...ports.store import RunRow
from ..dispatch import SECURITY_HEADERS
from ..endpoints import Body, Call, DryRunQuery, Limit, Query, Routes
from .dead_letters import Redriven, show_redriven
from .jobs import (
    Done,
    LogPage,
    LogQuery,
    ReasonBody,
    Result,
    ResultQuery,
    Started,
    show_done,
    show_lines,
    show_started,
)

LINES = "application/x-ndjson"
routes = Routes("runs")
MAX_TIMELINE_EVENTS = 1_000


class RunQuery(Query):
    """Which runs to list."""

    flow: str | None = None
    status: str | None = None
    since: str | None = None  # a time, or a duration such as 1h
    until: str | None = None
    tag: list[str] = []  # name=value
    attribute: list[str] = []  # name=value; the flow declares its attributes
    correlation_id: str | None = None
    step: str | None = None  # a step that failed
    error: str | None = None  # words of the error with which a step failed
    where: str | None = None  # JSON that the input contains
    parent: str | None = None  # the run that started them
    before: str | None = None  # id of the last run of the page before
    limit: Limit = 50


class RunPage(msgspec.Struct):
    """A page of runs. `next` is the `before` of the next page, or null."""

    items: list[RunSummary]
    next: str | None = None


class StartBody(Body):
    """A run to start."""

    input: Any = None
    key: str | None = None
    correlation_id: str | None = None
    priority: int | None = None
    delay: float | str | None = None
    at: datetime | None = None
    tags: dict[str, str] | None = None


class BulkBody(Body):
    """Which runs, and what to do with each. Without `confirm`, the runs are only counted.

    Pass the count as `confirm`, or true to take as many as there are."""

    action: BulkAction
    flow: str | None = None
    status: str | None = None
    since: str | None = None  # a time, or a duration such as 1h
    until: str | None = None
    tags: dict[str, str] | None = None
    attributes: dict[str, Any] | None = None
    correlation_id: str | None = None
    step: str | None = None  # a step that failed
    error: str | None = None  # words of the error with which a step failed
    where: Any = None  # JSON that the input contains
    parent: str | None = None
    reason: str | None = None
    limit: int = 10_000
    confirm: int | bool = False


class ChildQuery(Query):
    """Which children to list."""

    before: str | None = None  # id of the last run of the page before
    limit: Limit = 50


class RunLogQuery(LogQuery):
    """Which log lines to return."""

    step: str | None = None


class TimelineQuery(Query):
    """Which events of the run to return."""

    after: str | None = None
    limit: Limit = 100


class Timeline(msgspec.Struct):
    """A page of a run's events. `next` is the `after` of the next page, or null."""

    items: list[Event]
    next: str | None = None


class PreflightBody(Body):
    """Which runs to check."""

    flow: str | None = None
    accept: list[str] = []  # new calls that open runs may make now


class Imported(msgspec.Struct):
    """The runs that were imported."""

    ids: list[str]


class ReplayBody(Body):
    """How to replay."""

    input: Any = msgspec.UNSET  # another input instead of the recorded one
    key: str | None = None


class Replayed(msgspec.Struct, omit_defaults=True):
    """The id of the new run, or what would be written."""

    id: str | None = None
    existing: bool = False
    differs: bool = False
    preview: Preview | None = None


class ForkBody(Body):
    """Where to fork."""

    event: str  # id of the last event to copy
    key: str | None = None


class ViewQuery(Query):
    """Which state of the run to return."""

    at: str | None = None  # id of an event: the state just after it


class RunDetail(msgspec.Struct, rename="camel"):
    """A run with its snapshot and its first events."""

    snapshot: RunView
    events: list[Event]
    next: str | None = None  # `after` of the next page of events


class Why(msgspec.Struct):
    """What a run waits for, in sentences."""

    reasons: list[str]


@routes.get("/api/_run")
async def list_runs(app: App, query: RunQuery) -> RunPage:
    """List runs, newest first."""
    return await find_runs(app, query)


@routes.post("/api/_run/bulk")
async def act_on_runs(app: App, body: BulkBody) -> BulkResult:
    """Count the runs that a filter selects and, once that is confirmed, act on each."""
    is_open = isinstance(body.confirm, bool)
    return await app.runs.bulk(
        body.action,
        flow=body.flow,
        status=body.status,
        since=parse_time(body.since),
        until=parse_time(body.until),
        tags=body.tags,
        attributes=body.attributes,
        correlation_id=body.correlation_id,
        step=body.step,
        error=body.error,
        where=body.where,
        parent=body.parent,
        reason=body.reason,
        limit=body.limit,
        dry_run=is_open and not body.confirm,
        expect=None if is_open else body.confirm,
    )


@routes.get("/api/_flow/{flow}/runs")
async def list_flow_runs(app: App, flow: str, query: RunQuery) -> RunPage:
    """List the runs of a flow, newest first."""
    return await find_runs(app, msgspec.structs.replace(query, flow=flow))


@routes.post("/api/_flow/{flow}/runs", status=201, may_exist=True)
async def start_run(app: App, flow: str, body: StartBody) -> Started:
    """Start a run of a flow. With a key that was used before, the answer is 200 with `existing`, and nothing starts."""
    run = await app.runs.start(
        flow,
        body.input,
        key=body.key,
        correlation_id=body.correlation_id,
        priority=body.priority,
        delay=body.delay,
        at=body.at,
        tags=body.tags,
    )
    return show_started(run)


@routes.get("/api/_flow/{flow}/runs/{id}")
async def get_flow_run(app: App, flow: str, id: str, query: ViewQuery) -> RunDetail:
    """Return a run of a flow, by its id or its correlation id, with its snapshot and its events."""
    row = await check_flow(app, flow, id)
    view = await view_run(app, row.id, query)
    events = await app.events.read(app._bodies.run(row.kind, row.id), limit=MAX_TIMELINE_EVENTS)
    return RunDetail(view, events, events[-1].id if len(events) == MAX_TIMELINE_EVENTS else None)


@routes.post("/api/_flow/{flow}/runs/{id}/cancel")
async def cancel_flow_run(app: App, flow: str, id: str, query: DryRunQuery, body: ReasonBody) -> Done:
    """Cancel a run of a flow, by its id or its correlation id."""
    row = await check_flow(app, flow, id)
    return show_done(await app.runs.cancel(row.id, **body.arguments, **guard(query)))


@routes.get("/api/_run/{id}")
async def get_run(app: App, id: str, query: ViewQuery) -> RunView:
    """Return a run's state, folded from its events, now or just after an event."""
    return await view_run(app, id, query)


@routes.get("/api/_run/{id}/timeline")
async def read_timeline(app: App, id: str, query: TimelineQuery) -> Timeline:
    """Return the events of a run, oldest first."""
    row = await app._run_reader.row(id)
    events = await app.events.read(app._bodies.run(row.kind, row.id), after=query.after, limit=query.limit)
    return Timeline(events, events[-1].id if len(events) == query.limit else None)


@routes.get("/api/_run/{id}/logs")
async def list_run_logs(app: App, id: str, query: RunLogQuery) -> LogPage:
    """Return log lines of a run, oldest first: of a step, of an attempt, of a level and above."""
    found = await app.runs.logs(
        id,
        step=query.step,
        attempt=query.attempt,
        level=query.level,
        after=query.after,
        limit=query.limit,
    )
    return show_lines(found, query.limit)


@routes.get("/api/_run/{id}/children")
async def list_run_children(app: App, id: str, query: ChildQuery) -> RunPage:
    """List the runs that a run started, newest first."""
    found = list(await app.runs.children(id, before=query.before, limit=query.limit))
    return RunPage(found, found[-1].id if len(found) == query.limit else None)


@routes.get("/api/_run/{id}/wait")
async def wait_for_run_end(app: App, id: str, query: ResultQuery) -> RunSummary:
    """Wait until a run has ended, in whatever way."""
    return await app.runs.wait(id, timeout=query.timeout)


@routes.get("/api/_run/{id}/result")
async def wait_for_run(app: App, id: str, query: ResultQuery) -> Result:
    """Wait for a run to end and return its result."""
    return Result(await app.runs.result(id, timeout=query.timeout))


@routes.get("/api/_run/{id}/diagram")
async def get_run_diagram(app: App, id: str) -> dict[str, Any]:
    """Return the graph that a run goes through, in the version that it was started with: `nodes` and `edges`."""
    return await app.runs.diagram(id)


@routes.get("/api/_run/{id}/why")
async def explain_run(app: App, id: str) -> Why:
    """Explain what a run waits for, one sentence for each open step."""
    return Why(list(await app.runs.why(id)))


@routes.get("/api/_run/{id}/export", role=ADMIN, is_command=True, media=LINES)
async def export_run(app: App, id: str) -> str:
    """Return a run with its events, jobs, waits and state as one line of JSON, with its secrets as they are."""
    return _lines(iter_one(await app.runs.export(id)))


@routes.get("/api/_export", role=ADMIN, is_command=True, media=LINES)
async def export_runs(app: App) -> str:
    """Return all runs, oldest first, one line of JSON for each, with their secrets as they are."""
    return _lines(app.runs.export_all())


@routes.post("/api/_import", role=ADMIN, status=201, body_media=LINES)
async def import_runs(app: App, call: Call) -> Imported:
    """Import runs that an export returned. The body has one line of JSON for each run."""
    return Imported(list(await app.runs.import_(call.body)))


@routes.post("/api/_preflight")
async def check_open_runs(app: App, body: PreflightBody) -> PreflightReport:
    """Check every open run against the loaded code. It re-executes handlers up to their last recorded call."""
    return await app.runs.preflight(body.flow, accept=body.accept)


@routes.post("/api/_run/{id}/cancel")
async def cancel_run(app: App, id: str, query: DryRunQuery, body: ReasonBody) -> Done:
    """Cancel a run for good. Queued steps are dropped and running code is interrupted."""
    return show_done(await app.runs.cancel(id, **body.arguments, **guard(query)))


@routes.post("/api/_run/{id}/pause")
async def pause_run(app: App, id: str, query: DryRunQuery, body: ReasonBody) -> Done:
    """Pause a run. Running steps end, no further step starts."""
    return show_done(await app.runs.pause(id, **body.arguments, **guard(query)))


@routes.post("/api/_run/{id}/resume")
async def resume_run(app: App, id: str, query: DryRunQuery, body: ReasonBody) -> Done:
    """Resume a paused run."""
    return show_done(await app.runs.resume(id, **body.arguments, **guard(query)))


@routes.post("/api/_run/{id}/retry")
async def retry_run(app: App, id: str, query: DryRunQuery) -> Redriven:
    """Redrive the failed steps of a failed run."""
    return show_redriven(await app.runs.retry(id, **guard(query)))


@routes.post("/api/_run/{id}/replay", status=201, may_exist=True)
async def replay_run(app: App, id: str, query: DryRunQuery, body: ReplayBody) -> Replayed:
    """Start a new run of the same flow with the recorded input or another one."""
    input = UNSET if body.input is msgspec.UNSET else body.input
    done = await app.runs.replay(id, input=input, key=body.key, **guard(query))
    return Replayed(preview=done) if isinstance(done, Preview) else Replayed(done.id, done.existing, done.differs)


@routes.post("/api/_run/{id}/fork", status=201)
async def fork_run(app: App, id: str, query: DryRunQuery, body: ForkBody) -> Replayed:
    """Start a new run with the past of a run up to an event."""
    done = await app.runs.fork(id, body.event, key=body.key, **guard(query))
    return Replayed(preview=done) if isinstance(done, Preview) else Replayed(str(done))


def guard(query: DryRunQuery) -> Any:
    """Return the arguments that a command takes from `?dryRun` and `?version`."""
    return {"dry_run": query.dry_run, "version": query.version}


async def iter_one(line: bytes) -> AsyncIterator[bytes]:
    """Iterate over one line."""
    yield line


def _lines(lines: AsyncIterator[bytes]) -> str:
    """Return a response of lines, sent one after the other. Its type is what the API describes."""

    async def with_ends() -> AsyncIterator[bytes]:
        async for line in lines:
            yield line + b"\n"

    return StreamingResponse(with_ends(), headers={**SECURITY_HEADERS, "content-type": LINES})  # type: ignore[return-value]


async def check_flow(app: App, flow: str, id: str) -> RunRow:
    """Return the row of a run of a flow by its id, or else its newest run with that correlation id."""
    row = await app._run_reader.find(id)
    if row is None and (found := await app.runs.list(flow=flow, correlation_id=id, limit=1)):
        row = await app._run_reader.row(found[0].id)
    if row is None:
        raise UnknownRun(f"no run of flow {flow!r} with the id or correlation id {id!r}")
    if row.flow != flow:
        raise UnknownRun(f"no run with id {id!r} of flow {flow!r}; it is a run of {row.flow!r}")
    return row


async def find_runs(app: App, query: RunQuery) -> RunPage:
    """Return the page of runs that a query selects."""
    found = await app.runs.list(
        flow=query.flow,
        status=query.status,
        since=parse_time(query.since),
        until=parse_time(query.until),
        tags=read_pairs(query.tag, "tag"),
        attributes=read_pairs(query.attribute, "attribute"),
        correlation_id=query.correlation_id,
        step=query.step,
        error=query.error,
        where=_read_where(query.where),
        parent=query.parent,
        before=query.before,
        limit=query.limit,
    )
    return RunPage(found, found[-1].id if len(found) == query.limit else None)


def _read_where(text: str | None) -> Any:
    if text is None:
        return None
    value = parse_json(text, "where")
    if value is None:
        raise ApiError("?where=null selects nothing; pass JSON that the input contains, or omit it")
    return value


def read_pairs(texts: Sequence[str], what: str) -> dict[str, str] | None:
    """Return the parameters `name=value` as a mapping, None without any. Raise ApiError for one of another form."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ApiError(f"?{what}= must be name=value, such as ?{what}=team=billing, got {shorten(text)}")
        if pairs.setdefault(name, value) != value:
            raise ApiError(f"?{what}= has two values for {shorten(name)}, which no run has; pass one of them")
    return pairs or None


async def view_run(app: App, id: str, query: ViewQuery) -> RunView:
    """Return a run's state, now or just after an event."""
    return await app.runs.get(id) if query.at is None else await app.runs.at(id, query.at)


def parse_time(text: str | None) -> datetime | str | None:
    """Return a time written in ISO 8601 as a datetime, and a duration as it is."""
    if text is None or "T" not in text:
        return text
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text
