"""`app.queues`: counts, rates, limits, keys, pause, resume, drain and the events of queues."""

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
from .queue_limits import LimitOverrides, limits_view, read_new_limits
from .views import QueueKey, QueueKeysView, QueueLimitsView, QueueMinute, QueueView

KEY_LOOK = 2_000  # jobs of each state that are read to count keys


@check_arguments
class Queues:
    """Queue administration. Single jobs are in `app.jobs`."""

    def __init__(self, runtime: Runtime) -> None:
        self._store = runtime.store
        self._streams = runtime.bodies
        self._registry = runtime.registry
        self._clock = runtime.clock
        self._rates = runtime.committer.rates
        self._overrides = LimitOverrides(runtime)

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

    async def limits(self, queue: str) -> QueueLimitsView:
        """Return the limits of a queue: what applies, what its handlers declare, and what `set_limits` changed.

        Args:
            queue: The queue's name.
        """
        await self._get(queue)
        return limits_view(queue, self._registry().handlers(), (await self._overrides.read()).get(queue))

    async def set_limits(
        self,
        queue: str,
        *,
        concurrency: int | None = None,
        max_active: int | None = None,
        rate_limit: str | None = None,
        per_key: bool = False,
    ) -> QueueLimitsView:
        """Change the limits of a queue while workers run. They follow within two seconds, and after each restart.

        What is not passed is as the handlers declare. The window of a rate limit starts over. Jobs that run are not
        stopped.

        Args:
            queue: The queue's name.
            concurrency: Maximum number of handlers at once in each worker.
            max_active: Maximum number of jobs at once, over all workers.
            rate_limit: Maximum number of starts over all workers, such as "100/1m".
            per_key: Whether the rate limit applies to each rate key of the jobs.
        """
        handlers = self._registry().handlers()
        limits = read_new_limits(
            queue,
            handlers,
            concurrency=concurrency,
            max_active=max_active,
            rate_limit=rate_limit,
            per_key=per_key,
        )
        await self._get(queue)
        await self._overrides.set(queue, *limits)
        return await self.limits(queue)

    async def reset_limits(self, queue: str) -> QueueLimitsView:
        """Return to the limits that the handlers of a queue declare.

        Args:
            queue: The queue's name.
        """
        await self._get(queue)
        await self._overrides.remove(queue)
        return await self.limits(queue)

    async def top_keys(self, queue: str, *, limit: int = 10) -> QueueKeysView:
        """Return the order keys and rate keys of a queue with the most open jobs: who fills it.

        A job counts with its order key, else with its rate key. The first 2,000 jobs of each state are read.

        Args:
            queue: The queue's name.
            limit: Maximum number of keys.
        """
        await self._get(queue)
        counts: dict[str, dict[str, int]] = {}
        for row in await self._store.open_keys(queue, KEY_LOOK):
            counts.setdefault(row.key, {})[row.state] = row.count
        keys = [QueueKey(key, sum(states.values()), states) for key, states in counts.items()]
        keys.sort(key=lambda one: (-one.total, one.key))
        return QueueKeysView(queue, keys[:limit], max(len(keys) - limit, 0), KEY_LOOK)

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
