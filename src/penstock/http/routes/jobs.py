"""`/api/_queue/…/jobs` and `/api/_job`: enqueue jobs, look at them, act on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec
from starlette.responses import Response, StreamingResponse

from ...app.app import App
from ...app.executions import ExecutionFrame
from ...app.log_lines import LogView
from ...app.run_handle import Run
from ...app.views import ChildView, JobView
from ...commit.preview import Preview
from ...jobs.job_trees import JobTree
from ...worker.handler_inspection import Inspection
from ..endpoints import Body, DryRunQuery, Limit, Query, Routes
from ..sse import HEADERS, named_frame

routes = Routes("jobs")

State = Literal[
    "waiting", "delayed", "active", "suspended", "completed", "failed", "cancelled", "waiting-children", "held"
]


Keep = bool | int | str | dict[str, Any]


class JobQuery(Query):
    """Which jobs to list."""

    state: list[State] = []  # may be repeated; waiting without any
    name: str | None = None  # only jobs with this name
    after: str | None = None  # `next` of the page before
    limit: Limit = 50


class JobList(msgspec.Struct, rename="camel", omit_defaults=True):
    """A page of jobs. `next` is the `after` of the next page, or null."""

    items: list[JobView]
    next: str | None = None
    is_cut: bool = False  # the look-up by name stopped before the page was full; `next` continues it


class EnqueueBody(Body):
    """A job to add."""

    input: Any = None
    key: str | None = None
    name: str | None = None
    delay: float | str | None = None
    at: datetime | None = None
    priority: int | None = None
    retry: int | dict[str, Any] | None = None
    correlation_id: str | None = None
    dedupe: str | None = None
    dedupe_ttl: float | str | None = None
    keep_completed: Keep | None = None
    keep_failed: Keep | None = None
    order_key: str | None = None


class EnqueueManyBody(Body):
    """Jobs to add, one for each input."""

    inputs: list[Any]
    name: str | None = None
    delay: float | str | None = None
    priority: int | None = None
    retry: int | dict[str, Any] | None = None
    keep_completed: Keep | None = None
    keep_failed: Keep | None = None
    order_key: str | None = None


class TreeBody(Body):
    """A job with its children, as BullMQ's FlowProducer takes it."""

    tree: dict[str, Any]
    correlation_id: str | None = None


class Added(msgspec.Struct):
    """The id of a job or a run."""

    id: str


class Enqueued(msgspec.Struct, omit_defaults=True):
    """The id of a job. With a key that was used before, nothing was added: `existing` is true, and the status is 200
    instead of 201."""

    id: str
    existing: bool = False


class Started(msgspec.Struct, omit_defaults=True):
    """The id of a run. With a key that was used before, nothing was started: `existing` is true, and the status is 200
    instead of 201. `differs` is true if the run of the key was started with another input."""

    id: str
    existing: bool = False
    differs: bool = False


def show_started(run: Run[Any]) -> Started:
    """Return what a start did."""
    return Started(run.id, run.existing, run.differs)


class AddedMany(msgspec.Struct):
    """The ids of jobs, in the order of their inputs."""

    ids: list[str]


class Done(msgspec.Struct, omit_defaults=True):
    """Whether something changed, or would change: then `preview` has what would be written."""

    ok: bool
    preview: Preview | None = None


def show_done(done: bool | Preview) -> Done:
    """Return what a command did, or would do."""
    return Done(bool(done), done if isinstance(done, Preview) else None)


class ReasonBody(Body):
    """Why: recorded with the event."""

    reason: str | None = None

    @property
    def arguments(self) -> Any:
        """The arguments that a method takes: none without a reason."""
        return {"reason": self.reason} if self.reason is not None else {}


class ResultQuery(Query):
    """How long to wait for a result."""

    timeout: float | str = "30s"


class JobDryRun(Query):
    """Whether the command only shows what it would write."""

    dry_run: bool = False


class LogQuery(Query):
    """Which log lines to return."""

    attempt: int | None = None
    level: str | None = None  # this level and above: debug, info, warning or error
    after: str | None = None  # id of the last line of the page before
    limit: Limit = 100


class LogPage(msgspec.Struct):
    """A page of log lines, oldest first. `next` is the `after` of the next page, or null."""

    items: list[LogView]
    next: str | None = None


class StackQuery(Query):
    """How long to wait for the worker's answer."""

    timeout: float | str = 5.0


class ExecuteBody(Body):
    """A handler to run."""

    queue: str
    input: Any = None
    name: str | None = None
    key: str | None = None
    timeout: float | str = "30s"  # how long to wait for the result


class Executed(msgspec.Struct):
    """The job that ran, and its result."""

    id: str
    result: Any = None


class Result(msgspec.Struct):
    """The result of a job or a run."""

    result: Any = None


@routes.get("/api/_queue/{queue}/jobs")
async def list_jobs(app: App, queue: str, query: JobQuery) -> JobList:
    """List the jobs of a queue in one state, or in several, one state after the other."""
    found = await app.jobs.list(
        queue, states=query.state or ["waiting"], name=query.name, after=query.after, limit=query.limit
    )
    return JobList(list(found), found.cursor, found.is_cut)


@routes.post("/api/_queue/{queue}/jobs", status=201, may_exist=True)
async def enqueue_job(app: App, queue: str, body: EnqueueBody) -> Enqueued:
    """Enqueue a job. With a key that was used before, the answer is 200 with `existing`, and nothing is added."""
    job = await app.jobs._enqueue(
        queue,
        body.input,
        key=body.key,
        name=body.name,
        delay=body.delay,
        at=body.at,
        priority=body.priority,
        retry=body.retry,
        correlation_id=body.correlation_id,
        dedupe=body.dedupe,
        dedupe_ttl=body.dedupe_ttl,
        keep_completed=body.keep_completed,
        keep_failed=body.keep_failed,
        order_key=body.order_key,
    )
    return Enqueued(str(job), job.existing)


@routes.post("/api/_queue/{queue}/jobs/bulk", status=201)
async def enqueue_jobs(app: App, queue: str, body: EnqueueManyBody) -> AddedMany:
    """Enqueue many jobs, one for each input."""
    return AddedMany(
        await app.jobs.enqueue_many(
            queue,
            body.inputs,
            name=body.name,
            delay=body.delay,
            priority=body.priority,
            retry=body.retry,
            keep_completed=body.keep_completed,
            keep_failed=body.keep_failed,
            order_key=body.order_key,
        )
    )


@routes.post("/api/_job/tree", status=201)
async def enqueue_tree(app: App, body: TreeBody) -> JobTree:
    """Enqueue a job with its children in one commit."""
    return await app.jobs.enqueue_tree(body.tree, correlation_id=body.correlation_id)


@routes.get("/api/_job/{id}")
async def get_job(app: App, id: str) -> JobView:
    """Return a job: its state, input, progress and result."""
    return await app.jobs.get(id)


@routes.get("/api/_job/{id}/children")
async def list_job_children(app: App, id: str) -> list[ChildView]:
    """Return the children of a job with their results."""
    return list(await app.jobs.children(id))


@routes.get("/api/_job/{id}/children/counts")
async def count_job_children(app: App, id: str) -> dict[str, int]:
    """Return how many children of a job are processed, unprocessed, ignored and failed."""
    return await app.jobs.count_children(id)


@routes.get("/api/_job/{id}/logs")
async def list_job_logs(app: App, id: str, query: LogQuery) -> LogPage:
    """Return log lines of a job, oldest first."""
    return show_lines(
        await app.jobs.logs(id, attempt=query.attempt, level=query.level, after=query.after, limit=query.limit),
        query.limit,
    )


@routes.get("/api/_job/{id}/result")
async def wait_for_job(app: App, id: str, query: ResultQuery) -> Result:
    """Wait for a job to end and return its result."""
    return Result(await app.jobs.result(id, timeout=query.timeout))


@routes.post("/api/_job/{id}/retry")
async def retry_job(app: App, id: str, query: DryRunQuery) -> Done:
    """Put a failed or cancelled job back into its queue."""
    return show_done(await app.jobs.retry(id, dry_run=query.dry_run, version=query.version))


@routes.post("/api/_job/{id}/cancel")
async def cancel_job(app: App, id: str, query: DryRunQuery, body: ReasonBody) -> Done:
    """Cancel a plain job that has not ended, and its open children."""
    return show_done(await app.jobs.cancel(id, **body.arguments, dry_run=query.dry_run, version=query.version))


@routes.post("/api/_job/{id}/promote")
async def promote_job(app: App, id: str, query: JobDryRun) -> Done:
    """Make a delayed job due now."""
    return show_done(await app.jobs.promote(id, dry_run=query.dry_run))


@routes.delete("/api/_job/{id}")
async def remove_job(app: App, id: str, query: JobDryRun) -> Done:
    """Delete a plain job that no worker holds."""
    return show_done(await app.jobs.remove(id, dry_run=query.dry_run))


@routes.get("/api/_job/{id}/stack")
async def inspect_job(app: App, id: str, query: StackQuery) -> Inspection:
    """Return where the handler of a running job is: its stack, its memory and its last log line."""
    return await app.jobs.inspect(id, timeout=query.timeout)


@routes.post("/api/_runner/execute")
async def wait_for_handler(app: App, body: ExecuteBody) -> Executed:
    """Run a handler as a plain job, here or in a worker, and return its result."""
    id = await app.jobs.enqueue(body.queue, body.input, name=body.name, key=body.key)
    return Executed(id, await app.jobs.result(id, timeout=body.timeout))


@routes.post("/api/_runner/execute/stream", is_stream=True)
async def execute_handler(app: App, body: ExecuteBody) -> Response:
    """Run a handler as a plain job, here or in a worker, and follow it until it has ended."""
    frames = app.jobs.execute(body.queue, body.input, name=body.name, key=body.key)
    first = await anext(frames)  # a job that is refused is an error, not a stream

    async def send() -> AsyncIterator[bytes]:
        yield _show_frame(app, first)
        async for frame in frames:
            yield _show_frame(app, frame)

    return StreamingResponse(send(), headers=HEADERS)


def _show_frame(app: App, frame: ExecutionFrame) -> bytes:
    return named_frame(frame.event, app._bodies.redact_json(msgspec.json.encode(frame)))


def show_lines(lines: Sequence[LogView], limit: int) -> LogPage:
    """Return log lines as a page."""
    return LogPage(list(lines), lines[-1].id if len(lines) == limit else None)
