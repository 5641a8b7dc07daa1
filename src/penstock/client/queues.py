"""`client.queues`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import msgspec

from ..app.views import QueueKeysView, QueueLimitsView, QueueMinute, QueueView
from ..core.argument_checks import check_arguments
from ..core.durations import Duration
from ..core.events import Event
from .connection import Connection
from .times import show_duration

Minutes = list[QueueMinute]
QUEUE = "/api/_queue/{}"


@check_arguments
class Queues:
    """Queue administration. Single jobs are in `client.jobs`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(self, *, internal: bool = False) -> list[QueueView]:
        """Return every queue with its counts by state.

        Args:
            internal: Include the queue on which events are delivered to waiting steps.
        """
        return await self._connection.get(list[QueueView], "/api/_queue", internal=internal)

    async def counts(self, queue: str) -> dict[str, int]:
        """Return the number of jobs of a queue in each state.

        Args:
            queue: The queue's name.
        """
        return (await self._connection.get(QueueView, QUEUE, queue)).counts

    async def pause(self, queue: str) -> None:
        """Stop handing out jobs of a queue. Running jobs end.

        Args:
            queue: The queue's name.
        """
        await self._connection.post(QueueView, QUEUE + "/pause", queue)

    async def resume(self, queue: str) -> None:
        """Hand out jobs of a paused queue again.

        Args:
            queue: The queue's name.
        """
        await self._connection.post(QueueView, QUEUE + "/resume", queue)

    async def drain(self, queue: str, *, delayed: bool = False) -> int:
        """Delete the waiting plain jobs of a queue and return their number.

        Args:
            queue: The queue's name.
            delayed: Delete delayed jobs too.
        """
        return (await self._connection.post(dict[str, int], QUEUE + "/drain", queue, delayed=delayed))["removed"]

    async def rates(self, queue: str, *, since: Duration = "1h") -> Sequence[QueueMinute]:
        """Return what happened to the jobs of a queue, one row for each minute, oldest first. A week is kept.

        Args:
            queue: The queue's name.
            since: How far to look back.
        """
        return await self._connection.get(Minutes, QUEUE + "/rates", queue, since=show_duration(since))

    async def limits(self, queue: str) -> QueueLimitsView:
        """Return the limits of a queue: what applies, what its handlers declare, and what `set_limits` changed.

        Args:
            queue: The queue's name.
        """
        return await self._connection.get(QueueLimitsView, QUEUE + "/limits", queue)

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
        limits = {"concurrency": concurrency, "maxActive": max_active, "rateLimit": rate_limit, "perKey": per_key}
        return await self._connection.request("PUT", QueueLimitsView, QUEUE + "/limits", queue, body=limits)

    async def reset_limits(self, queue: str) -> QueueLimitsView:
        """Return to the limits that the handlers of a queue declare.

        Args:
            queue: The queue's name.
        """
        return await self._connection.delete(QueueLimitsView, QUEUE + "/limits", queue)

    async def top_keys(self, queue: str, *, limit: int = 10) -> QueueKeysView:
        """Return the order keys and rate keys of a queue with the most open jobs: who fills it.

        A job counts with its order key, else with its rate key. The first 2,000 jobs of each state are read.

        Args:
            queue: The queue's name.
            limit: Maximum number of keys.
        """
        return await self._connection.get(QueueKeysView, QUEUE + "/keys", queue, limit=limit)

    async def events(self, queue: str, *, after: str | None = None, shared: bool = False) -> AsyncIterator[Event]:
        """Iterate over the job events of a queue, then follow it live.

        Args:
            queue: The queue's name.
            after: Id of the last event seen. Default: from the beginning.
            shared: On Redis, include jobs that BullMQ workers of other programs run. `after` is then an id of such an
                event. Elsewhere it makes no difference.
        """
        await self.counts(queue)
        messages = self._connection.follow(QUEUE + "/events", queue, after=after or "", shared=shared)
        async with aclosing(messages):
            async for message in messages:
                yield msgspec.json.decode(message.data, type=Event)
