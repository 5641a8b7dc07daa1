"""Waiting for the end of a run or a job, for as long as the caller allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from ..commit.runtime import Runtime
from ..core.clock import datetime_ms
from ..core.durations import Duration, to_ms
from ..core.errors import PayloadTooLarge, RunCancelled, RunFailed, UnknownRun, WaitTimeout
from ..core.ids import BadId, check_id, event_seq, uuid7
from ..core.outage_retry import OutageRetry
from ..core.payload import pack, to_plain, unpack
from ..core.priority import check_priority
from ..flows.commands import Commands
from ..flows.fork import Forks
from ..flows.reducer import FlowView, reduce_flow
from ..flows.run_record import COMPLETED, STATUSES
from ..flows.run_record import decode as decode_record
from ..handlers.registry import Flow
from ..ports.store import RunRow
from .advice import Doubts
from .arguments import a_name, count, one_of, text, texts
from .events import Events


@asynccontextmanager
async def waited(what: str, timeout: Duration | None, queues: str) -> AsyncIterator[OutageRetry]:
    """The patience to ask with; when the time is up, an error that says what it was spent on."""
    patience = OutageRetry(f"the end of {what}")
    try:
        async with asyncio.timeout(to_ms(timeout) / 1000 if timeout is not None else None):
            yield patience
    except TimeoutError:
        if patience.problem is not None:
            message = f"{what} has not been seen to end after {timeout}, the store does not answer: {patience.problem}"
            raise WaitTimeout(message) from patience.problem
        raise WaitTimeout(f"{what} has not ended after {timeout}: is a worker running for {queues}?") from None


class Runs:
    """What `App` does with runs."""

    def __init__(
        self, runtime: Runtime, commands: Commands, forks: Forks, events: Events, doubts: Doubts, where: str
    ) -> None:
        self._store = runtime.store
        self._commands = commands
        self._forks = forks
        self._events = events
        self._bodies = runtime.bodies
        self._clock = runtime.clock
        self._doubts = doubts
        self._registry = runtime.registry
        self._where = where  # the store's URL, fit for a message

    async def start(
        self,
        flow: Flow,
        input: Any,
        *,
        idempotency_key: str | None,
        correlation_id: str | None,
        priority: int | None,
        delay_ms: int,
        tags: Mapping[str, str] | None,
    ) -> str:
        data = pack(input, f"the input of flow {flow.name!r}")
        entry = flow.definition.entry.handler
        plain = unpack(data)
        entry.check_input(plain)
        key = idempotency_key if idempotency_key is not None else entry.key_of(plain, flow.name)
        run = self._id(key)
        began = await self._commands.start(
            flow,
            run,
            data,
            correlation_id=text(correlation_id, "the correlation id"),
            priority=check_priority(priority or 0),
            delay_ms=delay_ms,
            tags=texts(tags, "tags"),
        )
        if not began:
            await self._doubts.other_input(run, plain)
        return run

    async def fork(self, id: str, event: str, key: str | None) -> str:
        row = await self.row(id)
        new = self._id(key)
        await self._forks.fork(row, event, new, self._registry().flow(row.flow))
        return new

    async def view(self, id: str, upto: str | None = None) -> FlowView:
        await self.row(id)
        events = await self._events.read_all(self._bodies.flow(id))
        if upto is None:
            return reduce_flow(events)
        last = event_seq(upto)
        if not any(event.seq == last for event in events):
            raise BadId(
                f"{upto!r} is not an event of run {id!r}, which has {len(events)} of them"
                + (f", {events[0].id} to {events[-1].id}" if events else "")
            )
        return reduce_flow(event for event in events if event.seq <= last)

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
    ) -> list[RunRow]:
        if flow is not None:
            a_name(flow, "flow", "the name of a flow")
        if status is not None:
            one_of(status, STATUSES, "status")
        begun: dict[str, Any] = {}
        if tags:
            begun["meta"] = {"tags": texts(tags, "tags")}
        if where is not None:
            begun["data"] = {"input": to_plain(where, "where")}
        rows = await self._store.runs(
            flow=flow,
            status=status,
            since=self._moment(since),
            until=self._moment(until),
            begun=begun or None,
            before=before,
            limit=count(limit),
        )
        if not rows and before is not None and await self._store.run(before) is None:
            raise BadId(f"before={before!r}: there is no such run, give the id of the last one of the page before")
        return rows

    def _moment(self, given: datetime | Duration | None) -> int | None:
        if given is None or isinstance(given, datetime):
            return None if given is None else datetime_ms(given)
        return self._clock.now_ms() - to_ms(given)

    async def wait(self, id: str, timeout: Duration | None) -> RunRow:
        async with waited(f"run {id!r}", timeout, "its queues") as patience:
            return await self._end(id, patience)

    async def _end(self, id: str, patience: OutageRetry) -> RunRow:
        with self._store.signals.listen(f"run:{id}") as listener:
            while not (row := await patience.call(self.row, id)).closed:
                await listener.wait(1.0)
            return row

    async def result(self, id: str, timeout: Duration | None) -> Any:
        async with waited(f"run {id!r}", timeout, "its queues") as patience:
            row = await self._end(id, patience)
            return await patience.call(self._given, row)

    async def _given(self, row: RunRow) -> Any:
        id = row.id
        if row.status == COMPLETED:
            # From the record, not from the event: there, secrets are hidden.
            result = decode_record(row.record).result()
            if result is None:
                raise PayloadTooLarge(
                    f"the results of run {id!r} are together over 64 KB: read them step by step from app.run(id).steps"
                )
            return unpack(result)
        last = await self._store.read(self._bodies.flow(id), limit=20, backward=True)
        end = next((e for e in last if e.kind == f"flow.{row.status}"), None)
        data = end.data if end is not None and isinstance(end.data, dict) else {}
        if row.status == "cancelled":
            raise RunCancelled(f"run {id!r} was cancelled: {data.get('reason', '')}")
        raise RunFailed(f"run {id!r} {row.status} in step {data.get('step')!r}: {data.get('error', '')}")

    async def row(self, id: str) -> RunRow:
        row = await self._store.run(id)
        if row is None:
            way = (
                "it is a job: ask job_result for its result"
                if await self._store.job(id)
                else "check the id and the URL"
            )
            raise UnknownRun(f"there is no run {id!r} in {self._where}: {way}")
        return row

    def _id(self, key: str | None) -> str:
        return check_id(key, "idempotency key") if key is not None else uuid7(self._clock.now_ms())
