"""`app.queues`: counts, rates, pause, resume, drain and the events of queues."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from ..commit.runtime import Runtime
from ..core.argument_checks import check_arguments
from ..core.clock import to_iso
from ..core.durations import Duration, to_ms
from ..core.errors import UnknownQueue
from ..core.events import Event
from ..core.near_match import did_you_mean
from ..ports.monitoring import MINUTE_MS, RATES_KEPT_MS, MinuteCounts
from ..ports.store import QueueRow, SharedQueues
from ..ports.unit import DELIVERIES, JobState
from .events import check_then_follow
from .views import QueueMinute, QueueView


@check_arguments
class Queues:
    """Queue administration. Single jobs are in `app.jobs`."""

    def __init__(self, runtime: Runtime) -> None:
        self._store = runtime.store
        self._streams = runtime.bodies
        self._registry = runtime.registry
        self._clock = runtime.clock
        self._rates = runtime.committer.rates

    async def list(self, *, internal: bool = False) -> list[QueueView]:
        """Return every queue with its counts by state, also those of loaded handlers that are still empty.

        Args:
            internal: Include the queue on which events are delivered to waiting steps.
        """
        rows, now = await self._store.queues(), self._clock.now_ms()
        queues = {row.name: _view(row, now) for row in rows}
        if not internal:
            queues.pop(DELIVERIES, None)
        for name in self._registry().queues():
            queues.setdefault(name, QueueView(name, False, {state.value: 0 for state in JobState}))
        return [queues[name] for name in sorted(queues)]

    async def counts(self, queue: str) -> dict[str, int]:
        """Return the number of jobs of a queue in each state.

        Args:
            queue: The queue's name.
        """
        return (await self._get(queue)).counts

    async def rates(self, queue: str, *, since: Duration = "1h") -> Sequence[QueueMinute]:
        """Return what happened to the jobs of a queue, one row for each minute, oldest first. A week is kept.

        Every process counts what it commits and adds it to the store every 5 seconds. A process that is killed loses
        the counts of its last 5 seconds. Jobs that are added with `tx=` on the same database are not counted.

        Args:
            queue: The queue's name.
            since: How far to look back.
        """
        await self._get(queue)
        if self._rates is not None:
            await self._rates.flush()
        now = self._clock.now_ms()
        first = max(now - to_ms(since), now - RATES_KEPT_MS) // MINUTE_MS * MINUTE_MS
        found = {one.minute: one for one in await self._store.rates(queue, first)}
        last = max([now, *found]) // MINUTE_MS * MINUTE_MS
        minutes = (found.get(at) or MinuteCounts(queue, at) for at in range(first, last + 1, MINUTE_MS))
        return [QueueMinute(to_iso(one.minute), one.added, one.completed, one.failed, one.retried) for one in minutes]

    async def pause(self, queue: str) -> None:
        """Stop handing out jobs of a queue. Running jobs end.

        Args:
            queue: The queue's name.
        """
        await self._get(queue)
        await self._store.pause(queue)

    async def resume(self, queue: str) -> None:
        """Hand out jobs of a paused queue again.

        Args:
            queue: The queue's name.
        """
        await self._get(queue)
        await self._store.resume(queue)

    async def drain(self, queue: str, *, delayed: bool = False) -> int:
        """Delete the waiting plain jobs of a queue and return their number.

        Args:
            queue: The queue's name.
            delayed: Delete delayed jobs too.
        """
        await self._get(queue)
        return await self._store.drain(queue, delayed=delayed)

    def events(self, queue: str, *, after: str | None = None, shared: bool = False) -> AsyncIterator[Event]:
        """Iterate over the job events of a queue, then follow it live.

        Args:
            queue: The queue's name.
            after: Id of the last event seen.
            shared: On Redis, include jobs that BullMQ workers of other programs run. `after` is then an id of such an
                event. Elsewhere it makes no difference.
        """
        if shared and isinstance(self._store, SharedQueues):
            return self._store.job_events(queue, after=after)
        stream = self._streams.queue(queue)

        async def check() -> None:
            if not await self._store.read(stream, limit=1):  # a removed queue may have events left
                await self._get(queue)

        return check_then_follow(check, self._store.tail(stream, after=after))

    async def _get(self, queue: str) -> QueueView:
        for view in await self.list(internal=True):
            if view.name == queue:
                return view
        names = [view.name for view in await self.list()]
        hint = did_you_mean(queue, names) or f"known queues: {', '.join(names) or 'none'}"
        raise UnknownQueue(f"no queue named {queue!r}; {hint}")


def _view(row: QueueRow, now: int) -> QueueView:
    if row.oldest is None:
        return QueueView(row.name, row.paused, row.counts)
    return QueueView(row.name, row.paused, row.counts, to_iso(row.oldest), max(now - row.oldest, 0))
