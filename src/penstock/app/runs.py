"""`app.runs`: start runs, look at them, wait for them, act on them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from ..core.arguments import check_arguments, check_tags, resolve_due
from ..core.clock import datetime_to_ms, to_iso
from ..core.durations import Duration, to_ms
from ..core.errors import (
    PayloadTooLarge,
    RunCancelled,
    RunError,
    RunFailed,
    UnknownKind,
    UnknownRun,
    UnreadableRecord,
    WaitTimeout,
)
from ..core.events import Event
from ..core.ids import BadId, event_seq
from ..core.outage_retry import OutageRetry, deadline
from ..core.payload import to_plain, unpack
from ..flows.fork import RunForker
from ..flows.reducer import RunView
from ..flows.run_record import COMPLETED, OPEN, STATUSES, WAITING
from ..ports.store import RunRow
from ..ports.unit import FLOW
from ..worker.engines import RunEngine
from . import diagnosis, export, preflight, run_actions
from .arguments import UNSET, NoInput, StartOptions, check_choice
from .store_urls import shown_url
from .views import RunSummary, add_stack, run_summary
from .waits import describe_wait

if TYPE_CHECKING:
    from .app import App
    from .dead_letters import RedriveResult

OPEN_STATUS = "open"  # every run that has not ended
MAX_WAITS_SHOWN = 3
I = TypeVar("I")  # noqa: E741
"""The input of a flow."""


@check_arguments
class Runs:
    """Runs of flows."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._store = app.store
        self._forks = RunForker(app._engine)

    @overload
    async def start(self, flow: str, input: Any = None, **options: Unpack[StartOptions]) -> str: ...

    @overload
    async def start(self, flow: NoInput, input: None = None, **options: Unpack[StartOptions]) -> str: ...

    @overload
    async def start(self, flow: Callable[[I, Any], Any], input: I, **options: Unpack[StartOptions]) -> str: ...

    @overload
    async def start(self, flow: Callable[[I], Any], input: I, **options: Unpack[StartOptions]) -> str: ...

    async def start(
        self,
        flow: str | Callable[..., Any],
        input: Any = None,
        *,
        key: str | None = None,
        correlation_id: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        tags: Mapping[str, str] | None = None,
        tx: Any = None,
    ) -> str:
        """Start a run of a flow and return its id.

        Args:
            flow: A flow's name, or the function marked with `@flow`.
            input: What the first step receives: any JSON value, dataclass, msgspec or pydantic model.
            key: Idempotency key. It becomes the run's id; a key that exists starts nothing.
            correlation_id: Stored with every event of the run. Default: the run's id.
            priority: Of the run's steps; lower runs first.
            delay: How long to wait before the first step is due, such as "10m".
            at: When the first step is due, a datetime with a time zone. Instead of `delay`.
            tags: Names and values to find the run by: `app.runs.list(tags=...)`.
            tx: A connection or session of your own; the run starts when its transaction commits.
        """
        id, _ = await self._start(
            flow,
            input,
            key=key,
            correlation_id=correlation_id,
            priority=priority,
            delay=delay,
            at=at,
            tags=tags,
            tx=tx,
        )
        return id

    async def _start(
        self,
        flow: str | Callable[..., Any],
        input: Any,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        tx: Any = None,
        **options: Any,
    ) -> tuple[str, bool]:
        """Start a run. Return its id, and whether it is new: a key that was used before starts nothing."""
        due = resolve_due(delay, at, self._app.clock)
        async with self._app._transactions.writers(tx) as writers:
            return await writers.runs.start(flow, input, due=due, **options)

    async def get(self, id: str) -> RunView:
        """Return a run's state, folded from its events. Raise UnknownRun if there is none.

        Args:
            id: The run's id.
        """
        return await self._view(id, None)

    async def at(self, id: str, event: str) -> RunView:
        """Return a run's state as it was just after an event.

        Args:
            id: The run's id.
            event: Id of the event, as `penstock events` prints it.
        """
        return await self._view(id, event)

    async def list(
        self,
        *,
        flow: str | None = None,
        status: str | None = None,
        since: datetime | Duration | None = None,
        until: datetime | Duration | None = None,
        tags: Mapping[str, str] | None = None,
        where: Any = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[RunSummary]:
        """Return a page of runs, newest first.

        Args:
            flow: Only runs of this flow.
            status: Only runs with this status: running, waiting, paused, compensating, completed, failed,
                compensated or cancelled. A run that only waits is waiting, not running; `open` lists every run
                that has not ended.
            since: Only runs started since a datetime, or within a duration such as "1h".
            until: Only runs started before a datetime, or longer ago than a duration.
            tags: Only runs that have all these tags.
            where: Only runs whose input contains this JSON.
            before: Id of the last run of the page before.
            limit: Maximum number of runs.
        """
        if status is not None:
            check_choice(status, (*STATUSES, OPEN_STATUS), "status")
        started: dict[str, Any] = {}
        if tags:
            started["meta"] = {"tags": check_tags(tags, "tags")}
        if where is not None:
            started["data"] = {"input": to_plain(where, "where")}
        rows: Sequence[RunRow] = await self._rows(
            OPEN if status == OPEN_STATUS else (status,),
            flow=flow,
            since=self._time_ms(since),
            until=self._time_ms(until),
            first_event=started or None,
            before=before,
            limit=limit,
        )
        if not rows and before is not None and await self._store.run(before) is None:
            raise BadId(f"no run with id {before!r}; before= must be the id of the last run on the previous page")
        return [run_summary(row, await self._waits_for(row), self._find_problem(row)) for row in rows]

    async def wait(self, id: str, *, timeout: Duration | None = None) -> RunSummary:
        """Wait until a run has ended, in whatever way.

        Args:
            id: The run's id.
            timeout: Raise WaitTimeout after this long.
        """
        async with self._deadline(id, timeout) as outage_retry:
            return run_summary(await self._wait(id, outage_retry))

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Wait for a run to end and return its result. Raise RunFailed or RunCancelled if it has none.

        Args:
            id: The run's id.
            timeout: Raise WaitTimeout after this long.
        """
        async with self._deadline(id, timeout) as outage_retry:
            row = await self._wait(id, outage_retry)
            return await outage_retry.call(self._result, row)

    async def cancel(self, id: str, reason: str = "cancelled by request") -> bool:
        """Cancel a run for good. Return False if it had ended.

        Queued steps are dropped and running code is interrupted.

        Args:
            id: The run's id.
            reason: Recorded with the event.
        """
        return await (await self._engine(id)).commands.cancel(id, reason)

    async def pause(self, id: str, reason: str = "paused by request") -> bool:
        """Pause a run. Running steps end, no further step starts until `resume`; waits may resolve meanwhile.

        Return False if it was paused or had ended.

        Args:
            id: The run's id.
            reason: Recorded with the event.
        """
        return await (await self._engine(id)).commands.pause(id, reason)

    async def resume(self, id: str, reason: str = "resumed by request") -> bool:
        """Resume a paused run. Return False if it was not paused.

        Args:
            id: The run's id.
            reason: Recorded with the event.
        """
        return await (await self._engine(id)).commands.resume(id, reason)

    async def retry(self, id: str) -> RedriveResult:
        """Redrive the failed steps of a failed run. Their recorded durable calls are kept, so nothing is done twice.

        Args:
            id: The run's id.
        """
        return await run_actions.retry_run(self._app, id)

    async def replay(self, id: str, *, input: Any = UNSET, key: str | None = None) -> str:
        """Start a new run of the same flow with the recorded input, and return its id.

        Args:
            id: The run to replay.
            input: Another input instead of the recorded one.
            key: Idempotency key of the new run. Default: a new id, also for a flow that declares a key.
        """
        return await run_actions.replay_run(self._app, id, input, key)

    async def fork(self, id: str, event: str, *, key: str | None = None) -> str:
        """Start a new run with the past of a run up to an event, and return its id.

        Steps that were open at that point start again, with the loaded code.

        Args:
            id: The run to fork.
            event: Id of the last event to copy.
            key: Idempotency key of the new run.
        """
        row = await self._flow_row(id, "fork")
        new = self._app._transactions.direct.runs.new_id(key)
        await self._forks.fork(row, event, new, self._app.registry.flow(row.flow))
        return new

    async def why(self, id: str) -> Sequence[str]:
        """Explain in sentences what a run waits for, one for each open step.

        Args:
            id: The run's id.
        """
        return await diagnosis.why(self._app, id)

    def follow(self, id: str, *, after: str | None = None) -> AsyncIterator[Event]:
        """Iterate over a run's events, then follow it live.

        Args:
            id: The run's id.
            after: Id of the last event seen.
        """
        return self._follow(id, after)

    async def preflight(self, flow: str | None = None, *, accept: Sequence[str] = ()) -> preflight.PreflightReport:
        """Check every open run against the loaded code and report those that cannot continue.

        It reports recorded calls that are no longer made, new calls before recorded ones, and calls in another order.
        Nothing is written. Handlers are re-executed up to their last recorded call: code outside `ctx.run` runs again.

        Args:
            flow: Check only runs of this flow.
            accept: Names of new calls that open runs may make now, such as "notify"; for an emit, the event's kind.
        """
        return await preflight.check_runs(self._app, flow, accept)

    async def export(self, id: str) -> bytes:
        """Return a run with its events, jobs, waits and state as one line of JSON, for `import_` into another store.

        Secrets in inputs, results and state are in it as they are.

        Args:
            id: The run's id.
        """
        return await export.export_run(self._app, id)

    def export_all(self) -> AsyncIterator[bytes]:
        """Iterate over all runs, oldest first, each as the line of JSON that `export` returns.

        Join the lines with `b"\\n"` for `import_`. A run that retention removes meanwhile is left out.
        """
        return export.export_runs(self._app)

    async def import_(self, data: bytes, *, on_run: Callable[[str], object] | None = None) -> Sequence[str]:
        """Import runs that `export` returned or `penstock export` wrote, and return their ids.

        The runs keep their ids, times and event ids. Open ones continue here: stop the workers of the old store before
        you export them. Nothing is imported if a line is not a run, or if this store already has one of the runs. After
        an interruption, call it again without the runs that `app.runs.list` shows.

        The call opens the store of the App's URL a second time. It raises ConfigError for a store in memory and for
        one passed as `store=`.

        Args:
            data: Lines of JSON, one for each run: what `export` returned, or `Path(file).read_bytes()`.
            on_run: Function to call with the id of each run after it was imported, to show progress.
        """
        return await export.import_runs(self._app, data, on_run)

    async def _follow(self, id: str, after: str | None) -> AsyncIterator[Event]:
        row = await self._row(id)
        events = self._store.tail(self._app._bodies.run(row.kind, id), after=after)
        try:
            async for event in events:
                yield event
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    async def _rows(self, statuses: Sequence[str | None], *, limit: int, **filters: Any) -> Sequence[RunRow]:
        """Return the newest runs with one of the statuses. Each status is an index of its own."""
        pages = [await self._store.runs(status=status, limit=limit, **filters) for status in statuses]
        return sorted((row for page in pages for row in page), key=lambda row: (row.created, row.id), reverse=True)[
            :limit
        ]

    async def _waits_for(self, row: RunRow) -> Sequence[str]:
        if row.status != WAITING:
            return ()
        pending = await self._app.waits.list(run=row.id, limit=MAX_WAITS_SHOWN)
        return [describe_wait(wait, self._app._bodies) for wait in pending] or ["resumed, no worker has claimed it"]

    async def _view(self, id: str, last_event: str | None) -> RunView:
        row = await self._row(id)
        engine = self._app._engines.of_run(row)
        events = await self._app.events.read_all(self._app._bodies.run(row.kind, id))
        if last_event is not None:
            last = event_seq(last_event)
            index = next((n for n, event in enumerate(events) if event.seq == last), None)
            if index is None:
                raise BadId(
                    f"run {id!r} has no event {last_event!r}; it has {len(events)} events"
                    + (f", {events[0].id} to {events[-1].id}" if events else "")
                )
            events = events[: index + 1]
        view = engine.view(events)
        if any(event.is_unreadable for event in events):
            _complete_view(view, row, last_event is None)
        if last_event is None and view.status == WAITING and row.status != WAITING:
            view.status = row.status  # a step is queued of which no event tells yet
        if last_event is None and isinstance(view, RunView):
            view.id, view.name, view.unreadable = view.id or row.id, view.name or row.flow, self._find_problem(row)
        return view  # type: ignore[no-any-return]

    @asynccontextmanager
    async def _deadline(self, id: str, timeout: Duration | None) -> AsyncIterator[OutageRetry]:
        """Yield a retry policy for reads; raise WaitTimeout with what the run waits for when the time is up."""
        try:
            async with deadline(f"run {id!r}", timeout, "its queues") as outage_retry:
                yield outage_retry
        except WaitTimeout as problem:
            if problem.__cause__ is not None:  # the store does not answer
                raise
            waits = "; ".join(await self._waits_for(await self._row(id)))
            raise WaitTimeout(f"run {id!r} did not end within {timeout}; it is {waits}") if waits else problem from None

    def _find_problem(self, row: RunRow) -> str | None:
        """Return why the record of a run cannot be read, None if it can."""
        try:
            self._app._engines.of_run(row).read_record(row.record)
        except UnknownKind:
            return None  # another App may have its engine
        except Exception as problem:
            reason = problem.reason if isinstance(problem, UnreadableRecord) else str(problem)
            hint = "" if row.closed else f", or cancel the run: `penstock runs cancel {row.id}`"
            return f"the record of run {row.id!r} cannot be read: {reason}; restore it from a backup{hint}"
        return None

    async def _wait(self, id: str, outage_retry: OutageRetry) -> RunRow:
        with self._store.signals.listen(f"run:{id}") as listener:
            while not (row := await outage_retry.call(self._row, id)).closed:
                await listener.wait(1.0)
            return row

    async def _result(self, row: RunRow) -> Any:
        if row.status == COMPLETED:
            # From the record, not from the event, where secrets are redacted.
            if (unreadable := self._find_problem(row)) is not None:
                raise UnreadableRecord(unreadable)
            result = self._app._engines.of_run(row).result(row.record)
            if result is None:
                raise PayloadTooLarge(
                    f"the results of run {row.id!r} exceed 64 KB in total; read them per step from "
                    "app.runs.get(id).steps"
                )
            return unpack(result)
        last = await self._store.read(self._app._bodies.run(row.kind, row.id), limit=20, backward=True)
        end = next((event for event in last if event.kind == f"{row.kind}.{row.status}"), None)
        data = end.data if end is not None and isinstance(end.data, dict) else {}
        if end is None and any(event.is_unreadable for event in last):
            data = {"reason": _LOST_REASON, "error": _LOST_REASON}
        if row.status == "cancelled":
            raise RunCancelled(f"run {row.id!r} was cancelled: {data.get('reason', '')}")
        problem = RunFailed(f"run {row.id!r} {row.status} in step {data.get('step')!r}: {data.get('error', '')}")
        failures = (event.data for event in last if event.kind == "step.failed" and event.step == data.get("step"))
        add_stack(problem, next(failures, None))
        raise problem

    async def _engine(self, id: str) -> RunEngine:
        return self._app._engines.of_run(await self._row(id))

    async def _flow_row(self, id: str, method: str) -> RunRow:
        """Return the row of a run; raise RunError if it is not a run of a flow."""
        row = await self._row(id)
        if row.kind != FLOW:
            raise RunError(f"run {id!r} is of kind {row.kind!r}; only runs of flows have `{method}`")
        return row

    async def _row(self, id: str) -> RunRow:
        row = await self._store.run(id)
        if row is None:
            is_job = await self._store.job(id) is not None
            hint = "this is the id of a job; use app.jobs.result" if is_job else "check the id and the URL"
            raise UnknownRun(f"no run with id {id!r} in {shown_url(self._app.settings.url)}; {hint}")
        return row

    def _time_ms(self, time: datetime | Duration | None) -> int | None:
        if time is None or isinstance(time, datetime):
            return None if time is None else datetime_to_ms(time)
        return self._app.clock.now_ms() - to_ms(time)


_LOST_REASON = "the event with the reason cannot be read"


def _complete_view(view: RunView, row: RunRow, is_current: bool) -> None:
    """Take from the run's row what its unreadable events may have recorded."""
    view.id, view.name = row.id, view.name or row.flow
    view.started_at = view.started_at or to_iso(row.created)
    if is_current and row.closed:
        view.status, view.completed_at = row.status, view.completed_at or to_iso(row.updated)
