"""Run one handler now, as a plain job, and yield what happens to it as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from ..core.durations import Duration
from ..core.errors import NotRouted, UnknownJob
from ..core.events import Event
from ..core.ids import BadId
from ..core.outage_retry import deadline, limit_time
from ..ports.unit import JobState
from ..worker.routes import find_own_id
from ..worker.run_scope import WorkScope
from .run_reader import ROUTE_POLL_S

if TYPE_CHECKING:
    from .app import App

_FRAMES = {
    "job.added": "added",
    "job.active": "started",
    "job.progress": "progress",
    "log": "log",
    "job.partial": "partial",
    "job.returned": "returned",
    "job.completed": "completed",
    "job.failed": "failed",
    "job.cancelled": "cancelled",
}
MAX_EVENTS_READ = 1000  # of the queue, since the job was enqueued
_ENDS = ("completed", "failed", "cancelled")


class ExecutionFrame(msgspec.Struct, frozen=True, rename="camel"):
    """What happened to the job: added, started, log, progress, partial, retry, returned; last completed, failed or
    cancelled."""

    event: str
    job: str
    data: Any = None
    ts: str = ""

    @property
    def is_last(self) -> bool:
        """Whether the job has ended."""
        return self.event in _ENDS


async def execute(
    app: App,
    queue: str | Callable[..., Any],
    input: Any,
    name: str | None,
    key: str | None,
    timeout: Duration | None,
) -> AsyncGenerator[ExecutionFrame]:
    """Enqueue a job, run it here if its handler is loaded and no worker runs here, and yield its frames."""
    queue_name, known_name = app._transactions.direct.jobs.resolve(queue, name)
    stream = app._bodies.queue(queue_name)
    newest = await app.events.read(stream, limit=1, backward=True)
    # Read before the job is added: a new one may end at once, and its frames follow `newest`.
    if key is not None and (ended := await _read_ended(app, key)) is not None:
        yield ended
        return
    id = await app.jobs.enqueue(queue, input, name=name, key=key)
    handler, after = app.registry.job(queue_name, name or known_name or "*"), newest[0].id if newest else None
    async with _worker_of(app, queue_name, id):
        if key is None and handler is not None and handler.key_script is not None:
            async with deadline(f"job {id!r}", timeout, "its queue"):
                id = await _find_own_id(app, id)
            since = await app.events.read(stream, after=after, limit=MAX_EVENTS_READ)
            is_new = any(event.kind == "job.added" and event.subject == id for event in since)
            if not is_new and (ended := await _read_ended(app, id)) is not None:
                yield ended
                return
        events = app.events.subscribe(stream, after=after)
        async for event in limit_time(events, f"job {id!r}", timeout):
            frame = _to_frame(event, id)
            if frame is not None:
                yield frame
                if frame.is_last:
                    return


async def _find_own_id(app: App, id: str) -> str:
    """Return the id of the job that a worker adds once it has evaluated its key."""
    while True:
        try:
            return await find_own_id(app.store, id) or id
        except NotRouted:
            await asyncio.sleep(ROUTE_POLL_S)


@asynccontextmanager
async def _worker_of(app: App, queue: str, id: str) -> AsyncGenerator[None]:
    """Run a worker for this job only, if this process has the handler and no worker of its own."""
    if app.workers.is_running or queue not in app.registry.queues():
        yield
        return
    running = asyncio.create_task(app.workers._run_scoped([queue], WorkScope((), (id,))), name="penstock-execute")
    try:
        yield
    finally:
        app.workers.stop()
        await running


async def _read_ended(app: App, id: str) -> ExecutionFrame | None:
    """Return the end of a job whose key was used before; None for one that has not ended or is not there."""
    try:
        row = await app.jobs.get(id)
    except (UnknownJob, BadId):  # `enqueue` names a bad key
        return None
    if row.state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED):
        data = {"result": row.result} if row.state is JobState.COMPLETED else {"error": row.error}
        return ExecutionFrame(row.state.value, id, data)
    return None


def _to_frame(event: Event, id: str) -> ExecutionFrame | None:
    name = _FRAMES.get(event.kind)
    if name is None or event.subject != id:
        return None
    if name == "failed" and isinstance(event.data, dict) and event.data.get("willRetry"):
        name = "retry"
    return ExecutionFrame(name, id, event.data, event.ts)
