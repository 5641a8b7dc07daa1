"""`@job`: a function becomes the handler of a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..core.durations import Duration
from ..core.retry import Retries
from .definition import MARK, JobDefinition, make_handler
from .keeping import Kept
from .option_names import names_options
from .option_values import IdempotencyKey, Rate, RateKey
from .scheduled import ScheduleConfig, read_schedule
from .schemas import Schema

F = TypeVar("F", bound=Callable[..., Any])


@names_options
def job(
    *,
    queue: str | None = None,
    name: str | None = None,
    schedule: ScheduleConfig | None = None,
    retry: Retries | None = None,
    timeout: Duration | None = None,
    priority: int = 0,
    delay: Duration | None = None,
    concurrency: int | None = None,
    max_active: int | None = None,
    rate_limit: Rate | None = None,
    rate_key: RateKey | None = None,
    dead_letters: bool = True,
    dead_letter_queue: str | None = None,
    keep_completed: Kept | None = None,
    keep_failed: Kept | None = None,
    idempotency_key: IdempotencyKey | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
) -> Callable[[F], F]:
    """Marks a function as the handler of plain jobs; the function itself stays as it is.

    Without `name` it takes every job of its queue.
    """
    options = {key: value for key, value in locals().items() if key != "name"}

    def mark(fn: F) -> F:
        handler = make_handler(fn, name, options)
        definition = JobDefinition(handler, any_name=name is None, schedule=read_schedule(schedule, handler))
        setattr(fn, MARK, [*getattr(fn, MARK, []), definition])
        return fn

    return mark
