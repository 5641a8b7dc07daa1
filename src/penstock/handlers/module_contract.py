"""The module contract: a worker file with `queue`, `config` and `handle`, as the specs write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

import msgspec

from ..core.durations import ms_to_duration
from ..core.errors import DefinitionError
from ..core.options import DELAY_META, read_options
from ..core.text import shorten
from ..durable.declared_waits import Await, read_await
from ..schedules.declared import ScheduleConfig, read_schedule
from .decorators import FlowDefinition, StepDefinition, apply_schedule, read_compensation, read_mode
from .handler import Handler, JobDefinition, make_handler
from .options import read_kinds, read_removal
from .subscriptions import read_start_on, read_subscription_list, read_subscriptions

_RETENTION = ("keep_completed", "keep_failed", "remove_on_complete", "remove_on_fail")


class DeadLetterConfig(msgspec.Struct):
    """`config["dlq"]`."""

    enabled: bool = True
    queue: str | None = None


class FlowConfig(msgspec.Struct):
    """`config["flow"]`."""

    id: Any = None
    role: Annotated[str, msgspec.Meta(description="'main' (a flow's first step) or 'step'")] = "step"
    step: str | None = None
    emits: Any = None
    triggers: Any = None
    subscriptions: Any = None
    version: Any = None
    compensation: Any = None
    mode: Any = None
    accepts: Any = None
    events: Any = None
    start_on: Any = None
    on_change: Any = "continue"


class ModuleConfig(msgspec.Struct):
    """`config`. Keys are camelCase or snake_case; options of type Any are read like those of the decorators."""

    queue: str | None = None
    flow: FlowConfig | None = None
    dlq: DeadLetterConfig = msgspec.field(default_factory=DeadLetterConfig)
    step: str | None = None
    emits: Any = None
    triggers: Any = None
    subscriptions: Any = None
    mode: Any = None
    handler: Any = None
    wait: Any = None
    schedule: Any = None
    cron: Any = None
    concurrency: Any = None
    max_active: Any = None
    rate_limit: Any = None
    rate_key: Any = None
    order_key: Any = None
    retry: Any = None
    timeout: Any = None
    timeout_ms: Annotated[float, DELAY_META] | None = None
    priority: Any = None
    key: Any = None
    input_schema: Any = None
    output_schema: Any = None
    unknown_fields: Any = None
    keep_completed: Any = None
    keep_failed: Any = None
    remove_on_complete: Any = None
    remove_on_fail: Any = None

    aliases: ClassVar[Mapping[str, str]] = {"await": "wait", "retry_policy": "retry", "idempotency_key": "key"}


def read_module(
    handle: Callable[..., Any], queue: str | None, config: Mapping[str, Any], name: str, file: str
) -> FlowDefinition | StepDefinition | JobDefinition:
    """Read what a worker file defines: a flow's first step, a step, or a plain job."""
    read = read_options(ModuleConfig, config, "config", where=file)
    flow = read.flow or FlowConfig()
    handler = make_handler(handle, flow.step or read.step or name, _handler_options(read, queue, file))
    schedule = read_schedule(_read_schedule_config(read, file), handler)
    if read.flow is None and read.step is None and read.subscriptions is None and read.triggers is None:
        return JobDefinition(handler, any_name=True, schedule=schedule)
    if read.order_key is not None:
        raise DefinitionError(
            "config.orderKey only applies to jobs outside a flow; the steps of a run have no order key", where=file
        )
    for key in _RETENTION:
        if getattr(read, key) is not None:
            raise DefinitionError(
                f"config.{key} only applies to jobs outside a flow; jobs of a run are removed together with the run",
                where=file,
            )
    step = _read_step(handler, flow, read, file)
    if flow.role not in ("main", "step"):
        raise DefinitionError(
            f"role must be 'main' (a flow's first step) or 'step', got {shorten(flow.role)}", where=file
        )
    if flow.role == "step":
        return apply_schedule(step, schedule)
    if flow.id is None:
        raise DefinitionError("config.flow with the role 'main' requires an 'id'", where=file)
    return FlowDefinition(
        flow.id,
        step,
        flow.version,
        read_kinds("accepts", flow.accepts, file) or (),
        flow.events or {},
        schedule,
        read_start_on(flow.start_on, file),
        flow.on_change,
    )


def _read_schedule_config(config: ModuleConfig, file: str) -> ScheduleConfig | None:
    """Return `schedule`, or its short form `cron`."""
    if config.cron is None:
        return config.schedule  # type: ignore[no-any-return]
    if config.schedule is not None:
        raise DefinitionError(
            "config has both 'schedule' and 'cron'; use either 'schedule' or 'cron', not both", where=file
        )
    return {"cron": config.cron}


def _read_step(handler: Handler, flow: FlowConfig, config: ModuleConfig, file: str) -> StepDefinition:
    triggers = read_kinds("triggers", flow.triggers if flow.triggers is not None else config.triggers, file)
    listens = read_subscriptions(triggers, None, None, flow.subscriptions, file)
    return StepDefinition(
        handler,
        (*listens, *read_subscription_list(config.subscriptions, file)),
        read_mode(flow.mode or config.mode or "once", file),
        read_kinds("emits", flow.emits if flow.emits is not None else config.emits, file),
        flow.id,
        **read_compensation(flow.compensation, file),
    )


def _handler_options(config: ModuleConfig, queue: str | None, file: str) -> dict[str, Any]:
    options = msgspec.structs.asdict(config)
    if config.timeout_ms is not None:
        options["timeout"] = ms_to_duration(config.timeout_ms)
    for keep, remove, name in (
        ("keep_completed", "remove_on_complete", "removeOnComplete"),
        ("keep_failed", "remove_on_fail", "removeOnFail"),
    ):
        if options[remove] is not None:
            options[keep] = read_removal(options[remove], name)
    return {
        **options,
        "queue": queue or config.queue,
        "dead_letters": config.dlq.enabled,
        "dead_letter_queue": config.dlq.queue,
        "wait": _read_await(config.wait, file),
    }


def _read_await(value: Any, file: str) -> Await | None:
    try:
        return read_await(value, "await")
    except DefinitionError as problem:
        raise DefinitionError(str(problem), where=file) from None
