"""`app.runs`: start runs, look at them, wait for them, act on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast, overload

import msgspec

from ..commit.preview import Preview, run_planned
from ..core.argument_checks import check_arguments, check_optional_text, check_tags, resolve_due
from ..core.clock import datetime_to_ms
from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument
from ..core.events import Event
from ..core.ids import BadId
from ..core.payload import to_plain
from ..flows.reducer import RunView
from ..flows.run_index import attribute_keys, tag_keys
from ..flows.run_record import OPEN, STATUSES
from ..handlers.attributes import attribute_texts
from ..ports.unit import DAG, FLOW
from ..worker.child_runs import parent_key
from .arguments import UNSET, NoInput, StartOptions, check_choice
from .run_handle import R, Run
from .run_list import RunFilter, find_runs
from .views import RunSummary, run_summary

if TYPE_CHECKING:
    from .app import App
    from .export_file import ExportSource
    from .log_lines import LogView
    from .preflight import PreflightReport
    from .redrive import RedriveResult
    from .run_bulk import BulkAction, BulkResult

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
        self._reader = app._run_reader

    @overload
    async def start(self, flow: str, input: Any = None, **options: Unpack[StartOptions]) -> Run[Any]: ...

    @overload
    async def start(
        self, flow: NoInput[Coroutine[Any, Any, R]], input: None = None, **options: Unpack[StartOptions]
    ) -> Run[R]: ...

    @overload
    async def start(
        self, flow: Callable[[I, Any], Coroutine[Any, Any, R]], input: I, **options: Unpack[StartOptions]
    ) -> Run[R]: ...

    @overload
    async def start(
        self, flow: Callable[[I], Coroutine[Any, Any, R]], input: I, **options: Unpack[StartOptions]
    ) -> Run[R]: ...

    @overload
    async def start(self, flow: NoInput[R], input: None = None, **options: Unpack[StartOptions]) -> Run[R]: ...

    @overload
    async def start(self, flow: Callable[[I, Any], R], input: I, **options: Unpack[StartOptions]) -> Run[R]: ...

    @overload
    async def start(self, flow: Callable[[I], R], input: I, **options: Unpack[StartOptions]) -> Run[R]: ...

    @overload
    async def start(
        self, flow: str | Callable[..., Any], input: Any = None, *, result: type[R], **options: Unpack[StartOptions]
    ) -> Run[R]: ...

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
        result: Any = None,
        tx: Any = None,
    ) -> Run[Any]:
        """Start a run of a flow and return its handle: its id, with methods such as `result`.

        Args:
            flow: A flow's name, or the function marked with `@flow`.
            input: What the first step receives: any JSON value, dataclass, msgspec or pydantic model.
            key: Idempotency key. It becomes the run's id; a key that exists starts nothing, and the handle's `existing`
                is True. Its `differs` is True if the run of the key has another input.
            correlation_id: Stored with every event of the run. Default: the run's id.
            priority: Of the run's steps; lower runs first.
            delay: How long to wait before the first step is due, such as "10m".
            at: When the first step is due, a datetime with a time zone. Instead of `delay`.
            tags: Names and values to find the run by: `app.runs.list(tags=...)`.
            result: Type of the run's result, for `run.result()`. Default: what the function returns, if it is the
                flow's only step.
            tx: A connection or session of your own; the run starts when its transaction commits.
        """
        return await self._start(flow, input, key, correlation_id, priority, delay, at, tags, result, tx)

    async def _start(
        self,
        flow: str | Callable[..., Any],
        input: Any,
        key: str | None = None,
        correlation_id: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        tags: Mapping[str, str] | None = None,
        result: Any = None,
        tx: Any = None,
    ) -> Run[Any]:
        """Start a run and return its handle. `app.start` calls it, so it checks its own arguments."""
        function = None if isinstance(flow, str) else flow
        known = flow if function is not None else check_optional_text(flow, "flow")
        started = await self._app._transactions.write(
            tx,
            lambda writers: writers.runs.start(
                cast(Any, known),
                input,
                key=check_optional_text(key, "key") if key is not None else None,
                correlation_id=correlation_id,
                priority=priority,
                due=resolve_due(delay, at, self._app.clock) if delay is not None or at is not None else 0,
                tags=tags,
            ),
        )
        return Run(started.id, self, result, function, existing=started.existing, differs=started.differs)

    async def get(self, id: str) -> RunView:
        """Return a run's state, folded from its events. Raise UnknownRun if there is none.

        Args:
            id: The run's id.
        """
        return await self._reader.view(id, None)

    async def at(self, id: str, event: str) -> RunView:
        """Return a run's state as it was just after an event.

        Args:
            id: The run's id.
            event: Id of the event, as `penstock events` prints it.
        """
        return await self._reader.view(id, event)

    async def list(
        self,
        *,
        flow: str | None = None,
        status: str | None = None,
        since: datetime | Duration | None = None,
        until: datetime | Duration | None = None,
        tags: Mapping[str, str] | None = None,
        attributes: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        step: str | None = None,
        error: str | None = None,
        where: Any = None,
        parent: str | None = None,
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
            attributes: Only runs that have all these attributes; their flow declares them.
            correlation_id: Only runs with this correlation id.
            step: Only runs in which this step failed.
            error: Only runs in which a step failed with an error that has all these words.
            where: Only runs whose input contains this JSON.
            parent: Only runs that this run started, with `ctx.call` or `ctx.start`.
            before: Id of the last run of the page before.
            limit: Maximum number of runs.
        """
        wanted = self._filter(
            flow=flow,
            status=status,
            since=since,
            until=until,
            tags=tags,
            attributes=attributes,
            correlation_id=correlation_id,
            step=step,
            error=error,
            where=where,
            parent=parent,
        )
        rows = await find_runs(self._store, wanted, before, limit)
        if not rows and before is not None and await self._store.run(before) is None:
            raise BadId(f"no run with id {before!r}; before= must be the id of the last run on the previous page")
        return [run_summary(row, await self._reader.waits_for(row), self._reader.find_problem(row)) for row in rows]

    async def bulk(
        self,
        action: BulkAction,
        *,
        flow: str | None = None,
        status: str | None = None,
        since: datetime | Duration | None = None,
        until: datetime | Duration | None = None,
        tags: Mapping[str, str] | None = None,
        attributes: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        step: str | None = None,
        error: str | None = None,
        where: Any = None,
        parent: str | None = None,
        reason: str | None = None,
        limit: int = 10_000,
        dry_run: bool = False,
        expect: int | None = None,
    ) -> BulkResult:
        """Act on every run that a filter selects, newest first, one after the other.

        Count first with `dry_run=True`, then pass the count as `expect`. At least one filter is required. Without a
        status, cancel and pause select open runs, resume paused ones, and retry failed ones.

        Args:
            action: "cancel", "pause", "resume", "retry" or "replay".
            flow: Only runs of this flow.
            status: Only runs with this status, such as "failed"; "open" selects every run that has not ended.
            since: Only runs started since a datetime, or within a duration such as "1h".
            until: Only runs started before a datetime, or longer ago than a duration.
            tags: Only runs that have all these tags.
            attributes: Only runs that have all these attributes; their flow declares them.
            correlation_id: Only runs with this correlation id.
            step: Only runs in which this step failed.
            error: Only runs in which a step failed with an error that has all these words.
            where: Only runs whose input contains this JSON.
            parent: Only runs that this run started.
            reason: Recorded with the event of a cancel, pause or resume.
            limit: Maximum number of runs, at most 100,000.
            dry_run: Change nothing, and return how many runs the filter selects.
            expect: Raise CountChanged, and change nothing, if the filter selects another number of runs.
        """
        wanted = self._filter(
            flow=flow,
            status=status,
            since=since,
            until=until,
            tags=tags,
            attributes=attributes,
            correlation_id=correlation_id,
            step=step,
            error=error,
            where=where,
            parent=parent,
        )
        from .run_bulk import act_on_runs

        return await act_on_runs(self._app, action, wanted, reason, limit, dry_run, expect)

    def _filter(
        self,
        *,
        flow: str | None,
        status: str | None,
        since: datetime | Duration | None,
        until: datetime | Duration | None,
        tags: Mapping[str, str] | None,
        attributes: Mapping[str, Any] | None,
        correlation_id: str | None,
        step: str | None,
        error: str | None,
        where: Any,
        parent: str | None,
    ) -> RunFilter:
        if status is not None:
            check_choice(status, (*STATUSES, OPEN_STATUS), "status")
        texts = {"flow": flow, "correlation_id": correlation_id, "step": step, "error": error, "parent": parent}
        for name, text in texts.items():
            if text == "":  # an unset variable of the caller must not select every run
                raise BadArgument(f"{name} must not be empty, got ''; omit it to select any")
        return RunFilter(
            OPEN if status == OPEN_STATUS else () if status is None else (status,),
            flow,
            self._time_ms(since),
            self._time_ms(until),
            None if where is None else {"data": {"input": to_plain(where, "where")}},
            (
                *([parent_key(parent)] if parent is not None else ()),
                *tag_keys(check_tags(tags, "tags")),
                *attribute_keys(attribute_texts(attributes or {})),
            ),
            correlation_id,
            step,
            error,
        )

    async def _run_planned(
        self, run: str, dry_run: bool, version: int | Preview | None, act: Callable[[], Awaitable[bool]]
    ) -> tuple[bool, Preview | None]:
        """Call a command whose called runs follow."""
        return await run_planned(self._store, run, dry_run, version, act, self._app._children.add_to)

    async def children(self, id: str, *, before: str | None = None, limit: int = 50) -> Sequence[RunSummary]:
        """Return a page of the runs that a run started with `ctx.call` or `ctx.start`, newest first.

        Args:
            id: The run's id.
            before: Id of the last run of the page before.
            limit: Maximum number of runs.
        """
        row = await self._reader.row(id)
        return await self.list(parent=row.id, before=before, limit=limit)

    async def wait(self, id: str, *, timeout: Duration | None = None) -> RunSummary:
        """Wait until a run has ended, in whatever way.

        Args:
            id: The run's id.
            timeout: Raise WaitTimeout after this long.
        """
        async with self._reader.deadline(id, timeout) as outage_retry:
            return run_summary(await self._reader.wait(id, outage_retry))

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Wait for a run to end and return its result. Raise RunFailed or RunCancelled if it has none.

        Args:
            id: The run's id.
            timeout: Raise WaitTimeout after this long.
        """
        async with self._reader.deadline(id, timeout) as outage_retry:
            row = await self._reader.wait(id, outage_retry)
            return await outage_retry.call(self._reader.result, row)

    @overload
    async def cancel(
        self,
        id: str,
        reason: str = "cancelled by request",
        *,
        dry_run: Literal[False] = False,
        version: int | Preview | None = None,
    ) -> bool: ...

    @overload
    async def cancel(
        self,
        id: str,
        reason: str = "cancelled by request",
        *,
        dry_run: Literal[True],
        version: int | Preview | None = None,
    ) -> Preview: ...

    @overload
    async def cancel(
        self, id: str, reason: str = "cancelled by request", *, dry_run: bool, version: int | Preview | None = None
    ) -> bool | Preview: ...

    async def cancel(
        self,
        id: str,
        reason: str = "cancelled by request",
        *,
        dry_run: bool = False,
        version: int | Preview | None = None,
    ) -> bool | Preview:
        """Cancel a run for good. Return False if it had ended.

        Queued steps are dropped and running code is interrupted.

        Args:
            id: The run's id.
            reason: Recorded with the event.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """
        run, engine = await self._reader.engine(id)
        commands = engine.commands
        done, preview = await self._run_planned(run, dry_run, version, lambda: commands.cancel(run, reason))
        return done if preview is None else preview

    @overload
    async def pause(
        self,
        id: str,
        reason: str = "paused by request",
        *,
        dry_run: Literal[False] = False,
        version: int | Preview | None = None,
    ) -> bool: ...

    @overload
    async def pause(
        self,
        id: str,
        reason: str = "paused by request",
        *,
        dry_run: Literal[True],
        version: int | Preview | None = None,
    ) -> Preview: ...

    @overload
    async def pause(
        self, id: str, reason: str = "paused by request", *, dry_run: bool, version: int | Preview | None = None
    ) -> bool | Preview: ...

    async def pause(
        self,
        id: str,
        reason: str = "paused by request",
        *,
        dry_run: bool = False,
        version: int | Preview | None = None,
    ) -> bool | Preview:
        """Pause a run. Running steps end, no further step starts until `resume`; waits may resolve meanwhile.

        Return False if it was paused or had ended.

        Args:
            id: The run's id.
            reason: Recorded with the event.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """
        run, engine = await self._reader.engine(id)
        commands = engine.commands
        done, preview = await self._run_planned(run, dry_run, version, lambda: commands.pause(run, reason))
        return done if preview is None else preview

    @overload
    async def resume(
        self,
        id: str,
        reason: str = "resumed by request",
        *,
        dry_run: Literal[False] = False,
        version: int | Preview | None = None,
    ) -> bool: ...

    @overload
    async def resume(
        self,
        id: str,
        reason: str = "resumed by request",
        *,
        dry_run: Literal[True],
        version: int | Preview | None = None,
    ) -> Preview: ...

    @overload
    async def resume(
        self, id: str, reason: str = "resumed by request", *, dry_run: bool, version: int | Preview | None = None
    ) -> bool | Preview: ...

    async def resume(
        self,
        id: str,
        reason: str = "resumed by request",
        *,
        dry_run: bool = False,
        version: int | Preview | None = None,
    ) -> bool | Preview:
        """Resume a paused run. Return False if it was not paused.

        Args:
            id: The run's id.
            reason: Recorded with the event.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """
        run, engine = await self._reader.engine(id)
        commands = engine.commands
        done, preview = await self._run_planned(run, dry_run, version, lambda: commands.resume(run, reason))
        return done if preview is None else preview

    @overload
    async def retry(
        self, id: str, *, dry_run: Literal[False] = False, version: int | Preview | None = None
    ) -> RedriveResult: ...

    @overload
    async def retry(self, id: str, *, dry_run: Literal[True], version: int | Preview | None = None) -> Preview: ...

    @overload
    async def retry(
        self, id: str, *, dry_run: bool, version: int | Preview | None = None
    ) -> RedriveResult | Preview: ...

    async def retry(
        self, id: str, *, dry_run: bool = False, version: int | Preview | None = None
    ) -> RedriveResult | Preview:
        """Redrive the failed steps of a failed run. Their recorded durable calls are kept, so nothing is done twice.

        Args:
            id: The run's id.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """
        from .run_actions import retry_run

        run = (await self._reader.row(id)).id
        done, preview = await run_planned(self._store, run, dry_run, version, lambda: retry_run(self._app, run))
        return done if preview is None else msgspec.structs.replace(preview, refused=done.refused)

    @overload
    async def replay(
        self,
        id: str,
        *,
        input: Any = UNSET,
        key: str | None = None,
        dry_run: Literal[False] = False,
        version: int | Preview | None = None,
    ) -> Run[Any]: ...

    @overload
    async def replay(
        self,
        id: str,
        *,
        input: Any = UNSET,
        key: str | None = None,
        dry_run: Literal[True],
        version: int | Preview | None = None,
    ) -> Preview: ...

    @overload
    async def replay(
        self,
        id: str,
        *,
        input: Any = UNSET,
        key: str | None = None,
        dry_run: bool,
        version: int | Preview | None = None,
    ) -> Run[Any] | Preview: ...

    async def replay(
        self,
        id: str,
        *,
        input: Any = UNSET,
        key: str | None = None,
        dry_run: bool = False,
        version: int | Preview | None = None,
    ) -> Run[Any] | Preview:
        """Start a new run of the same flow with the recorded input, and return its handle.

        Args:
            id: The run to replay.
            input: Another input instead of the recorded one.
            key: Idempotency key of the new run. Default: a new id, also for a flow that declares a key.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The version of the run to replay, or a Preview: raise RunMoved if it has moved on since.
        """
        from .run_actions import replay_run

        run = (await self._reader.row(id)).id
        new, preview = await run_planned(
            self._store, run, dry_run, version, lambda: replay_run(self._app, run, input, key)
        )
        return new if preview is None else preview

    @overload
    async def fork(
        self,
        id: str,
        event: str,
        *,
        key: str | None = None,
        dry_run: Literal[False] = False,
        version: int | Preview | None = None,
    ) -> Run[Any]: ...

    @overload
    async def fork(
        self,
        id: str,
        event: str,
        *,
        key: str | None = None,
        dry_run: Literal[True],
        version: int | Preview | None = None,
    ) -> Preview: ...

    @overload
    async def fork(
        self, id: str, event: str, *, key: str | None = None, dry_run: bool, version: int | Preview | None = None
    ) -> Run[Any] | Preview: ...

    async def fork(
        self,
        id: str,
        event: str,
        *,
        key: str | None = None,
        dry_run: bool = False,
        version: int | Preview | None = None,
    ) -> Run[Any] | Preview:
        """Start a new run with the past of a run up to an event, and return its handle.

        Steps that were open at that point start again, with the loaded code. A run of a dag stays on its version.

        Args:
            id: The run to fork.
            event: Id of the last event to copy.
            key: Idempotency key of the new run.
            dry_run: Write nothing, and return a Preview: the number of events that would be copied, the events after
                them, and the jobs that would be added.
            version: The version of the run to fork, or a Preview: raise RunMoved if it has moved on since.
        """
        run = (await self._reader.row(id)).id
        new, preview = await run_planned(self._store, run, dry_run, version, lambda: self._fork(run, event, key))
        return Run(new, self) if preview is None else preview

    async def _fork(self, id: str, event: str, key: str | None) -> str:
        row = await self._reader.row_of_kind(id, "fork", FLOW, DAG)
        new = self._app._transactions.direct.runs.new_id(key)
        if row.kind == DAG:
            from ..dags.fork import DagForker

            await DagForker(self._app._dag_engine).fork_dag(row, event, new)
        else:
            from ..flows.fork import RunForker

            await RunForker(self._app._engine).fork(row, event, new, self._app.registry.flow(row.flow))
        return new

    @overload
    def handle(self, id: str) -> Run[Any]: ...

    @overload
    def handle(self, id: str, result: type[R]) -> Run[R]: ...

    def handle(self, id: str, result: Any = None) -> Run[Any]:
        """Return the handle of a run by its id. Nothing is read: its methods raise UnknownRun if there is no such run.

        Args:
            id: The run's id.
            result: Type of the run's result, for `run.result()`. Default: as JSON.
        """
        return Run(id, self, result)

    async def logs(
        self,
        id: str,
        *,
        step: str | None = None,
        attempt: int | None = None,
        level: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[LogView]:
        """Return log lines of a run, oldest first, with their fields.

        It reads the run's stream from the cursor on, until it has found enough lines.

        Args:
            id: The run's id.
            step: Only lines of this step.
            attempt: Only lines of this attempt.
            level: Only lines of this level and above: debug, info, warning or error.
            after: Id of the last line of the page before.
            limit: Maximum number of lines.
        """
        from .log_lines import build_filter, read_run_lines

        wanted = build_filter(step, attempt, level)
        row = await self._reader.row(id)
        return await read_run_lines(self._store, self._app._bodies.run(row.kind, row.id), wanted, after, limit)

    async def diagram(self, id: str) -> dict[str, Any]:
        """Return the graph that a run goes through, `{"nodes": […], "edges": […], "version": …, "isLoaded": …}`.

        A run of a dag stays on its version, and one of a flow with a version on the steps that it was started with.
        `isLoaded` is False if the loaded code no longer has them: then only what starts each step is known for sure.

        Args:
            id: The run's id.
        """
        from .run_diagrams import read_run_diagram

        return (await read_run_diagram(self._app, id))[1]

    async def why(self, id: str) -> Sequence[str]:
        """Explain in sentences what a run waits for, one for each open step.

        Args:
            id: The run's id.
        """
        from .explanation import why

        return await why(self._app, id)

    def follow(self, id: str, *, after: str | None = None) -> AsyncIterator[Event]:
        """Iterate over a run's events, then follow it live.

        Args:
            id: The run's id.
            after: Id of the last event seen.
        """
        return self._reader.follow(id, after)

    async def preflight(self, flow: str | None = None, *, accept: Sequence[str] = ()) -> PreflightReport:
        """Check every open run against the loaded code and report those that cannot continue.

        It reports recorded calls that are no longer made, new calls before recorded ones, and calls in another order.
        Nothing is written. Handlers are re-executed up to their last recorded call: code outside `ctx.run` runs again.

        Args:
            flow: Check only runs of this flow.
            accept: Names of new calls that open runs may make now, such as "notify"; for an emit, the event's kind.
        """
        from .preflight import check_runs

        return await check_runs(self._app, flow, accept)

    async def export(self, id: str) -> bytes:
        """Return a run with its events, jobs, waits and state as one line of JSON, for `import_` into another store.

        Secrets in inputs, results and state are in it as they are.

        Args:
            id: The run's id.
        """
        from .export import export_run

        return await export_run(self._app, id)

    def export_all(self) -> AsyncIterator[bytes]:
        """Iterate over all runs, oldest first, each as the line of JSON that `export` returns.

        Join the lines with `b"\\n"` for `import_`. A run that retention removes meanwhile is left out.
        """
        from .export import export_runs

        return export_runs(self._app)

    async def import_(self, data: ExportSource, *, on_run: Callable[[str], object] | None = None) -> Sequence[str]:
        """Import runs that `export` returned or `penstock export` wrote, and return their ids.

        The runs keep their ids, times and event ids. Open ones continue here: stop the workers of the old store before
        you export them. Nothing is imported if a line is not a run, or if this store already has one of the runs. After
        an interruption, call it again without the runs that `app.runs.list` shows.

        The call opens the store of the App's URL a second time. It raises ConfigError for a store in memory and for
        one passed as `store=`.

        Args:
            data: Lines of JSON, one for each run: the bytes that `export` returned, a Path, or a file opened with mode
                "rb". A file is read twice, line by line: it may be larger than the memory.
            on_run: Function to call with the id of each run after it was imported, to show progress.
        """
        from .run_import import import_runs

        return await import_runs(self._app, data, on_run)

    def _time_ms(self, time: datetime | Duration | None) -> int | None:
        if time is None or isinstance(time, datetime):
            return None if time is None else datetime_to_ms(time)
        return self._app.clock.now_ms() - to_ms(time)
