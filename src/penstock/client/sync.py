"""`SyncClient`: the client for code without an event loop."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ..app.portal import Portal
from .client import Client
from .sync_facets import (
    SyncAlerts,
    SyncBlobs,
    SyncDags,
    SyncDeadLetters,
    SyncEntities,
    SyncEvents,
    SyncFlows,
    SyncJobs,
    SyncQueues,
    SyncRuns,
    SyncSchedules,
    SyncShortcuts,
    SyncState,
    SyncTokens,
    SyncWaits,
    SyncWebhooks,
    SyncWorkers,
)


class SyncClient(SyncShortcuts):
    """A Penstock server, for code without an event loop. Each call waits for its answer.

        with SyncClient("https://ops.example.com", token="pst_…") as client:
            print(client.result(client.start("shop", {"order": 7})))

    Args:
        url: Address of the server: what `penstock serve` prints.
        token: A token from `penstock tokens add`. Default: the environment variable `PENSTOCK_TOKEN`.
        reveal: Get secrets as they are instead of "[redacted]". It requires the role admin and is recorded.
    """

    def __init__(self, url: str, *, token: str | None = None, reveal: bool = False) -> None:
        self._thread = Portal()

        async def make() -> Client:
            return Client(url, token=token, reveal=reveal)

        try:
            self._client = self._thread.call(make())
        except BaseException:
            self._thread.close()
            raise
        self.runs = SyncRuns(self._thread, self._client.runs)
        self.jobs = SyncJobs(self._thread, self._client.jobs)
        self.queues = SyncQueues(self._thread, self._client.queues)
        self.dead_letters = SyncDeadLetters(self._thread, self._client.dead_letters)
        self.schedules = SyncSchedules(self._thread, self._client.schedules)
        self.waits = SyncWaits(self._thread, self._client.waits)
        self.events = SyncEvents(self._thread, self._client.events)
        self.state = SyncState(self._thread, self._client.state)
        self.blobs = SyncBlobs(self._thread, self._client.blobs)
        self.webhooks = SyncWebhooks(self._thread, self._client.webhooks)
        self.alerts = SyncAlerts(self._thread, self._client.alerts)
        self.dags = SyncDags(self._thread, self._client.dags)
        self.entities = SyncEntities(self._thread, self._client.entities)
        self.flows = SyncFlows(self._thread, self._client.flows)
        self.workers = SyncWorkers(self._thread, self._client.workers)
        self.tokens = SyncTokens(self._thread, self._client.tokens)

    @property
    def client(self) -> Client:
        """The Client behind it, which lives on another thread."""
        return self._client

    @property
    def _portal(self) -> Portal:
        return self._thread

    def close(self) -> None:
        """Close the connections. `with` does it."""
        self._thread.call(self._client.close())
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
