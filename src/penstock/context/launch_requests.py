"""Launch requests: the jobs that a handler enqueues and the runs it starts, as `ctx` passes them to the attempt."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from ..core.durations import Duration
from ..core.retry import RetryOption


class JobLaunch(msgspec.Struct, frozen=True):
    """The arguments of a `ctx.enqueue`."""

    queue: str | Callable[..., Any]
    input: Any = None
    key: str | None = None
    name: str | None = None
    delay: Duration | None = None
    at: datetime | None = None
    priority: int | None = None
    retry: RetryOption | None = None
    correlation_id: str | None = None
    order_key: str | None = None


class RunLaunch(msgspec.Struct, frozen=True):
    """The arguments of a `ctx.start`."""

    flow: str | Callable[..., Any]
    input: Any = None
    key: str | None = None
    delay: Duration | None = None
    at: datetime | None = None
    priority: int | None = None
    correlation_id: str | None = None
    tags: Mapping[str, str] | None = None


class LaunchedId(str):
    """The id of a job or a run. It may be awaited, as the other calls of `ctx` may."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, str]:
        yield from ()
        return str(self)
