"""`client.jobs`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, overload

import msgspec

from ..app.arguments import check_list
from ..app.enqueuer import EnqueuedJob
from ..app.executions import ExecutionFrame
from ..app.log_lines import LogView
from ..app.views import ChildView, JobPage, JobView
from ..commit.preview import Preview
from ..core.argument_checks import check_arguments
from ..core.durations import Duration, to_ms
from ..core.outage_retry import limit_time
from ..core.retry import RetryOption
from ..core.text import to_text
from ..handlers.options import KeepOption
from ..jobs.job_trees import JobTree
from ..ports.unit import JobState
from ..worker.handler_inspection import Inspection
from .connection import Connection, Page
from .times import show_duration, show_timeout

JOB = "/api/_job/{}"
Children = list[ChildView]


class _Jobs(msgspec.Struct, rename="camel"):
    items: list[JobView]
    next: str | None = None
    is_cut: bool = False


class _Enqueued(msgspec.Struct):
    id: str
    existing: bool = False


@check_arguments
class Jobs:
    """Plain jobs. Steps of runs can be read here too."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def enqueue(
        self,
        queue: str,
        input: Any = None,
        *,
        key: str | None = None,
        name: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        retry: RetryOption | None = None,
        correlation_id: str | None = None,
        dedupe: str | None = None,
        dedupe_ttl: Duration | None = None,
        keep_completed: KeepOption | None = None,
        keep_failed: KeepOption | None = None,
        order_key: str | None = None,
    ) -> str:
        """Enqueue a job and return its id.

        Args:
            queue: The queue's name.
            input: What the handler receives: any JSON value, dataclass, msgspec or pydantic model.
            key: Idempotency key. It becomes the job's id; a key that exists adds nothing.
            name: Name of the job, if several handlers share the queue.
            delay: How long to wait before the job is due, such as "10m".
            at: When the job is due, a datetime with a time zone. Instead of `delay`.
            priority: Lower runs first.
            retry: Retry policy of this job instead of the handler's: a number of attempts or a mapping.
            correlation_id: Stored with the job and its events.
            dedupe: A key within the queue. While another job holds it, nothing is added and that job's id is returned.
            dedupe_ttl: How long the dedupe key is held. Default: until the job has ended.
            keep_completed: What stays of the job when it completes: True, False, a number of jobs or an age.
            keep_failed: The same for a job that failed.
            order_key: Jobs of the queue with the same key run one at a time, in the order in which they were committed.
        """
        return str(
            await self._enqueue(
                queue,
                input,
                key=key,
                name=name,
                delay=delay,
                at=at,
                priority=priority,
                retry=retry,
                correlation_id=correlation_id,
                dedupe=dedupe,
                dedupe_ttl=dedupe_ttl,
                keep_completed=keep_completed,
                keep_failed=keep_failed,
                order_key=order_key,
            )
        )

    async def _enqueue(
        self,
        queue: str,
        input: Any = None,
        *,
        key: str | None = None,
        name: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        retry: RetryOption | None = None,
        correlation_id: str | None = None,
        dedupe: str | None = None,
        dedupe_ttl: Duration | None = None,
        keep_completed: KeepOption | None = None,
        keep_failed: KeepOption | None = None,
        order_key: str | None = None,
    ) -> EnqueuedJob:
        """Enqueue a job and return its id, which says whether the job is new."""
        added = await self._connection.post(
            _Enqueued,
            "/api/_queue/{}/jobs",
            queue,
            input=input,
            key=key,
            name=name,
            delay=show_duration(delay),
            at=at,
            priority=priority,
            retry=retry,
            correlationId=correlation_id,
            dedupe=dedupe,
            dedupeTtl=show_duration(dedupe_ttl),
            keepCompleted=keep_completed,
            keepFailed=keep_failed,
            orderKey=order_key,
        )
        return EnqueuedJob(added.id, added.existing)

    async def enqueue_many(
        self,
        queue: str,
        inputs: Sequence[Any],
        *,
        name: str | None = None,
        delay: Duration | None = None,
        priority: int | None = None,
        retry: RetryOption | None = None,
        keep_completed: KeepOption | None = None,
        keep_failed: KeepOption | None = None,
        order_key: str | None = None,
    ) -> list[str]:
        """Enqueue many jobs and return their ids in order.

        Args:
            queue: The queue's name.
            inputs: One input per job.
            name: Name of the jobs, if several handlers share the queue.
            delay: How long to wait before the jobs are due.
            priority: Lower runs first.
            retry: Retry policy of these jobs instead of the handler's.
            keep_completed: What stays of the job when it completes: True, False, a number of jobs or an age.
            keep_failed: The same for a job that failed.
            order_key: Key of all these jobs: they run one at a time, in order.
        """
        answer = await self._connection.post(
            dict[str, list[str]],
            "/api/_queue/{}/jobs/bulk",
            queue,
            inputs=check_list(inputs, "inputs"),
            name=name,
            delay=show_duration(delay),
            priority=priority,
            retry=retry,
            keepCompleted=keep_completed,
            keepFailed=keep_failed,
            orderKey=order_key,
        )
        return answer["ids"]

    async def enqueue_tree(self, tree: Mapping[str, Any], *, correlation_id: str | None = None) -> JobTree:
        """Enqueue a job with its children, and theirs, in one commit, and return their ids.

        Args:
            tree: The dict that BullMQ's FlowProducer takes.
            correlation_id: Stored with every job of the tree.
        """
        return await self._connection.post(JobTree, "/api/_job/tree", tree=tree, correlationId=correlation_id)

    async def get(self, id: str) -> JobView:
        """Return a job.

        Args:
            id: The job's id.
        """
        return await self._connection.get(JobView, JOB, id)

    async def list(
        self,
        queue: str,
        state: JobState | str = JobState.WAITING,
        *,
        states: Sequence[JobState | str] | None = None,
        name: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> JobPage:
        """Return a page of a queue's jobs in one state, or in several, one state after the other.

        Args:
            queue: The queue's name.
            state: waiting, delayed, active, suspended, completed, failed, cancelled, waiting-children or held.
            states: Several states, instead of `state`.
            name: Only jobs with this name.
            after: The `cursor` of the page before, or the id of its last job if it lists one state.
            limit: Maximum number of jobs.
        """
        wanted = [to_text(one) for one in ([state] if states is None else check_list(states, "states"))]
        page = await self._connection.get(
            _Jobs, "/api/_queue/{}/jobs", queue, state=wanted, name=name, after=after, limit=limit
        )
        return JobPage(page.items, page.next, page.is_cut)

    async def logs(
        self,
        id: str,
        *,
        attempt: int | None = None,
        level: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[LogView]:
        """Return log lines of a job, oldest first.

        Args:
            id: The job's id.
            attempt: Only lines of this attempt.
            level: Only lines of this level and above: debug, info, warning or error.
            after: Id of the last line of the page before.
            limit: Maximum number of lines.
        """
        page = await self._connection.get(
            Page[LogView], JOB + "/logs", id, attempt=attempt, level=level, after=after, limit=limit
        )
        return page.items

    async def execute(
        self,
        queue: str,
        input: Any = None,
        *,
        name: str | None = None,
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> AsyncIterator[ExecutionFrame]:
        """Run one handler now, recorded as a plain job, and yield what happens until it has ended.

        Args:
            queue: A queue's name.
            input: What the handler receives.
            name: Name of the job, if several handlers share the queue.
            key: Idempotency key. A job of this key that has ended is not run again: its end is the only frame.
            timeout: Raise WaitTimeout if the job has not ended after this long. It stays in its queue. Default: none.
        """
        body = {"queue": queue, "input": input, "name": name, "key": key}
        messages = self._connection.stream("POST", "/api/_runner/execute/stream", body)
        async for message in limit_time(messages, f"a job of queue {queue!r}", timeout):
            yield msgspec.json.decode(message.data, type=ExecutionFrame)

    async def inspect(self, id: str, *, timeout: Duration = 5.0) -> Inspection:
        """Return where the handler of a running job is: its stack, the memory of its process, and its last log line.

        Args:
            id: The job's id.
            timeout: How long to wait for the worker's answer.
        """
        return await self._connection.get(Inspection, JOB + "/stack", id, timeout=to_ms(timeout) / 1000)

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Wait for a job to end and return its result. Raise RunFailed if it failed or was cancelled.

        Args:
            id: The job's id.
            timeout: Raise WaitTimeout after this long.
        """
        return await self._connection.wait_for_result(JOB + "/result", id, timeout=show_timeout(timeout))

    @overload
    async def retry(
        self, id: str, *, dry_run: Literal[False] = False, version: int | Preview | None = None
    ) -> bool: ...

    @overload
    async def retry(self, id: str, *, dry_run: Literal[True], version: int | Preview | None = None) -> Preview: ...

    @overload
    async def retry(self, id: str, *, dry_run: bool, version: int | Preview | None = None) -> bool | Preview: ...

    async def retry(self, id: str, *, dry_run: bool = False, version: int | Preview | None = None) -> bool | Preview:
        """Put a failed or cancelled job back into its queue. Return False if it is neither.

        Args:
            id: The job's id.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The job's attempt, or a Preview: raise RunMoved if a worker has claimed the job since.
        """
        return await self._connection.act_for_ok(JOB + "/retry", id, dry_run=dry_run, version=version)

    @overload
    async def cancel(
        self,
        id: str,
        reason: str = "cancelled",
        *,
        dry_run: Literal[False] = False,
        version: int | Preview | None = None,
    ) -> bool: ...

    @overload
    async def cancel(
        self, id: str, reason: str = "cancelled", *, dry_run: Literal[True], version: int | Preview | None = None
    ) -> Preview: ...

    @overload
    async def cancel(
        self, id: str, reason: str = "cancelled", *, dry_run: bool, version: int | Preview | None = None
    ) -> bool | Preview: ...

    async def cancel(
        self, id: str, reason: str = "cancelled", *, dry_run: bool = False, version: int | Preview | None = None
    ) -> bool | Preview:
        """Cancel a plain job that has not ended, and its open children. Return False if it has ended.

        Args:
            id: The job's id.
            reason: Recorded in the `job.cancelled` event, and shown as the job's error.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The job's attempt, or a Preview: raise RunMoved if a worker has claimed the job since.
        """
        return await self._connection.act_for_ok(
            JOB + "/cancel", id, dry_run=dry_run, version=version, body={"reason": reason}
        )

    @overload
    async def promote(self, id: str, *, dry_run: Literal[False] = False) -> bool: ...

    @overload
    async def promote(self, id: str, *, dry_run: Literal[True]) -> Preview: ...

    @overload
    async def promote(self, id: str, *, dry_run: bool) -> bool | Preview: ...

    async def promote(self, id: str, *, dry_run: bool = False) -> bool | Preview:
        """Make a delayed job due now. Return False if it is not delayed, or is a step that waits.

        Args:
            id: The job's id.
            dry_run: Write nothing, and return a Preview of what would be written.
        """
        return await self._connection.act_for_ok(JOB + "/promote", id, dry_run=dry_run)

    @overload
    async def remove(self, id: str, *, dry_run: Literal[False] = False) -> bool: ...

    @overload
    async def remove(self, id: str, *, dry_run: Literal[True]) -> Preview: ...

    @overload
    async def remove(self, id: str, *, dry_run: bool) -> bool | Preview: ...

    async def remove(self, id: str, *, dry_run: bool = False) -> bool | Preview:
        """Delete a plain job that no worker holds.

        Args:
            id: The job's id.
            dry_run: Write nothing, and return a Preview of what would be written.
        """
        return await self._connection.act_for_ok(JOB, id, dry_run=dry_run, method="DELETE")

    async def children(self, id: str) -> Sequence[ChildView]:
        """Return the children of a job with their results or failures.

        Args:
            id: The job's id.
        """
        return await self._connection.get(Children, JOB + "/children", id)

    async def count_children(self, id: str) -> dict[str, int]:
        """Return how many children of a job are processed, unprocessed, ignored and failed.

        Args:
            id: The job's id.
        """
        return await self._connection.get(dict[str, int], JOB + "/children/counts", id)
