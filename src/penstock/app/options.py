"""What the methods of App take by name, written once for App, SyncApp and the test kit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from ..context.context import Context
from ..context.sync_context import SyncContext
from ..core.durations import Duration
from ..core.retry import Retries
from ..handlers.options import KeepOption
from ..schedules.spec import CatchUp, Overlap

NoInput = (
    Callable[[], Any]
    | Callable[[Context], Any]
    | Callable[[SyncContext], Any]
    | Callable[[None], Any]
    | Callable[[None, Any], Any]
)
"""A flow's function that can do without an input."""


class StartOptions(TypedDict, total=False):
    """Of `start`."""

    idempotency_key: str | None
    correlation_id: str | None
    priority: int | None
    delay: Duration | None
    at: datetime | None
    tags: Mapping[str, str] | None
    tx: Any


class RunSearch(TypedDict, total=False):
    """Of `runs`."""

    flow: str | None
    status: str | None
    since: datetime | Duration | None  # a duration means so long ago
    until: datetime | Duration | None
    tags: Mapping[str, str] | None
    where: Any  # JSON that the input contains
    before: str | None
    limit: int


class EnqueueManyOptions(TypedDict, total=False):
    """Of `enqueue_many`."""

    name: str | None
    delay: Duration | None
    priority: int | None
    retry: Retries | None
    keep_completed: KeepOption | None
    keep_failed: KeepOption | None
    tx: Any


class EnqueueOptions(EnqueueManyOptions, total=False):
    """Of `enqueue`."""

    id: str | None
    at: datetime | None
    correlation_id: str | None
    dedupe: str | None
    dedupe_ttl: Duration | None


class ScheduleOptions(TypedDict, total=False):
    """Of `schedule`."""

    flow: str | Callable[..., Any] | None
    queue: str | None
    name: str | None
    payload: Any
    every: Duration | None
    cron: str | None
    tz: str
    at: datetime | None
    start: datetime | None
    end: datetime | None
    limit: int | None
    overlap: Overlap
    catch_up: CatchUp
    priority: int | None


class WorkerOptions(TypedDict, total=False):
    """Of `run_worker` and `working`."""

    queues: Sequence[str] | None
    concurrency: int | None
    name: str | None
