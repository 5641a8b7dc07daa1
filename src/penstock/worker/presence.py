"""Presence: a worker reports that it is alive, beside its work and not with each job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec

from ..core.errors import StoreError
from ..core.ids import new_token
from ..core.outage_retry import OutageLog
from ..ports.monitoring import Presence, WorkerRow

REPORT_INTERVAL_S = 5.0
PRESENCE_TTL_MS = 30_000  # a worker that was killed is listed for at most this long
REMOVE_TIMEOUT_S = 2.0


class WorkerFacts(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a worker reports about itself."""

    name: str
    host: str
    pid: int
    version: str  # of Penstock
    fingerprint: str  # of the loaded handlers
    queues: tuple[str, ...]
    slots: int
    busy: int
    started: int
    handlers: dict[str, str] = {}  # the fingerprint of each handler
    is_scoped: bool = False  # it works only on some runs


class UnreadableFacts(msgspec.Struct, frozen=True):
    """A report that this version cannot read: another version, or another program, wrote it."""

    problem: str


def read_facts(row: WorkerRow) -> WorkerFacts | UnreadableFacts:
    """Decode the report of a worker."""
    try:
        return msgspec.json.decode(row.facts, type=WorkerFacts)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        return UnreadableFacts(str(problem))


class PresenceReporter:
    """Reports one worker until it is cancelled. A store that is away is asked again with the next report."""

    def __init__(self, store: Presence, outages: OutageLog, collect: Callable[[], WorkerFacts]) -> None:
        self.id = new_token()  # two workers may have the same name
        self._store = store
        self._outages = outages
        self._collect = collect

    async def run(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(REPORT_INTERVAL_S)

    async def report(self) -> None:
        """Write that the worker is alive, and what it does."""
        try:
            await self._store.report_worker(self.id, msgspec.json.encode(self._collect()), PRESENCE_TTL_MS)
        except StoreError as problem:
            self._outages.report_failure("cannot report that this worker is alive, retrying later", problem)

    async def remove(self) -> None:
        """Forget the worker, which has stopped. If the store is away, the report expires."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(REMOVE_TIMEOUT_S):
                await self._store.remove_worker(self.id)
