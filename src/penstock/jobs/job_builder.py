"""Building plain jobs: resolve the queue, validate the input, apply the options of the handler if it is known here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..commit.runtime import Runtime
from ..core.argument_checks import MAX_WORD_CHARS, check_optional_text
from ..core.errors import ConfigError
from ..core.events import EventBodies
from ..core.ids import ROUTE_SUFFIX, check_job_id, check_name, route_id, uuid7
from ..core.options import check_priority
from ..core.payload import pack, unpack
from ..core.retry import RetryPolicy
from ..core.text import check_text, shorten
from ..core.trace_context import current_trace
from ..handlers.decorators import read_definitions
from ..handlers.handler import Handler, JobDefinition
from ..ports.script_files import Deferred
from ..ports.unit import DELIVERIES, ROUTE_JOB, Dedupe, NewJob, PublishedOptions
from .engine import JobOptions, encode_options, new_job


class JobPlan(msgspec.Struct, omit_defaults=True):
    """What a plain job is built from."""

    id: str
    queue: str
    name: str
    payload: msgspec.Raw
    options: JobOptions
    is_routed: bool = False  # a function of another language returns one of its keys
    is_keyed: bool = False  # and that is the key which will be its id
    priority: int = 0
    due: int = 0
    rate_key: str | None = None
    dedupe: Dedupe | None = None
    published: PublishedOptions | None = None
    parent: str | None = None
    waits_for_children: bool = False

    def build(self, bodies: EventBodies) -> NewJob:
        """Build the job."""
        job = new_job(
            id=self.id,
            queue=self.queue,
            name=self.name,
            payload=bytes(self.payload),
            bodies=bodies,
            options=self.options,
            priority=self.priority,
            due=self.due,
            rate_key=self.rate_key,
            dedupe=self.dedupe,
            published=self.published,
            parent=self.parent,
        )
        if not self.waits_for_children and self.options.parent is None:
            return job
        return msgspec.structs.replace(job, waits_for_children=self.waits_for_children, parent=self.options.parent)


def build_route(plans: Sequence[JobPlan]) -> NewJob:
    """Build the route of a job, or of a tree of jobs, parents before children.

    Jobs with an order key keep their order: so do their routes."""
    first = plans[0]
    order = first.options.order_key
    key = f"{first.queue}/{order}" if order is not None else None
    options = JobOptions(first.options.correlation_id, order_key=key, trace=first.options.trace)
    payload, opts = encode_options(list(plans)), encode_options(options)
    return NewJob(route_id(first.id), DELIVERIES, ROUTE_JOB, payload, opts=opts, order_key=key)


def public_id(job: NewJob) -> str:
    """Return the id of a job for those who enqueue it: of a route, that of the job it will add."""
    return job.id.removesuffix(ROUTE_SUFFIX) if job.queue == DELIVERIES else job.id


class JobBuilder:
    """Builds jobs with the handlers of one App."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def resolve(self, job: str | Callable[..., Any], name: str | None) -> tuple[str, str | None]:
        """Return the queue and the name of a job, from a queue's name or from the function marked with `@job`."""
        if not callable(job):
            return check_text(job, "queue", MAX_WORD_CHARS), name
        fn = inspect.unwrap(job) if hasattr(job, "__wrapped__") else job
        registered = [one.handler for one in self._runtime.registry().jobs.values()]
        handlers = [handler for handler in registered if handler.fn is fn or handler.fn is job]
        if not handlers:
            handlers = [one.handler for one in read_definitions(job) if isinstance(one, JobDefinition)]
        if handlers:
            return handlers[0].queue_name, name or handlers[0].name
        shown = shorten(getattr(job, "__name__", job))
        raise ConfigError(f"{shown} is not a job; decorate it with @job, or pass the name of a queue")

    def build(
        self,
        queue: str,
        input: Any,
        options: JobOptions,
        *,
        name: str | None = None,
        key: str | None = None,
        default_key: str | None = None,
        due: int = 0,
        priority: int | None = None,
        dedupe: Dedupe | None = None,
        parent: str | None = None,
    ) -> NewJob:
        """Build one validated job, with the key, delay, priority, rate key and order key its handler declares.

        Its id is `key`, or else the key its handler declares, or else `default_key`, or else a UUIDv7. `parent` is the
        run or job whose handler enqueues it. If a key is a function of another language, the job is the route that
        will add it; `public_id` is the id for the caller.
        """
        plan = self.plan(
            queue, input, options, name=name, key=key, default_key=default_key, due=due, priority=priority,
            dedupe=dedupe, parent=parent,
        )  # fmt: skip
        return build_route([plan]) if plan.is_routed else plan.build(self._runtime.bodies)

    def plan(
        self,
        queue: str,
        input: Any,
        options: JobOptions,
        *,
        name: str | None,
        key: str | None,
        default_key: str | None,
        due: int,
        priority: int | None,
        dedupe: Dedupe | None = None,
        parent: str | None = None,
    ) -> JobPlan:
        """Return what one validated job is built from."""
        data = pack(input, f"the input of a job of queue {check_name(queue, 'queue name')!r}")
        handler = self._runtime.registry().job(queue, check_optional_text(name, "the name of a job") or "*")
        rate_key, published, is_keyed, is_routed = None, _published_options(handler, options), False, False
        if priority is not None:
            check_priority(priority)
        if handler is not None:
            value = unpack(data)
            handler.check_start(value, repr(handler.name))
            if key is None:
                try:
                    key = handler.make_key(value)
                except Deferred:
                    is_keyed = is_routed = True
            try:
                rate_key = handler.make_rate_key(value)
            except Deferred:
                is_routed = True
            if handler.order_key is not None and options.order_key is None:
                options = msgspec.structs.replace(options, order_key=handler.make_order_key(value))
            if not due and handler.delay_ms:
                due = self._runtime.clock.now_ms() + handler.delay_ms
            priority = handler.priority if priority is None else priority
        key = key if key is not None else default_key
        if options.trace is None and (trace := current_trace.get()) is not None:
            options = msgspec.structs.replace(options, trace=trace)
        return JobPlan(
            check_job_id(key) if key is not None else uuid7(self._runtime.clock.now_ms()),
            queue,
            name or (handler.name if handler is not None else queue),
            msgspec.Raw(data),
            options,
            is_routed,
            is_keyed,
            priority or 0,
            due,
            rate_key,
            dedupe,
            published,
            parent,
        )


def _published_options(handler: Handler | None, options: JobOptions) -> PublishedOptions | None:
    """Return what other programs on the queue may know of the job's retries and retention."""
    policy = options.retry or (handler.retry if handler is not None else None)
    keeps = (options.keep_completed, options.keep_failed)
    if handler is not None:
        keeps = (keeps[0] or handler.keep_completed, keeps[1] or handler.keep_failed)
    if policy is None and keeps == (None, None):
        return None
    policy = policy or RetryPolicy()
    backoff = policy.backoff
    return PublishedOptions(policy.attempts, backoff.type, backoff.delay_ms, backoff.jitter, *keeps)
