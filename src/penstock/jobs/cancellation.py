"""Cancelling plain jobs: one commit ends the job, records why and lets a worker cancel its children."""

from __future__ import annotations

import msgspec

from ..commit.command_sink import DirectSink
from ..commit.committer import CommitRequest
from ..commit.preview import CommandPlan
from ..commit.runtime import Runtime
from ..core.errors import RunError, RunMoved, UnknownJob
from ..core.events import EventBody
from ..core.payload import DECODE_ERRORS, pack, unpack
from ..ports.store import ChildState, JobRow
from ..ports.unit import CANCEL_CHILDREN, DELIVERIES, CancelJob, Committed, JobState, NewEvent, NewJob, Unit
from .engine import decode_options

MAX_PREVIEWED = 1_000  # jobs that a dry run shows
ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


class JobCancellation(msgspec.Struct):
    """The input of the internal job that cancels the children of a cancelled job."""

    job: str
    reason: str


def check_attempt(row: JobRow, expected: int) -> None:
    """Raise RunMoved if a job was claimed since a dry run."""
    if row.attempt != expected:
        raise RunMoved(
            f"job {row.id!r} has moved on: it has attempt {row.attempt}, not {expected}; look at it again, and repeat "
            "the dry run"
        )


class JobCommands:
    """Cancels plain jobs."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._sink = DirectSink(runtime.committer)

    async def cancel(self, id: str, reason: str, attempt: int | None = None) -> bool:
        """Cancel a plain job and its children. Return False if it has already ended.

        Raise RunMoved if the job has another attempt than expected."""
        while True:
            row = await self._store.job(id)
            if row is None:
                raise UnknownJob(f"no job with id {id!r} in this store; run `penstock queues` to see its queues")
            if row.run is not None:
                raise RunError(
                    f"job {id!r} belongs to run {row.run!r} and cannot be cancelled alone; cancel the run instead"
                )
            if attempt is not None:
                check_attempt(row, attempt)
            if row.state in ENDED:
                return False
            if await self._commit(await self._build_unit(row, reason, attempt)):
                return True
            # It has ended, or was claimed meanwhile: read it again.

    async def cancel_children(self, cancellation: JobCancellation) -> None:
        """Cancel the open children of a cancelled job. Calling it again changes nothing."""
        for child in await self._store.children(cancellation.job):
            if child.state is ChildState.UNPROCESSED:
                try:
                    await self.cancel(child.id, _because_of(cancellation))
                except UnknownJob:
                    continue  # it was removed

    async def add_to(self, plan: CommandPlan) -> None:
        """Add to a dry run what cancels the children right after the commit, and theirs."""
        for unit in plan.units:  # each child adds one
            for job in unit.jobs:
                if job.name != CANCEL_CHILDREN:
                    continue
                found = msgspec.convert(unpack(job.payload), JobCancellation)
                for child in await self._store.children(found.job):
                    if child.state is not ChildState.UNPROCESSED:
                        continue
                    if len(plan.units) >= MAX_PREVIEWED:
                        return
                    try:
                        await self.cancel(child.id, _because_of(found))
                    except UnknownJob:
                        continue

    async def _commit(self, unit: Unit) -> bool:
        return isinstance(await self._sink.submit(CommitRequest(lambda _v, _r: unit)), Committed)

    async def _build_unit(self, row: JobRow, reason: str, attempt: int | None) -> Unit:
        error = pack({"error": reason, "name": "JobCancelled", "code": "cancelled"}, "the reason of a cancellation")
        unit = Unit(
            self._runtime.new_unit_id(),
            cancels=[CancelJob(row.id, error, attempt)],
            events=[self._event(row, reason)],
        )
        children = await self._store.children(row.id)
        if any(child.state is ChildState.UNPROCESSED for child in children):
            payload = pack(JobCancellation(row.id, reason), "the reason of a cancellation")
            unit.jobs = [NewJob(f"cancel.{unit.id}", DELIVERIES, CANCEL_CHILDREN, payload)]
        return unit

    def _event(self, row: JobRow, reason: str) -> NewEvent:
        bodies = self._runtime.bodies
        try:
            correlation_id = decode_options(row.opts).correlation_id
        except DECODE_ERRORS:
            correlation_id = None
        data = msgspec.Raw(pack({"reason": reason}))
        meta = {"attempt": row.attempt, "name": row.name}
        body = EventBody("job.cancelled", row.id, correlation_id=correlation_id, data=data, meta=meta)
        return NewEvent(bodies.queue(row.queue), bodies.encode(body))


def _because_of(cancellation: JobCancellation) -> str:
    return f"its parent {cancellation.job} was cancelled: {cancellation.reason}"
