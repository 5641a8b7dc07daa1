"""`Client`: App's facets over HTTP."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, overload

import httpx

from ..app.diagnosis import Check
from ..app.run_handle import R, Run
from ..core.argument_checks import check_arguments
from ..core.durations import Duration
from ..core.retry import RetryOption
from ..handlers.options import KeepOption
from .alerts import Alerts
from .blobs import Blobs
from .connection import Connection
from .dags import Dags
from .dead_letters import DeadLetters
from .entities import Entities
from .events import Events
from .jobs import Jobs
from .queues import Queues
from .runs import Runs
from .schedules import Schedules
from .server import Flows, Tokens, Workers
from .state import State
from .waits import Waits
from .webhooks import Webhooks

TOKEN_VARIABLE = "PENSTOCK_TOKEN"  # noqa: S105


@check_arguments
class Client:
    """A Penstock server, with the facets and method names of App, for services that do not open the store.

        async with Client("https://ops.example.com", token="pst_…") as client:
            run = await client.start("shop", {"order": 7})
            print(await run.result(timeout="1m"))

    Args:
        url: Address of the server: what `penstock serve` prints.
        token: A token from `penstock tokens add`. Default: the environment variable `PENSTOCK_TOKEN`.
        reveal: Get secrets as they are instead of "[redacted]". It requires the role admin and is recorded.
        transport: A transport of httpx, for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        reveal: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = Connection(url, token or os.environ.get(TOKEN_VARIABLE), reveal, transport)
        self.runs = Runs(self._connection)
        self.jobs = Jobs(self._connection)
        self.queues = Queues(self._connection)
        self.dead_letters = DeadLetters(self._connection)
        self.schedules = Schedules(self._connection)
        self.waits = Waits(self._connection)
        self.events = Events(self._connection)
        self.state = State(self._connection)
        self.blobs = Blobs(self._connection)
        self.webhooks = Webhooks(self._connection)
        self.alerts = Alerts(self._connection)
        self.flows = Flows(self._connection)
        self.dags = Dags(self._connection)
        self.entities = Entities(self._connection)
        self.workers = Workers(self._connection)
        self.tokens = Tokens(self._connection)

    async def close(self) -> None:
        """Close the connections. `async with` does it."""
        await self.events.close()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

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
        """Start a run of a flow and return its handle: its id, with methods. Short for `client.runs.start`.

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
        return await self.runs.start(
            flow,
            input,
            key=key,
            correlation_id=correlation_id,
            priority=priority,
            delay=delay,
            at=at,
            tags=tags,
            result=result,
        )

    async def emit(
        self,
        kind: str,
        data: Any = None,
        *,
        run: str | None = None,
        key: str | None = None,
        tags: Collection[str] | None = None,
    ) -> bool:
        """Emit an event, globally or to one run. Short for `client.events.emit`.

        Args:
            kind: Kind of the event: dotted words such as "order.paid".
            data: Any JSON value.
            run: Id of the run that receives it. Default: every run that waits for it, and flows with `start_on`.
            key: Idempotency key; an event with a key that was used before is not emitted.
            tags: Words to filter events by, such as ["audit", "eu"].
        """
        return await self.events.emit(kind, data, run=run, key=key, tags=tags)

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
        """Enqueue a job and return its id. Short for `client.jobs.enqueue`.

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
        return await self.jobs.enqueue(
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

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Wait for a run to end and return its result. Short for `client.runs.result`.

        Args:
            id: The run's id.
            timeout: Raise WaitTimeout after this long.
        """
        return await self.runs.result(id, timeout=timeout)

    async def diagnose(self) -> Sequence[Check]:
        """Run the health checks of `penstock doctor` on the server. It requires the role admin."""
        return await self._connection.get(list[Check], "/api/_doctor")

    async def describe(self) -> dict[str, Any]:
        """Return everything that the server found in its worker files."""
        return await self._connection.get(dict[str, Any], "/api/_registry")
