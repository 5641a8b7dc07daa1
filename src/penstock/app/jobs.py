"""Adding plain jobs and waiting for them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from ..commit.committer import Intent
from ..commit.runtime import Runtime
from ..commit.sink import CommandSink
from ..core.durations import to_ms
from ..core.errors import BadArgument, ConfigError, PenstockError, RunFailed, UnknownJob
from ..core.ids import check_job_id, check_name, uuid7
from ..core.outage_retry import OutageRetry
from ..core.payload import pack, unpack
from ..core.priority import check_priority
from ..core.retry import Retries, RetryPolicy
from ..handlers.decorators import definitions_in
from ..handlers.handler import Handler, JobDefinition
from ..handlers.options import KeepOption, read_keep, terms
from ..jobs.engine import JobOptions, new_job
from ..jobs.job_trees import JobTree, Node, read_tree
from ..ports.store import JobRow
from ..ports.unit import Committed, Dedupe, JobState, NewJob, OnFailure, Parent, PublishedOptions, Refused, Unit
from .advice import Doubts
from .arguments import several, text

JOBS_A_COMMIT = 200
LOOK_BACK = 1000  # events of a queue among which the end of a job that is gone is looked for


class Enqueuing:
    """Makes jobs as their handler's definition asks, if the handler is known here."""

    def __init__(self, runtime: Runtime, sink: CommandSink, doubts: Doubts) -> None:
        self._store = runtime.store
        self._sink = sink
        self._bodies = runtime.bodies
        self._clock = runtime.clock
        self._unit_id = runtime.new_unit_id
        self._registry = runtime.registry
        self._doubts = doubts

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
        keep_completed: KeepOption | None = None,
        keep_failed: KeepOption | None = None,
        dedupe: Dedupe | None = None,
    ) -> list[str]:
        """Adds a job for each payload; an id that exists is not added again. Gives the ids in order, and for a job
        whose key another one holds the id of that one."""
        policy = RetryPolicy.of(retry) if retry is not None else None
        options = JobOptions(
            text(correlation_id, "the correlation id"),
            policy,
            keep_completed=read_keep(keep_completed, "keep_completed"),
            keep_failed=read_keep(keep_failed, "keep_failed"),
        )
        make = partial(self.job, name=name, id=id, delay_ms=delay_ms, priority=priority, dedupe=dedupe)
        jobs = _each(several(payloads, "payloads"), lambda payload: make(queue, payload, options))
        ids = [job.id for job in jobs]
        for start in range(0, len(jobs), JOBS_A_COMMIT):
            unit = Unit(self._unit_id(), jobs=jobs[start : start + JOBS_A_COMMIT])
            receipt = await self._sink.submit(Intent(lambda _v, _r, unit=unit: unit))  # type: ignore[misc]
            if isinstance(receipt, Committed):
                for place, holder in receipt.deduplicated.items():
                    ids[start + place] = holder
        await self.doubt(queue, name)
        return ids

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
        dedupe: Dedupe | None = None,
    ) -> NewJob:
        """One job, validated, with the key, delay, priority and rate key its handler's definition gives."""
        data = pack(payload, f"the payload of a job of queue {check_name(queue, 'queue name')!r}")
        handler = self._registry().job(queue, name or "*")
        rate_key, told = None, _terms(handler, options)
        if handler is not None:
            plain = unpack(data)
            handler.check_input(plain)
            id = id if id is not None else handler.key_of(plain)
            rate_key = handler.rate_key_of(plain)
            delay_ms = delay_ms or handler.delay_ms
            priority = handler.priority if priority is None else priority
        now = self._clock.now_ms()
        return new_job(
            id=check_job_id(id) if id is not None else uuid7(now),
            queue=queue,
            name=name or (handler.name if handler is not None else queue),
            payload=data,
            recorder=self._bodies,
            options=options,
            priority=check_priority(0 if priority is None else priority),
            due=now + delay_ms if delay_ms else 0,
            rate_key=rate_key,
            dedupe=dedupe,
            published=told,
        )

    async def result(self, id: str, queue: str | None = None, patience: OutageRetry | None = None) -> Any:
        """Waits for a job's end. One that went when it ended is found by its last event, if its queue is known."""
        patient = patience or OutageRetry(f"the end of job {id!r}")
        stream = self._bodies.queue(queue or (await patient.call(self._row, id)).queue)
        with self._store.signals.listen(f"stream:{stream}") as listener:
            while True:
                row = await patient.call(self._store.job, id)
                if row is None:
                    return await patient.call(self._told, stream, id)
                if row.state == JobState.COMPLETED:
                    return unpack(row.result) if row.result is not None else None
                if row.state in (JobState.FAILED, JobState.CANCELLED):
                    error = unpack(row.error) if row.error is not None else {}
                    raise RunFailed(f"job {id!r} {row.state.value}: {error.get('error', '')}")
                await listener.wait(1.0)

    async def _told(self, stream: str, id: str) -> Any:
        """What the events of a job that is gone say of its end."""
        for event in await self._store.read(stream, limit=LOOK_BACK, backward=True):
            if event.subject == id and event.kind == "job.completed":
                return event.data["result"]
            if event.subject == id and event.kind in ("job.failed", "job.cancelled"):
                raise RunFailed(f"job {id!r} {event.kind.removeprefix('job.')}: {event.data.get('error', '')}")
        raise _unknown(id)

    async def _row(self, id: str) -> JobRow:
        row = await self._store.job(id)
        if row is None:
            raise _unknown(id)
        return row


def _each(payloads: list[Any], make: Callable[[Any], NewJob]) -> list[NewJob]:
    """A job for each payload; an error says which of many it is about."""
    jobs: list[NewJob] = []
    for n, payload in enumerate(payloads):
        try:
            jobs.append(make(payload))
        except PenstockError as problem:
            if len(payloads) > 1:
                problem.args = (f"item {n} of {len(payloads)} (none was added): {problem}", *problem.args[1:])
            raise
    return jobs


def _unknown(id: str) -> UnknownJob:
    return UnknownJob(f"there is no job {id!r}: it may have been removed, or be in another store")


def _terms(handler: Handler | None, options: JobOptions) -> PublishedOptions | None:
    """What is known here of how the job will be tried and kept."""
    policy = options.retry or (handler.retry if handler is not None else None)
    keeps = (options.keep_completed, options.keep_failed)
    if handler is not None:
        keeps = (keeps[0] or handler.keep_completed, keeps[1] or handler.keep_failed)
    return terms(policy or RetryPolicy(), *keeps) if policy is not None or keeps != (None, None) else None


class Families:
    """Adds parents with their children."""

    def __init__(self, runtime: Runtime, enqueuing: Enqueuing) -> None:
        self._enqueuing = enqueuing
        self._sink = runtime.committer
        self._unit_id = runtime.new_unit_id
        self._registry = runtime.registry

    async def add(self, given: Node | Mapping[str, Any], correlation_id: str | None) -> JobTree:
        """Adds the whole tree; nothing of it if a job of the root's id is there already."""
        jobs: list[NewJob] = []
        tree = self._plan(read_tree(given), None, None, text(correlation_id, "the correlation id"), jobs)
        _check_ids(jobs)
        unit = Unit(self._unit_id(), jobs=jobs)
        receipt = await self._sink.submit(Intent(lambda _v, _r: unit))
        if isinstance(receipt, Refused):
            raise BadArgument(
                f"there is a job {receipt.key!r} already, so the tree was not added: give that child another id or none"
            )
        for queue in dict.fromkeys(job.queue for job in jobs):
            await self._enqueuing.doubt(queue)
        return tree

    def _plan(
        self, node: Node, id: str | None, parent: Parent | None, correlation: str | None, jobs: list[NewJob]
    ) -> JobTree:
        """Parents come before their children. Ids of children follow from their parent's, so that a tree with an id is
        the same tree when it is added again."""
        queue, name = self.place(node.job, node.name)
        policy = RetryPolicy.of(node.retry) if node.retry is not None else None
        options = JobOptions(correlation, policy, waits=bool(node.children), parent=parent)
        job = self._enqueuing.job(
            queue,
            node.input,
            options,
            name=name,
            id=node.id if node.id is not None else id,
            delay_ms=to_ms(node.delay) if node.delay is not None else 0,
            priority=node.priority,
        )
        jobs.append(msgspec.structs.replace(job, waits_for_children=bool(node.children), parent=parent))
        children = [
            self._plan(child, f"{job.id}-c{n}", Parent(job.id, queue, OnFailure(child.on_failure)), correlation, jobs)
            for n, child in enumerate(node.children, 1)
        ]
        return JobTree(job.id, queue, job.name, children)

    def place(self, job: str | Callable[..., Any], name: str | None) -> tuple[str, str | None]:
        """The queue and the name of a job, given its queue or the function that handles it."""
        if not callable(job):
            return job, name
        fn = inspect.unwrap(job)
        given = [one.handler for one in definitions_in(job) if isinstance(one, JobDefinition)]
        known = [
            handler
            for handler in [one.handler for one in self._registry().jobs.values()]
            if handler.fn is fn or handler.fn is job
        ]
        for handler in [*known, *given]:
            return handler.home, name or handler.name
        shown = getattr(job, "__name__", job)
        raise ConfigError(f"{shown!r} is not marked with @job, so no job can be made of it: mark it, or name a queue")


def _check_ids(jobs: Sequence[NewJob]) -> None:
    counts = Counter(job.id for job in jobs)
    for id, count in counts.items():
        if count > 1:
            raise BadArgument(f"the tree has {count} jobs with the id {id!r}: give each an id of its own, or none")
