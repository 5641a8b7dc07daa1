"""`client.runs`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, Literal, overload

import msgspec

from ..app.arguments import UNSET, check_list
from ..app.log_lines import LogView
from ..app.preflight import PreflightReport
from ..app.redrive import RedriveResult
from ..app.run_bulk import BulkAction, BulkResult
from ..app.run_handle import R, Run
from ..app.views import RunSummary
from ..commit.preview import Preview
from ..core.argument_checks import check_arguments, check_tags
from ..core.durations import Duration
from ..core.errors import BadArgument
from ..core.events import Event
from ..core.payload import to_plain
from ..core.text import shorten
from ..flows.reducer import RunView
from ..handlers.attributes import attribute_texts
from .connection import Connection, Page, show_input
from .times import show_duration, show_time, show_timeout

RUN = "/api/_run/{}"
Reasons = Ids = dict[str, list[str]]


class StartedRun(msgspec.Struct):
    """A run that was started, or what would be written."""

    id: str = ""
    existing: bool = False
    differs: bool = False
    preview: Preview | None = None

    def make_handle(self, runs: Any, result: Any = None) -> Run[Any]:
        """Return the handle that App returns."""
        return Run(self.id, runs, result, existing=self.existing, differs=self.differs)


class Redriven(msgspec.Struct):
    """What was redriven, or what would be written."""

    sent: dict[str, str] = {}
    refused: dict[str, str] = {}
    preview: Preview | None = None

    @property
    def result(self) -> RedriveResult | Preview:
        """What App returns."""
        return RedriveResult(self.sent, self.refused) if self.preview is None else self.preview


@check_arguments
class Runs:
    """Runs of flows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @overload
    async def start(
        self,
        flow: str,
        input: Any = None,
        *,
        key: str | None = None,
        correlation_id: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        tags: Mapping[str, str] | None = None,
        result: None = None,
    ) -> Run[Any]: ...

    @overload
    async def start(
        self,
        flow: str,
        input: Any = None,
        *,
        key: str | None = None,
        correlation_id: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        tags: Mapping[str, str] | None = None,
        result: type[R],
    ) -> Run[R]: ...

    async def start(
        self,
        flow: str,
        input: Any = None,
        *,
        key: str | None = None,
        correlation_id: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        tags: Mapping[str, str] | None = None,
        result: Any = None,
    ) -> Run[Any]:
        """Start a run of a flow and return its handle: its id, with methods such as `result`.

        Args:
            flow: The flow's name.
            input: What the first step receives: any JSON value, dataclass, msgspec or pydantic model.
            key: Idempotency key. It becomes the run's id; a key that exists starts nothing, and the handle's `existing`
                is True. Its `differs` is True if the run of the key has another input.
            correlation_id: Stored with every event of the run. Default: the run's id.
            priority: Of the run's steps; lower runs first.
            delay: How long to wait before the first step is due, such as "10m".
            at: When the first step is due, a datetime with a time zone. Instead of `delay`.
            tags: Names and values to find the run by.
            result: Type of the run's result, for `run.result()`. Default: as JSON.
        """
        started = await self._connection.post(
            StartedRun,
            "/api/_flow/{}/runs",
            flow,
            input=input,
            key=key,
            correlationId=correlation_id,
            priority=priority,
            delay=show_duration(delay),
            at=at,
            tags=tags,
        )
        return started.make_handle(self, result)

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

    async def get(self, id: str) -> RunView:
        """Return a run's state, folded from its events.

        Args:
            id: The run's id.
        """
        return await self._connection.get(RunView, RUN, id)

    async def at(self, id: str, event: str) -> RunView:
        """Return a run's state as it was just after an event.

        Args:
            id: The run's id.
            event: Id of the event.
        """
        return await self._connection.get(RunView, RUN, id, at=event)

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
            status: Only runs with this status; `open` lists every run that has not ended.
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
        page = await self._connection.get(
            Page[RunSummary],
            "/api/_run",
            flow=flow,
            status=status,
            since=show_time(since),
            until=show_time(until),
            tag=[f"{name}={value}" for name, value in check_tags(tags, "tags").items()] or None,
            attribute=[f"{name}={text}" for name, text in attribute_texts(attributes or {}).items()] or None,
            correlationId=correlation_id,
            step=step,
            error=error,
            where=msgspec.json.encode(to_plain(where, "where")).decode() if where is not None else None,
            parent=parent,
            before=before,
            limit=limit,
        )
        return page.items

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Wait for a run to end and return its result. Raise RunFailed or RunCancelled if it has none.

        Args:
            id: The run's id.
            timeout: Raise WaitTimeout after this long.
        """
        return await self._connection.wait_for_result(RUN + "/result", id, timeout=show_timeout(timeout))

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

        Args:
            id: The run's id.
            reason: Recorded with the event.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """
        return await self._connection.act_for_ok(
            RUN + "/cancel", id, dry_run=dry_run, version=version, body={"reason": reason}
        )

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
        self, id: str, reason: str = "paused by request", *, dry_run: bool = False, version: int | Preview | None = None
    ) -> bool | Preview:
        """Pause a run. Return False if it was paused or had ended.

        Args:
            id: The run's id.
            reason: Recorded with the event.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """
        return await self._connection.act_for_ok(
            RUN + "/pause", id, dry_run=dry_run, version=version, body={"reason": reason}
        )

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
        return await self._connection.act_for_ok(
            RUN + "/resume", id, dry_run=dry_run, version=version, body={"reason": reason}
        )

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
        """Redrive the failed steps of a failed run.

        Args:
            id: The run's id.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """
        done = await self._connection.act(Redriven, RUN + "/retry", id, dry_run=dry_run, version=version)
        return done.result

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
            key: Idempotency key of the new run.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """
        body = {"key": key, **show_input(input)}
        done = await self._connection.act(StartedRun, RUN + "/replay", id, dry_run=dry_run, version=version, body=body)
        return done.make_handle(self) if done.preview is None else done.preview

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
        return await self._connection.post(
            BulkResult,
            "/api/_run/bulk",
            action=action,
            flow=flow,
            status=status,
            since=show_time(since),
            until=show_time(until),
            tags=tags,
            attributes=attributes,
            correlationId=correlation_id,
            step=step,
            error=error,
            where=where,
            parent=parent,
            reason=reason,
            limit=limit,
            confirm=False if dry_run else True if expect is None else expect,
        )

    async def children(self, id: str, *, before: str | None = None, limit: int = 50) -> Sequence[RunSummary]:
        """Return a page of the runs that a run started with `ctx.call` or `ctx.start`, newest first.

        Args:
            id: The run's id.
            before: Id of the last run of the page before.
            limit: Maximum number of runs.
        """
        page = await self._connection.get(Page[RunSummary], RUN + "/children", id, before=before, limit=limit)
        return page.items

    async def wait(self, id: str, *, timeout: Duration | None = None) -> RunSummary:
        """Wait until a run has ended, in whatever way.

        Args:
            id: The run's id.
            timeout: Raise WaitTimeout after this long.
        """
        query = {"timeout": show_timeout(timeout)}
        return await self._connection.request("GET", RunSummary, RUN + "/wait", id, query=query, read_timeout_s=None)

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

        Args:
            id: The run's id.
            step: Only lines of this step.
            attempt: Only lines of this attempt.
            level: Only lines of this level and above: debug, info, warning or error.
            after: Id of the last line of the page before.
            limit: Maximum number of lines.
        """
        page = await self._connection.get(
            Page[LogView], RUN + "/logs", id, step=step, attempt=attempt, level=level, after=after, limit=limit
        )
        return page.items

    async def preflight(self, flow: str | None = None, *, accept: Sequence[str] = ()) -> PreflightReport:
        """Check every open run against the code that the server has loaded.

        It re-executes handlers up to their last recorded call: code outside `ctx.run` runs again.

        Args:
            flow: Check only runs of this flow.
            accept: Names of new calls that open runs may make now.
        """
        return await self._connection.post(
            PreflightReport, "/api/_preflight", flow=flow, accept=check_list(accept, "accept")
        )

    async def export(self, id: str) -> bytes:
        """Return a run with its events, jobs, waits and state as one line of JSON. It requires the role admin.

        Args:
            id: The run's id.
        """
        return (await self._connection.send_bytes("GET", RUN + "/export", id)).rstrip(b"\n")

    async def export_all(self) -> AsyncIterator[bytes]:
        """Iterate over all runs, oldest first, each as the line of JSON that `export` returns."""
        async with aclosing(self._connection.read_lines("/api/_export")) as lines:
            async for line in lines:
                yield line

    async def import_(self, data: bytes) -> Sequence[str]:
        """Import runs that `export` returned, and return their ids. It requires the role admin.

        Args:
            data: Lines of JSON, one for each run; at most 10 MB in one call.
        """
        if not isinstance(data, bytes):
            raise BadArgument(f"data must be the bytes of an export, got {shorten(data)}")
        answer = await self._connection.send("POST", Ids, "/api/_import", content=data)
        return answer["ids"]

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

        Args:
            id: The run to fork.
            event: Id of the last event to copy.
            key: Idempotency key of the new run.
            dry_run: Write nothing, and return a Preview: the number of events that would be copied, the events after
                them, and the jobs that would be added.
            version: The version of the run to fork, or a Preview: raise RunMoved if it has moved on since.
        """
        done = await self._connection.act(
            StartedRun, RUN + "/fork", id, dry_run=dry_run, version=version, body={"event": event, "key": key}
        )
        return done.make_handle(self) if done.preview is None else done.preview

    async def diagram(self, id: str) -> dict[str, Any]:
        """Return the graph that a run goes through, `{"nodes": […], "edges": […], "version": …, "isLoaded": …}`.

        A run of a dag stays on its version, and one of a flow with a version on the steps that it was started with.
        `isLoaded` is False if the loaded code no longer has them: then only what starts each step is known for sure.

        Args:
            id: The run's id.
        """
        return await self._connection.get(dict[str, Any], RUN + "/diagram", id)

    async def why(self, id: str) -> Sequence[str]:
        """Explain in sentences what a run waits for, one for each open step.

        Args:
            id: The run's id.
        """
        answer = await self._connection.get(Reasons, RUN + "/why", id)
        return answer["reasons"]

    async def follow(self, id: str, *, after: str | None = None) -> AsyncIterator[Event]:
        """Iterate over a run's events, then follow it live. A lost connection continues after the last event.

        Args:
            id: The run's id.
            after: Id of the last event seen. Default: from the beginning.
        """
        await self.get(id)
        messages = self._connection.follow("/api/_events/flow/{}/stream", id, after=after or "")
        async with aclosing(messages):
            async for message in messages:
                yield msgspec.json.decode(message.data, type=Event)
