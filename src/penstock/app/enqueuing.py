"""Adding plain jobs and waiting for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from ..core.clock import Clock
from ..core.errors import RunFailed, UnknownJob
from ..core.ids import check_job_id, check_name, uuid7
from ..core.payload import pack, unpack
from ..core.priority import check_priority
from ..core.retry import Retries, RetryPolicy
from ..jobs.committer import Committer, Intent
from ..jobs.definition import Handler
from ..jobs.engine import JobOptions, new_job
from ..ports.store import JobRow, Store
from ..ports.unit import JobState, NewJob, Unit
from ..telemetry.recorder import Recorder
from .doubts import Doubts
from .given import several, text

JOBS_A_COMMIT = 200


class Enqueuing:
    """Makes jobs as their handler's definition asks, if the handler is known here."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        recorder: Recorder,
        clock: Clock,
        unit_id: Callable[[], str],
        find: Callable[[str, str], Handler | None],
        doubts: Doubts,
    ) -> None:
        self._store = store
        self._committer = committer
        self._recorder = recorder
        self._clock = clock
        self._unit_id = unit_id
        self._find = find
        self._doubts = doubts

    def by(self, committer: Committer) -> Enqueuing:
        """The same, jobs being committed another way."""
        other = copy(self)
        other._committer = committer
        return other

    async def add(
        self,
        queue: str,
        payloads: Sequence[Any],
        *,
        name: str | None = None,
        id: str | None = None,
        delay_ms: int = 0,
        priority: int | None = None,
        retry: Retries | None = None,
        correlation_id: str | None = None,
    ) -> list[str]:
        """Adds a job for each payload; an id that exists is not added again. Gives the ids in order."""
        policy = RetryPolicy.of(retry) if retry is not None else None
        options = JobOptions(text(correlation_id, "the correlation id"), policy)
        jobs = [
            self.job(queue, payload, options, name=name, id=id, delay_ms=delay_ms, priority=priority)
            for payload in several(payloads, "payloads")
        ]
        for start in range(0, len(jobs), JOBS_A_COMMIT):
            unit = Unit(self._unit_id(), jobs=jobs[start : start + JOBS_A_COMMIT])
            await self._committer.submit(Intent(lambda _v, _r, unit=unit: unit))  # type: ignore[misc]
        await self.doubt(queue, name)
        return [job.id for job in jobs]

    async def doubt(self, queue: str, name: str | None = None) -> None:
        """Warns of a queue nobody works on."""
        await self._doubts.unworked(queue, name)

    def job(
        self,
        queue: str,
        payload: Any,
        options: JobOptions,
        *,
        name: str | None = None,
        id: str | None = None,
        delay_ms: int = 0,
        priority: int | None = None,
    ) -> NewJob:
        """One job, validated, with the key, delay, priority and rate key its handler's definition gives."""
        data = pack(payload, f"the payload of a job of queue {check_name(queue, 'queue name')!r}")
        handler = self._find(queue, name or "*")
        rate_key = None
        if handler is not None:
            plain = unpack(data)
            handler.check_input(plain)
            id = id or handler.key_of(plain)
            rate_key = handler.rate_key_of(plain)
            delay_ms = delay_ms or handler.delay_ms
            priority = handler.priority if priority is None else priority
        now = self._clock.now_ms()
        return new_job(
            id=check_job_id(id) if id is not None else uuid7(now),
            queue=queue,
            name=name or (handler.name if handler is not None else queue),
            payload=data,
            recorder=self._recorder,
            options=options,
            priority=check_priority(0 if priority is None else priority),
            due=now + delay_ms if delay_ms else 0,
            rate_key=rate_key,
        )

    async def result(self, id: str) -> Any:
        """Waits for a job's end."""
        row = await self._row(id)
        with self._store.signals.listen(f"stream:{self._recorder.queue(row.queue)}") as listener:
            while True:
                row = await self._row(id)
                if row.state == JobState.COMPLETED:
                    return unpack(row.result) if row.result is not None else None
                if row.state in (JobState.FAILED, JobState.CANCELLED):
                    error = unpack(row.error) if row.error is not None else {}
                    raise RunFailed(f"job {id!r} {row.state.value}: {error.get('error', '')}")
                await listener.wait(1.0)

    async def _row(self, id: str) -> JobRow:
        row = await self._store.job(id)
        if row is None:
            raise UnknownJob(f"there is no job {id!r}: it may have been removed, or be in another store")
        return row
