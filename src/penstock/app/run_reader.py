"""Read one run: its row, its view, what it waits for, its end and its result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ..core.clock import to_iso
from ..core.durations import Duration, format_ms, to_ms
from ..core.errors import (
    NotRouted,
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
from ..core.payload import unpack
from ..core.text import pluralize
from ..flows.reducer import RunView
from ..flows.run_record import COMPLETED, FAILED, WAITING
from ..ports.store import RunRow
from ..ports.unit import DAG
from ..worker.engines import RunEngine
from ..worker.routes import find_own_id
from .snapshots import run_reducer
from .store_urls import shown_url
from .views import add_stack
from .waits import describe_wait

if TYPE_CHECKING:
    from .app import App

MAX_WAITS_SHOWN = 3
ROUTE_POLL_S = 0.1
_LOST_REASON = "the event with the reason cannot be read"


class RunReader:
    """Reads single runs, of any kind."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._store = app.store

    async def follow(self, id: str, after: str | None) -> AsyncIterator[Event]:
        row = await self.row(id)
        events = self._store.tail(self._app._bodies.run(row.kind, row.id), after=after)
        try:
            async for event in events:
                yield event
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    async def waits_for(self, row: RunRow) -> Sequence[str]:
        if row.status != WAITING:
            return ()
        pending = (await self._app.waits.list(run=row.id, limit=MAX_WAITS_SHOWN))[::-1]
        return [describe_wait(wait, self._app._bodies) for wait in pending] or [
            "ready to resume; no worker has claimed it yet"
        ]

    async def view(self, id: str, last_event: str | None) -> RunView:
        row = await self.row(id)
        stream = self._app._bodies.run(row.kind, row.id)
        view, is_damaged = await (
            self._fold(row, stream) if last_event is None else self._fold_until(row, stream, last_event)
        )
        if is_damaged and isinstance(view, RunView):
            _complete_view(view, row, last_event is None)
        if last_event is None and view.status == WAITING and row.status != WAITING:
            view.status = row.status  # a step is queued of which no event tells yet
        if last_event is None and isinstance(view, RunView):
            view.id, view.name, view.unreadable = view.id or row.id, view.name or row.flow, self.find_problem(row)
        return view  # type: ignore[no-any-return]

    async def _fold(self, row: RunRow, stream: str) -> tuple[Any, bool]:
        """Return the view of a run as it is now, and whether some of its events cannot be read."""
        engine = self._app._engines.find_incremental(row)
        if engine is None:
            other = self._app._engines.of_run(row)  # first: without an engine, its stream has no type here
            events = await self._app.events.read_all(stream)
            return other.view(events), any(event.is_unreadable for event in events)
        view = await self._app._snapshots.fold(stream, run_reducer(engine))
        engine.finish_view(view)
        return view, bool(getattr(view, "unreadable_events", ()))

    async def _fold_until(self, row: RunRow, stream: str, last_event: str) -> tuple[Any, bool]:
        """Return the view of a run as it was just after an event."""
        events = await self._app.events.read_all(stream)
        event_seq(last_event)  # raises for what is no event id
        index = next((n for n, event in enumerate(events) if last_event in (event.id, f"0-{event.seq}")), None)
        if index is None:
            raise BadId(
                f"run {row.id!r} has no event {last_event!r}; it has {pluralize(len(events), 'event')}"
                + (f", {events[0].id} to {events[-1].id}" if events else "")
            )
        events = events[: index + 1]
        view = self._app._engines.of_run(row).view(events)
        return view, any(event.is_unreadable for event in events)

    @asynccontextmanager
    async def deadline(self, id: str, timeout: Duration | None) -> AsyncIterator[OutageRetry]:
        """Yield a retry policy for reads; raise WaitTimeout with what the run waits for when the time is up."""
        try:
            async with deadline(f"run {id!r}", timeout, "its queues") as outage_retry:
                yield outage_retry
        except WaitTimeout as problem:
            if problem.__cause__ is not None:  # the store does not answer
                raise
            waits = "; ".join(await self.waits_for(await self.row(id)))
            if not waits:
                raise
            late = f"run {id!r} did not end within {format_ms(to_ms(timeout or 0))}"
            raise WaitTimeout(f"{late}; it is {waits}") from None

    def find_problem(self, row: RunRow) -> str | None:
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

    async def wait(self, id: str, outage_retry: OutageRetry) -> RunRow:
        with self._store.signals.listen(f"run:{id}") as listener:
            while True:
                try:
                    row = await outage_retry.call(self.row, id)
                except NotRouted:
                    await listener.wait(ROUTE_POLL_S)
                    continue
                if row.closed:
                    return row
                if row.id != id:
                    return await self.wait(row.id, outage_retry)
                await listener.wait(1.0)

    async def result(self, row: RunRow) -> Any:
        if row.status == COMPLETED:
            # From the record, not from the event, where secrets are redacted.
            if (unreadable := self.find_problem(row)) is not None:
                raise UnreadableRecord(unreadable)
            result = await self._app._engines.read_result(row)
            if result is None:
                raise PayloadTooLarge(
                    f"run {row.id!r} completed, but its result is larger than 64 KB and was not stored; read the "
                    "result of each step: (await app.runs.get(id)).steps"
                )
            return unpack(result)
        last = await self._store.read(self._app._bodies.run(row.kind, row.id), limit=20, backward=True)
        end = next((event for event in last if event.kind in (f"{row.kind}.{row.status}", f"flow.{row.status}")), None)
        data = end.data if end is not None and isinstance(end.data, dict) else {}
        if end is None and any(event.is_unreadable for event in last):
            data = {"reason": _LOST_REASON, "error": _LOST_REASON}
        if row.status == "cancelled":
            reason = data.get("reason")
            raise RunCancelled(f"run {row.id!r} was cancelled{f': {reason}' if reason else ''}")
        step, error = data.get("step"), data.get("error")
        what = "node" if row.kind == DAG else "step"
        was = f"failed in {what} {step!r}" if row.status == FAILED else f"was {row.status} after step {step!r} failed"
        problem = RunFailed(f"run {row.id!r} {was}{f': {error}' if error else ''}")
        kinds = ("step.failed", "node.failed")
        failures = (event.data for event in last if event.kind in kinds and event.step == data.get("step"))
        add_stack(problem, next(failures, None))
        raise problem

    async def engine(self, id: str) -> tuple[str, RunEngine]:
        """Return the run's own id and its engine."""
        row = await self.row(id)
        return row.id, self._app._engines.of_run(row)

    async def row_of_kind(self, id: str, method: str, *kinds: str) -> RunRow:
        """Return the row of a run; raise RunError if it is of none of these kinds."""
        row = await self.row(id)
        if row.kind not in kinds:
            those = " and ".join(f"{kind}s" for kind in kinds)
            raise RunError(f"run {id!r} is of kind {row.kind!r}; only runs of {those} have `{method}`")
        return row

    async def find(self, id: str) -> RunRow | None:
        """Return the row of a run, also by an id that stands for it; None if there is none. Raise NotRouted if the key
        of the run is not known yet."""
        row = await self._store.run(id)
        if row is None and (own := await find_own_id(self._store, id)) is not None:
            row = await self._store.run(own)
        return row

    async def row(self, id: str) -> RunRow:
        """Return the row of a run like `find`; raise UnknownRun if there is none."""
        row = await self.find(id)
        if row is None:
            is_job = await self._store.job(id) is not None
            hint = "this is the id of a job; use app.jobs.result" if is_job else "check the id and the URL"
            raise UnknownRun(f"no run with id {id!r} in {shown_url(self._app.settings.url)}; {hint}")
        return row


def _complete_view(view: RunView, row: RunRow, is_current: bool) -> None:
    """Take from the run's row what its unreadable events may have recorded."""
    view.id, view.name = row.id, view.name or row.flow
    view.started_at = view.started_at or to_iso(row.created)
    if is_current and row.closed:
        view.status, view.completed_at = row.status, view.completed_at or to_iso(row.updated)
