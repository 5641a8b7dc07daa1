"""`app.jobs`: enqueue plain jobs, look at them, wait for them, act on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, overload

import msgspec

from ..commit.preview import Preview, is_dry_run, note, read_version, run_planned
from ..core.argument_checks import check_arguments, resolve_due
from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument, NotRouted, RunError, RunFailed, UnknownJob
from ..core.ids import dead_letter_id
from ..core.outage_retry import OutageRetry, deadline
from ..core.payload import show_stored
from ..core.retry import RetryOption
from ..handlers.options import KeepOption
from ..jobs.cancellation import JobCommands, check_attempt
from ..jobs.job_trees import JobTree, Node
from ..ports.store import ChildRow, ChildState, JobRow
from ..ports.unit import JobState, Unit
from ..stores.child_results import error_text
from ..worker.handler_inspection import Inspection
from ..worker.routes import find_own_id
from .arguments import build_dedupe, check_choice, check_list
from .enqueuer import EnqueuedJob
from .executions import ExecutionFrame, execute
from .log_lines import LogView, build_filter, read_job_lines, read_run_lines
from .run_reader import ROUTE_POLL_S
from .views import ChildView, JobPage, JobView, add_stack, job_view, read_error

if TYPE_CHECKING:
    from .app import App

MAX_WAITS_READ = 1000  # of one run
PAGE_JOBS = 200
MAX_JOBS_SCANNED = 10_000  # by one look-up by name
MAX_EVENTS_SEARCHED = 1000  # of a queue, for the end of a job that was removed


@check_arguments
class Jobs:
    """Plain jobs: queued work that belongs to no run. Steps of runs can be read here too."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._store = app.store
        self._commands = JobCommands(app._runtime)

    async def enqueue(
        self,
        queue: str | Callable[..., Any],
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
        tx: Any = None,
    ) -> str:
        """Enqueue a job and return its id.

        Args:
            queue: A queue's name, or a function marked with `@job`.
            input: What the handler receives: any JSON value, dataclass, msgspec or pydantic model.
            key: Idempotency key. It becomes the job's id; a key that exists adds nothing.
            name: Name of the job, if several handlers share the queue.
            delay: How long to wait before the job is due, such as "10m".
            at: When the job is due, a datetime with a time zone. Instead of `delay`.
            priority: Lower runs first. Default 0, or what the handler declares.
            retry: Retry policy of this job instead of the handler's: a number of attempts, a mapping or a RetryPolicy.
            correlation_id: Stored with the job and its events, to find what belongs together.
            dedupe: A key within the queue. While another job holds it, nothing is added and that job's id is returned.
            dedupe_ttl: How long the dedupe key is held. Default: until the job has ended.
            keep_completed: What stays of the job when it completes: True, False, a number of jobs or an age.
            keep_failed: The same for a job that failed.
            order_key: Jobs of the queue with the same key run one at a time, in the order in which they were committed.
            tx: A connection or session of your own; the job is added when its transaction commits.
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
                tx=tx,
            )
        )

    async def _enqueue(
        self,
        queue: str | Callable[..., Any],
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
        tx: Any = None,
    ) -> EnqueuedJob:
        """Enqueue a job and return its id, which says whether the job is new."""
        if tx is not None and dedupe is not None:
            raise BadArgument(
                "dedupe= cannot be used with tx=: the job that holds the key is only known at commit. Use key= instead"
            )
        ids = await self._app._transactions.write(
            tx,
            lambda writers: writers.jobs.enqueue(
                queue,
                [input],
                name=name,
                key=key,
                due=resolve_due(delay, at, self._app.clock),
                priority=priority,
                retry=retry,
                correlation_id=correlation_id,
                keep_completed=keep_completed,
                keep_failed=keep_failed,
                dedupe=build_dedupe(dedupe, dedupe_ttl),
                order_key=order_key,
            ),
        )
        return ids[0] if isinstance(ids[0], EnqueuedJob) else EnqueuedJob(ids[0])

    async def enqueue_many(
        self,
        queue: str | Callable[..., Any],
        inputs: Sequence[Any],
        *,
        name: str | None = None,
        delay: Duration | None = None,
        priority: int | None = None,
        retry: RetryOption | None = None,
        keep_completed: KeepOption | None = None,
        keep_failed: KeepOption | None = None,
        order_key: str | None = None,
        tx: Any = None,
    ) -> list[str]:
        """Enqueue many jobs, a few hundred per commit, and return their ids in order.

        Args:
            queue: A queue's name, or a function marked with `@job`.
            inputs: One input per job.
            name: Name of the jobs, if several handlers share the queue.
            delay: How long to wait before the jobs are due.
            priority: Lower runs first.
            retry: Retry policy of these jobs instead of the handler's.
            keep_completed: What stays of each job when it completes.
            keep_failed: The same for jobs that failed.
            order_key: Key of all these jobs: they run one at a time, in order.
            tx: A connection or session of your own; all or none of the jobs are added when its transaction commits.
        """
        ids = await self._app._transactions.write(
            tx,
            lambda writers: writers.jobs.enqueue(
                queue,
                inputs,
                name=name,
                due=resolve_due(delay, None, self._app.clock),
                priority=priority,
                retry=retry,
                keep_completed=keep_completed,
                keep_failed=keep_failed,
                order_key=order_key,
            ),
        )
        return [*map(str, ids)]

    async def enqueue_tree(self, tree: Node | Mapping[str, Any], *, correlation_id: str | None = None) -> JobTree:
        """Enqueue a job with its children, and theirs, in one commit, and return their ids.

        A parent runs when all its children have ended, and can read their results. A tree whose root has a key is
        added once.

        Args:
            tree: A `Node`, or the dict that BullMQ's FlowProducer takes.
            correlation_id: Stored with every job of the tree.
        """
        return await self._app._transactions.direct.jobs.enqueue_tree(tree, correlation_id)

    async def get(self, id: str) -> JobView:
        """Return a job. Raise UnknownJob if there is none.

        Args:
            id: The job's id.
        """
        return await self._view(await self._row(id))

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

        The page is a list. Its `cursor` continues it; `is_cut` is True if a look-up by name has read 10,000 jobs before
        the page was full.

        Args:
            queue: The queue's name.
            state: waiting, delayed, active, suspended, completed, failed, cancelled, waiting-children or held.
            states: Several states, instead of `state`.
            name: Only jobs with this name. Names have no index: the jobs of the states are read in order.
            after: The `cursor` of the page before, or the id of its last job if it lists one state.
            limit: Maximum number of jobs.
        """
        wanted = _read_states([state] if states is None else check_list(states, "states"))
        first, after = _read_cursor(after, wanted)
        found: Sequence[JobView] = ()
        scanned = 0
        for one in wanted[first:]:
            while True:
                size = limit - len(found) if name is None else PAGE_JOBS
                page = await self._page(queue, one, after, size)
                scanned += len(page)
                for job in page:
                    if name is None or job.name == name:
                        found = [*found, job]
                        if len(found) == limit:
                            return JobPage(found, f"{one.value}/{job.id}")
                if len(page) < size:
                    break
                after = page[-1].id
                if scanned >= MAX_JOBS_SCANNED:
                    return JobPage(found, f"{one.value}/{after}", is_cut=True)
            after = None
        return JobPage(found)

    async def logs(
        self,
        id: str,
        *,
        attempt: int | None = None,
        level: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[LogView]:
        """Return log lines of a job, oldest first. They are kept as long as the events of its queue, or of its run.

        Args:
            id: The job's id.
            attempt: Only lines of this attempt.
            level: Only lines of this level and above: debug, info, warning or error.
            after: Id of the last line of the page before.
            limit: Maximum number of lines.
        """
        wanted = build_filter(None, attempt, level)
        row = await self._find(id)
        id = row.id if row is not None else id
        if row is not None and row.run is not None:
            run = await self._app._run_reader.row(row.run)
            step, n = self._app._engines.of_run(run).instance(row)
            stream = self._app._bodies.run(run.kind, run.id)
            return await read_run_lines(self._store, stream, build_filter(step, attempt, level, n), after, limit)
        found = await read_job_lines(self._store, id, wanted, after, limit)
        if row is None and not found and after is None:
            raise _unknown_job(id)
        return found

    async def _page(self, queue: str, state: JobState, after: str | None, limit: int) -> Sequence[JobView]:
        if state is JobState.DELAYED:
            return [job_view(row) for row in await self._delayed(queue, after, limit, suspended=False)]
        if state is not JobState.SUSPENDED:
            return [job_view(row) for row in await self._store.jobs(queue, state, after=after, limit=limit)]
        # First the waits without a timeout, then those with one.
        last = await self._store.job(after) if after is not None else None
        rows: Sequence[JobRow] = ()
        if last is None or last.state is not JobState.DELAYED:
            rows, after = await self._store.jobs(queue, state, after=after, limit=limit), None
        late = await self._delayed(queue, after, limit - len(rows), suspended=True) if len(rows) < limit else ()
        return [job_view(row) for row in (*rows, *late)]

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Wait for a job to end and return its result. Raise RunFailed if it failed or was cancelled.

        Args:
            id: The job's id.
            timeout: Raise WaitTimeout after this long.
        """
        async with deadline(f"job {id!r}", timeout, "its queue") as outage_retry:
            return await self._result(await self._await_own_id(id, outage_retry), None, outage_retry)

    async def _await_own_id(self, id: str, outage_retry: OutageRetry) -> str:
        """Return the id of the job that an id stands for, once a worker has evaluated its key."""
        while True:
            try:
                row = await outage_retry.call(self._find, id)
            except NotRouted:
                await asyncio.sleep(ROUTE_POLL_S)
            else:
                return row.id if row is not None else id

    def execute(
        self,
        queue: str | Callable[..., Any],
        input: Any = None,
        *,
        name: str | None = None,
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> AsyncIterator[ExecutionFrame]:
        """Run one handler now, recorded as a plain job, and yield what happens: its log lines, progress, partial output
        and retries, and last how it ended.

        If this process has the handler and runs no worker, it runs the job itself, and nothing else. Otherwise a worker
        takes it from its queue.

        Args:
            queue: A queue's name, or a function marked with `@job`.
            input: What the handler receives.
            name: Name of the job, if several handlers share the queue.
            key: Idempotency key. A job of this key that has ended is not run again: its end is the only frame.
            timeout: Raise WaitTimeout if the job has not ended after this long. It stays in its queue. Default: none.
        """
        return execute(self._app, queue, input, name, key, timeout)

    async def inspect(self, id: str, *, timeout: Duration = 5.0) -> Inspection:
        """Return where the handler of a running job is: its stack, the memory of its process, and its last log line.

        The worker that runs it answers, in any process on this store, within about a second. Raise RunError if the job
        does not run, WaitTimeout if no worker answers.

        Args:
            id: The job's id.
            timeout: How long to wait for the answer.
        """
        return await self._app.workers.inspections.inspect(await self._own_id(id), to_ms(timeout) / 1000)

    @overload
    async def retry(
        self, id: str, *, dry_run: Literal[False] = False, version: int | Preview | None = None
    ) -> bool: ...

    @overload
    async def retry(self, id: str, *, dry_run: Literal[True], version: int | Preview | None = None) -> Preview: ...

    @overload
    async def retry(self, id: str, *, dry_run: bool, version: int | Preview | None = None) -> bool | Preview: ...

    async def retry(self, id: str, *, dry_run: bool = False, version: int | Preview | None = None) -> bool | Preview:
        """Put a failed or cancelled job back into its queue and remove its dead letter. Return False if it is neither.
        A job with an order key goes to the end of its key.

        Steps of runs are retried with `app.runs.retry`.

        Args:
            id: The job's id.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The job's attempt, or a Preview: raise RunMoved if a worker has claimed the job since.
        """
        row = await self._row(id)
        expected = read_version(version, row.id)
        if expected is not None:
            check_attempt(row, expected)
        done, preview = await run_planned(self._store, None, dry_run, None, lambda: self._retry(row))
        return done if preview is None else _about_job(preview, row)

    async def _retry(self, row: JobRow) -> bool:
        letter = dead_letter_id(row.id)
        if is_dry_run():
            if row.run is not None or row.state not in (JobState.FAILED, JobState.CANCELLED):
                return False
            has_letter = row.state is JobState.FAILED and await self._store.job(letter) is not None
            note(Unit("", removes=[letter] if has_letter else [], wakes=[row.id]))
            return True
        if row.state is JobState.FAILED and row.run is None:
            await self._store.remove(letter)  # first: the job may leave another one at once
        return await self._store.retry(row.id)

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

        A worker that runs it loses its lease: the handler is interrupted as by the cancellation of a run, and nothing
        of the attempt is recorded. A parent takes the cancellation as a failure of the child. A step belongs to its
        run: cancel the run instead.

        Args:
            id: The job's id.
            reason: Recorded in the `job.cancelled` event, and shown as the job's error.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The job's attempt, or a Preview: raise RunMoved if a worker has claimed the job since.
        """
        row = await self._find(id)
        job = row.id if row is not None else id
        expected = read_version(version, job)
        commands = self._commands
        done, preview = await run_planned(
            self._store, None, dry_run, None, lambda: commands.cancel(job, reason, expected), commands.add_to
        )
        return done if preview is None or row is None else _about_job(preview, row)

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
        row = await self._row(id)
        if row.waits_for is not None:
            raise RunError(
                f"cannot promote job {id!r}: it waits for job {row.waits_for!r}, which has the same order key "
                f"{row.order_key!r}. Promote or remove {row.waits_for!r} first"
            )
        is_waiting = await self._is_suspended(row)
        if dry_run:
            return Preview(woken_jobs=(row.id,) if row.state is JobState.DELAYED and not is_waiting else ())
        return not is_waiting and await self._store.promote(row.id)

    @overload
    async def remove(self, id: str, *, dry_run: Literal[False] = False) -> bool: ...

    @overload
    async def remove(self, id: str, *, dry_run: Literal[True]) -> Preview: ...

    @overload
    async def remove(self, id: str, *, dry_run: bool) -> bool | Preview: ...

    async def remove(self, id: str, *, dry_run: bool = False) -> bool | Preview:
        """Delete a plain job that no worker holds. A step belongs to its run: cancel the run instead.

        Args:
            id: The job's id.
            dry_run: Write nothing, and return a Preview of what would be written.
        """
        row = await self._row(id)
        if row.run is not None and row.state in (JobState.WAITING, JobState.DELAYED, JobState.SUSPENDED):
            raise RunError(f"job {id!r} belongs to run {row.run!r} and cannot be removed alone; cancel the run instead")
        if dry_run:
            return Preview(removed_jobs=(row.id,) if row.state is not JobState.ACTIVE else ())
        return await self._store.remove(row.id)

    async def children(self, id: str) -> Sequence[ChildView]:
        """Return the children of a job with their results or failures; none if it was not added as a parent.

        Args:
            id: The job's id.
        """
        return [await self._child(row) for row in await self._store.children((await self._row(id)).id)]

    async def count_children(self, id: str) -> dict[str, int]:
        """Return how many children of a job are processed, unprocessed, ignored and failed.

        Args:
            id: The job's id.
        """
        rows = await self._store.children((await self._row(id)).id)
        return {state.value: sum(row.state is state for row in rows) for state in ChildState}

    async def _child(self, row: ChildRow) -> ChildView:
        value = show_stored(row.value) if row.value is not None else None
        why = row.reason
        if row.state is ChildState.FAILED and why is None:
            # Not every store keeps the reason with the parent: it is in the child itself, as long as that is kept.
            job = await self._store.job(row.id)
            why = error_text(job.error) if job is not None and job.error is not None else None
        return ChildView(row.key, row.queue, row.id, row.state, value, why)

    async def _result(self, id: str, queue: str | None, outage_retry: OutageRetry) -> Any:
        """Wait for the job. One that was removed when it ended is found by its last event, if its queue is known."""
        stream = self._app._bodies.queue(queue or (await outage_retry.call(self._row, id)).queue)
        with self._store.signals.listen(f"stream:{stream}") as listener:
            while True:
                row = await outage_retry.call(self._store.job, id)
                if row is None:
                    return await outage_retry.call(self._result_from_events, stream, id)
                if row.state == JobState.COMPLETED:
                    return show_stored(row.result) if row.result is not None else None
                if row.state in (JobState.FAILED, JobState.CANCELLED):
                    error = read_error(row.error) if row.error is not None else {}
                    problem = RunFailed(f"job {id!r} {row.state.value}: {error.get('error', '')}")
                    add_stack(problem, error)
                    raise problem
                await listener.wait(1.0)

    async def _result_from_events(self, stream: str, id: str) -> Any:
        for event in await self._store.read(stream, limit=MAX_EVENTS_SEARCHED, backward=True):
            if event.subject == id and event.kind == "job.completed":
                return event.data["result"] if isinstance(event.data, dict) and "result" in event.data else None
            if event.subject == id and event.kind in ("job.failed", "job.cancelled"):
                data = event.data if isinstance(event.data, dict) else {}
                problem = RunFailed(f"job {id!r} {event.kind.removeprefix('job.')}: {data.get('error', '')}")
                add_stack(problem, event.data)
                raise problem
        raise _unknown_job(id)

    async def _is_suspended(self, row: JobRow) -> bool:
        """Return whether a job waits. A wait with a timeout is in the queue as delayed, until that time."""
        if row.state is not JobState.DELAYED or row.run is None:
            return row.state is JobState.SUSPENDED
        waits = await self._store.waits(run=row.run, limit=MAX_WAITS_READ)
        return any(wait.job == row.id and wait.due == row.due for wait in waits)

    async def _delayed(self, queue: str, after: str | None, limit: int, *, suspended: bool) -> Sequence[JobRow]:
        """Return jobs that are in the queue as delayed: those that wait, or the others."""
        found: Sequence[JobRow] = []
        while len(found) < limit and (
            rows := await self._store.jobs(queue, JobState.DELAYED, after=after, limit=PAGE_JOBS)
        ):
            found = [*found, *[row for row in rows if await self._is_suspended(row) is suspended]]
            after = rows[-1].id
            if len(rows) < PAGE_JOBS:
                break
        state = JobState.SUSPENDED if suspended else JobState.DELAYED
        return [msgspec.structs.replace(row, state=state) for row in found[:limit]]

    async def _view(self, row: JobRow) -> JobView:
        if row.state is JobState.DELAYED and await self._is_suspended(row):
            row = msgspec.structs.replace(row, state=JobState.SUSPENDED)
        return job_view(row)

    async def _find(self, id: str) -> JobRow | None:
        """Return the row of a job, also by an id that stands for it. Raise NotRouted if its key is not known yet."""
        row = await self._store.job(id)
        if row is None and (own := await find_own_id(self._store, id)) is not None:
            row = await self._store.job(own)
        return row

    async def _own_id(self, id: str) -> str:
        row = await self._find(id)
        return row.id if row is not None else id

    async def _row(self, id: str) -> JobRow:
        row = await self._find(id)
        if row is None:
            raise _unknown_job(id)
        return row


def _about_job(preview: Preview, row: JobRow) -> Preview:
    return msgspec.structs.replace(preview, job=row.id, version=row.attempt)


def _read_states(states: Sequence[Any]) -> list[JobState]:
    known = [one.value for one in JobState]
    found = list(dict.fromkeys(JobState(check_choice(state, known, "state")) for state in states))
    if not found:
        raise BadArgument('states must name at least one state, such as ["failed"]')
    return found


def _read_cursor(cursor: str | None, states: Sequence[JobState]) -> tuple[int, str | None]:
    """Return where a list continues: the index of the state, and the id of the last job."""
    if cursor is None:
        return 0, None
    word, slash, id = cursor.partition("/")
    if not slash and len(states) == 1:
        return 0, cursor
    if not slash or word not in states:
        raise BadArgument(
            f"after must be the cursor of a page that lists the same states ({', '.join(states)}), got {cursor!r}"
        )
    return states.index(JobState(word)), id


def _unknown_job(id: str) -> UnknownJob:
    return UnknownJob(f"no job with id {id!r}; it may have been removed, or be in another store")
