"""The module contract: a worker file with `queue`, `config` and `handle`, as the specs write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core.durations import ms_to_duration
from ..core.errors import DefinitionError
from ..core.near_match import check_keys
from ..durable.declared_waits import Await, read_await
from ..schedules.declared import ScheduleConfig, read_schedule
from .decorators import FlowDefinition, StepDefinition, _compensation, _mode, scheduled_step
from .handler import JobDefinition, make_handler
from .options import read_kinds, read_removal
from .subscriptions import check_subscription_list, read_start_on, read_subscription

_CONFIG = {
    "queue",
    "flow",
    "step",
    "subscriptions",
    "emits",
    "concurrency",
    "rateLimit",
    "retryPolicy",
    "dlq",
    "timeoutMs",
    "timeout",
    "idempotencyKey",
    "inputSchema",
    "outputSchema",
    "priority",
    "rateKey",
    "maxActive",
    "mode",
    "handler",
    "triggers",
    "await",
    "schedule",
    "cron",
    "keepCompleted",
    "keepFailed",
    "removeOnComplete",
    "removeOnFail",
}
_KEEPING = ("keepCompleted", "keepFailed", "removeOnComplete", "removeOnFail")
_FLOW = {
    "id",
    "role",
    "step",
    "emits",
    "triggers",
    "subscriptions",
    "version",
    "compensation",
    "mode",
    "accepts",
    "events",
    "startOn",
    "onChange",
}


def read_module(
    handle: Callable[..., Any], queue: str | None, config: Mapping[str, Any], name: str, file: str
) -> FlowDefinition | StepDefinition | JobDefinition:
    """What a worker file defines: a flow's first step, a step, or a plain job."""
    config = _camel_keys(config, "config", file)
    check_keys(config, _CONFIG, "config", file)
    shape = _camel_keys(config.get("flow") or {}, "config['flow']", file)
    check_keys(shape, _FLOW, "config['flow']", file)
    step_name = shape.get("step") or config.get("step")
    handler = make_handler(handle, step_name or name, _options(config, queue, file))
    schedule = read_schedule(_schedule(config, file), handler)
    if not shape and config.keys().isdisjoint(("step", "subscriptions", "triggers")):
        return JobDefinition(handler, any_name=True, schedule=schedule)
    for key in _KEEPING:
        if key in config:
            raise DefinitionError(f"config has {key!r}, but jobs of a run go with their run: leave it out", where=file)
    step = _step(handler, shape, config, file)
    role = shape.get("role", "step")
    if role not in ("main", "step"):
        raise DefinitionError(f"role={role!r}: write 'main' for a flow's first step or 'step'", where=file)
    if role == "main":
        if "id" not in shape:
            raise DefinitionError("config['flow'] has the role 'main' but no 'id'", where=file)
        return FlowDefinition(
            shape["id"],
            step,
            shape.get("version"),
            read_kinds("accepts", shape.get("accepts"), file) or (),
            shape.get("events") or {},
            schedule,
            read_start_on(shape.get("startOn"), file),
            shape.get("onChange", "continue"),
        )
    return scheduled_step(step, schedule)


def _schedule(config: Mapping[str, Any], file: str) -> ScheduleConfig | None:
    """`schedule`, or `cron` for short."""
    schedule: ScheduleConfig | None = config.get("schedule")
    if "cron" not in config:
        return schedule
    if schedule is not None:
        raise DefinitionError("config has both 'schedule' and 'cron': give one of them", where=file)
    return {"cron": config["cron"]}


def _step(handler: Any, shape: Mapping[str, Any], config: Mapping[str, Any], file: str) -> StepDefinition:
    listens = [
        read_subscription({"kind": kind}, file)
        for kind in read_kinds("triggers", shape.get("triggers", config.get("triggers")), file) or ()
    ]
    for item in (
        *check_subscription_list(shape.get("subscriptions"), file),
        *check_subscription_list(config.get("subscriptions"), file),
    ):
        listens.append(read_subscription(item, file))
    emits = read_kinds("emits", shape.get("emits", config.get("emits")), file)
    mode = _mode(shape.get("mode", config.get("mode", "once")), file)
    return StepDefinition(
        handler, tuple(listens), mode, emits, shape.get("id"), **_compensation(shape.get("compensation"), file)
    )


def _options(config: Mapping[str, Any], queue: str | None, file: str) -> dict[str, Any]:
    dlq = config.get("dlq") or {}
    check_keys(dlq, {"enabled", "queue"}, "config['dlq']", file)
    timeout_ms = config.get("timeoutMs")
    if timeout_ms is not None and not isinstance(timeout_ms, int | float):
        raise DefinitionError(f"timeoutMs={timeout_ms!r}: give a number of milliseconds", where=file)
    return {
        "queue": queue or config.get("queue"),
        "retry": config.get("retryPolicy"),
        "timeout": ms_to_duration(timeout_ms) if timeout_ms is not None else config.get("timeout"),
        "priority": config.get("priority"),
        "concurrency": config.get("concurrency"),
        "max_active": config.get("maxActive"),
        "rate_limit": config.get("rateLimit"),
        "rate_key": config.get("rateKey"),
        "dead_letters": dlq.get("enabled", True),
        "dead_letter_queue": dlq.get("queue"),
        "keep_completed": _keep(config, "keepCompleted", "removeOnComplete"),
        "keep_failed": _keep(config, "keepFailed", "removeOnFail"),
        "key": config.get("idempotencyKey"),
        "input_schema": config.get("inputSchema"),
        "output_schema": config.get("outputSchema"),
        "wait": _await(config, file),
    }


def _await(config: Mapping[str, Any], file: str) -> Await | None:
    try:
        return read_await(config.get("await"), "await")
    except DefinitionError as problem:
        raise DefinitionError(str(problem), where=file) from None


def _keep(config: Mapping[str, Any], ours: str, theirs: str) -> Any:
    """What stays of finished jobs, in our words or in BullMQ's."""
    return read_removal(config[theirs], theirs) if theirs in config else config.get(ours)


def _camel_keys(mapping: Any, what: str, file: str) -> dict[str, Any]:
    """`retry_policy` and `retryPolicy` are the same key."""
    if not isinstance(mapping, Mapping):
        check_keys(mapping, _CONFIG if what == "config" else _FLOW, what, file)
    out: dict[str, Any] = {}
    for key, value in mapping.items():
        head, *rest = str(key).split("_")
        out[head + "".join(part.capitalize() for part in rest)] = value
    return out
