"""Building plain jobs: resolve the queue, validate the input, apply the options of the handler if it is known here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from ..commit.runtime import Runtime
from ..core.argument_checks import MAX_WORD_CHARS, check_optional_text
from ..core.errors import ConfigError
from ..core.ids import check_job_id, check_name, uuid7
from ..core.options import check_priority
from ..core.payload import pack, unpack
from ..core.retry import RetryPolicy
from ..core.text import check_text, shorten
from ..core.trace_context import current_trace
from ..handlers.decorators import read_definitions
from ..handlers.handler import Handler, JobDefinition
from ..ports.unit import Dedupe, NewJob, PublishedOptions
from .engine import JobOptions, new_job


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
        run or job whose handler enqueues it.
        """
        data = pack(input, f"the input of a job of queue {check_name(queue, 'queue name')!r}")
        handler = self._runtime.registry().job(queue, check_optional_text(name, "the name of a job") or "*")
        rate_key, published = None, _published_options(handler, options)
        if priority is not None:
            check_priority(priority)
        if handler is not None:
            value = unpack(data)
            handler.check_start(value, repr(handler.name))
            key = key if key is not None else handler.make_key(value)
            rate_key = handler.make_rate_key(value)
            if handler.order_key is not None and options.order_key is None:
                options = msgspec.structs.replace(options, order_key=handler.make_order_key(value))
            if not due and handler.delay_ms:
                due = self._runtime.clock.now_ms() + handler.delay_ms
            priority = handler.priority if priority is None else priority
        key = key if key is not None else default_key
        if options.trace is None and (trace := current_trace.get()) is not None:
            options = msgspec.structs.replace(options, trace=trace)
        return new_job(
            id=check_job_id(key) if key is not None else uuid7(self._runtime.clock.now_ms()),
            queue=queue,
            name=name or (handler.name if handler is not None else queue),
            payload=data,
            bodies=self._runtime.bodies,
            options=options,
            priority=priority or 0,
            due=due,
            rate_key=rate_key,
            dedupe=dedupe,
            published=published,
            parent=parent,
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
