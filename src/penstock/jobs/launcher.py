"""The launcher: builds what a handler starts with `ctx.enqueue` and `ctx.start`, as jobs of its attempt's commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from ..commit.runtime import Runtime
from ..context.launches import JobLaunch, RunLaunch
from ..core.arguments import check_optional_text, check_tags, resolve_due
from ..core.ids import check_id, digest
from ..core.options import check_key, check_priority
from ..core.payload import pack, unpack
from ..core.retry import RetryPolicy
from ..handlers.registry import find_flow
from ..ports.unit import DELIVERIES, START, NewJob
from ..worker.outcomes import Launch, Work, pack_record
from .engine import JobOptions
from .job_builder import JobBuilder

WarnAboutQueue = Callable[[str, str | None], Awaitable[None]]


class RunStart(msgspec.Struct, omit_defaults=True, rename="camel"):
    """The payload of the internal job that starts a run: its unit cannot write two runs."""

    flow: str
    run: str
    input: Any
    correlation_id: str
    parent: str
    priority: int = 0
    due: int = 0  # of the first step, in milliseconds
    tags: dict[str, str] = {}


class Launcher:
    """Builds launches with the handlers of one App."""

    def __init__(self, runtime: Runtime, warn_about_queue: WarnAboutQueue | None = None) -> None:
        self._runtime = runtime
        self._builder = JobBuilder(runtime)
        self._warn_about_queue = warn_about_queue

    def label(self, launch: JobLaunch | RunLaunch) -> str:
        """Return what is started, in words that a replay compares."""
        if isinstance(launch, RunLaunch):
            return f"flow {find_flow(self._runtime.registry(), launch.flow).name!r}"
        queue, name = self._builder.resolve(launch.queue, launch.name)
        return f"queue {queue!r}" if name is None else f"job {name!r} of queue {queue!r}"

    def build(self, launch: JobLaunch | RunLaunch, work: Work, index: int) -> Launch:
        """Validate a launch and build its job. `index` counts the launches of the handler: it makes the id."""
        if isinstance(launch, RunLaunch):
            return self._build_run(launch, work, index)
        queue, name = self._builder.resolve(launch.queue, launch.name)
        options = JobOptions(
            check_optional_text(launch.correlation_id, "the correlation id") or work.correlation_id,
            RetryPolicy.parse(launch.retry) if launch.retry is not None else None,
            order_key=check_key(launch.order_key, "order_key") if launch.order_key is not None else None,
        )
        job = self._builder.build(
            queue,
            launch.input,
            options,
            name=name,
            key=launch.key,
            default_key=_make_id(queue, work, index),
            due=resolve_due(launch.delay, launch.at, self._runtime.clock),
            priority=launch.priority,
            parent=_parent(work),
        )
        return Launch(self.label(launch), job.id, job)

    async def warn(self, launches: Sequence[Launch]) -> None:
        """Warn about jobs that no handler takes: the queue is most likely misspelt."""
        for launch in launches:
            queue, name = launch.job.queue, launch.job.name
            if self._warn_about_queue is None or launch.is_run or self._runtime.registry().job(queue, name) is not None:
                continue
            await self._warn_about_queue(queue, name if name != queue else None)

    def _build_run(self, launch: RunLaunch, work: Work, index: int) -> Launch:
        runtime = self._runtime
        flow = find_flow(runtime.registry(), launch.flow)
        data = pack(launch.input, f"the input of flow {flow.name!r}")
        entry, value = flow.definition.entry.handler, unpack(data)
        entry.check_start(value, f"flow {flow.name!r}")
        key = launch.key if launch.key is not None else entry.make_key(value, flow.name)
        run = check_id(key, "idempotency key") if key is not None else _make_id(flow.name, work, index)
        start = RunStart(
            flow.name,
            run,
            value,
            check_optional_text(launch.correlation_id, "the correlation id") or work.correlation_id,
            _parent(work),
            check_priority(launch.priority) if launch.priority else 0,
            resolve_due(launch.delay, launch.at, runtime.clock),
            check_tags(launch.tags, "tags"),
        )
        job = NewJob(f"start.{_make_id(flow.name, work, index)}", DELIVERIES, START, pack_record(start))
        return Launch(f"flow {flow.name!r}", run, job, is_run=True)


def _make_id(name: str, work: Work, index: int) -> str:
    """Return the id of a launch: the same in every attempt, and another one if the job runs again with other input."""
    claim = work.claim
    return f"{name}-{digest(b'%b %d %b' % (claim.scope.encode(), index, claim.payload))}"


def _parent(work: Work) -> str:
    return work.run_id if work.run_id is not None else work.claim.job


def read_run_start(payload: Any) -> RunStart:
    """Read the payload of the internal job that starts a run."""
    return msgspec.convert(payload, RunStart)
