"""Look at handlers that run in any process of the store: a request and its answer are short-lived state keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.errors import RunError, UnknownJob, WaitTimeout
from ..ports.store import StateRow
from ..ports.unit import JobState, StateWrite, Unit
from ..worker.handler_inspection import Inspection, inspect_attempt
from ..worker.worker import Worker

ASK, ANSWER = "inspect/ask/", "inspect/answer/"
TTL_MS = 30_000  # of a request and its answer
SERVE_INTERVAL_S = 1.0
READ_INTERVAL_S = 0.05
MAX_REQUESTS = 20  # at a time


class Inspections:
    """Asks the worker that runs a job, and answers for the worker of this process."""

    def __init__(self, runtime: Runtime, own_worker: Callable[[], Worker | None]) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._own_worker = own_worker

    async def inspect(self, job: str, timeout_s: float) -> Inspection:
        """Return where the handler of a job is. Raise RunError if it does not run, WaitTimeout without answer."""
        if (found := await self._look(job)) is not None:
            return found
        row = await self._store.job(job)
        if row is None:
            raise UnknownJob(f"no job {job!r}")
        if row.state is not JobState.ACTIVE:
            raise RunError(f"job {job!r} is {row.state.value}; only a running handler can be inspected")
        await self._write(StateWrite(ANSWER + job, None), self._expiring(ASK + job, b"null"))
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._read_answer(job)
        except TimeoutError:
            raise WaitTimeout(
                f"the worker that runs job {job!r} has not answered within {timeout_s:g} s; its handler has ended, or "
                "blocks its event loop, or the worker is gone"
            ) from None
        return msgspec.json.decode(answer.value, type=Inspection)

    async def _read_answer(self, job: str) -> StateRow:
        while True:
            if (found := await self._store.state(ANSWER + job)) is not None:
                return found
            await asyncio.sleep(READ_INTERVAL_S)

    async def serve(self) -> None:
        """Answer requests about the jobs that run here, until cancelled. A worker without work reads nothing."""
        while True:
            await asyncio.sleep(SERVE_INTERVAL_S)
            worker = self._own_worker()
            if worker is not None and worker.active:
                await self.answer()

    async def answer(self) -> None:
        """Answer the requests of now."""
        for row in await self._store.states(ASK, limit=MAX_REQUESTS):
            job = row.key.removeprefix(ASK)
            found = await self._look(job)
            if found is not None:
                answer = self._expiring(ANSWER + job, msgspec.json.encode(found))
                await self._write(StateWrite(ASK + job, None), answer)

    async def _look(self, job: str) -> Inspection | None:
        worker = self._own_worker()
        attempt = worker.find_attempt(job) if worker is not None else None
        return await inspect_attempt(attempt, worker.name) if worker is not None and attempt is not None else None

    def _expiring(self, key: str, value: bytes) -> StateWrite:
        return StateWrite(key, value, None, self._runtime.clock.now_ms() + TTL_MS)

    async def _write(self, *writes: StateWrite) -> None:
        unit = Unit(self._runtime.new_unit_id(), state=list(writes))
        await self._runtime.committer.submit(CommitRequest(lambda _v, _r: unit))
