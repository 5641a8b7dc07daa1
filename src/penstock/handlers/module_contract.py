"""The module contract: a worker file with `queue`, `config` and `handle`. Numbers in `config` are milliseconds."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Annotated, Any, ClassVar

import msgspec

from ..core.durations import is_number, ms_to_duration
from ..core.errors import DefinitionError
from ..core.near_match import did_you_mean
from ..core.options import DELAY_META, read_options
from ..core.text import shorten
from ..durable.declared_waits import Await, read_await
from ..schedules.declared import ScheduleConfig, read_schedule
from .attributes import check_attributes
from .decorators import FlowDefinition, StepDefinition, apply_schedule, make_entry, read_compensation, read_mode
from .handler import DEFINITIONS_ATTRIBUTE, Handler, JobDefinition, make_handler
from .nodes import NodeDefinition, make_node
from .options import read_kinds, read_removal
from .subscriptions import Subscription, read_start_on, read_subscription_list, read_subscriptions, split_streams
from .webhooks import read_webhook

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
    webhook: Any = None
    on_change: Any = "continue"
    attributes: Any = None


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
    call_concurrency: Any = None
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
    runner: Any = None
    node: Any = None
    breaker: Any = None
    keep_completed: Any = None
    keep_failed: Any = None
    remove_on_complete: Any = None
    remove_on_fail: Any = None

    aliases: ClassVar[Mapping[str, str]] = {"await": "wait", "retry_policy": "retry", "idempotency_key": "key"}


def find_handle(module: ModuleType, config: Any, file: str) -> Callable[..., Any] | None:
    """Return the function of a worker file: `handle`, or what `config["handler"]` is or names; None without one."""
    handle = getattr(module, "handle", None)
    declared = config.get("handler") if isinstance(config, Mapping) else None
    if declared is None:
        is_decorated = getattr(handle, DEFINITIONS_ATTRIBUTE, None)
        return handle if callable(handle) and not is_decorated else None
    fn = _resolve_handler(declared, module, file)
    if getattr(fn, DEFINITIONS_ATTRIBUTE, None):
        raise DefinitionError(
            f"{_name(fn)!r} is defined twice: by its decorator and as config.handler. Remove one of the two",
            where=file,
        )
    if callable(handle) and handle is not fn:
        raise DefinitionError(
            f"this file defines a function 'handle', and config.handler is {_name(fn)!r}; remove one of them",
            where=file,
        )
    return fn


def _resolve_handler(declared: Any, module: ModuleType, file: str) -> Callable[..., Any]:
    fn, near = declared, ""
    if isinstance(declared, str):
        place, colon, name = declared.rpartition(":")
        try:
            home = importlib.import_module(place) if colon else module
        except (ImportError, ValueError) as problem:
            raise DefinitionError(f"config.handler is {declared!r}: {problem}", where=file) from problem
        fn = getattr(home, name, None)
        names = [one for one, value in vars(home).items() if callable(value) and not one.startswith("_")]
        near = did_you_mean(name, names) or "name a function of this file, or of another one as 'module:function'"
    if not callable(fn):
        hint = f"; {near}" if near else ""
        raise DefinitionError(
            "config.handler must be a function or the name of one, such as 'resize' or 'image.steps:resize', got "
            f"{shorten(declared)}{hint}",
            where=file,
        )
    return fn  # type: ignore[no-any-return]


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", None) or shorten(fn)


def read_module(
    handle: Callable[..., Any], queue: str | None, config: Mapping[str, Any], name: str, file: str
) -> FlowDefinition | StepDefinition | JobDefinition | NodeDefinition:
    """Read what a worker file defines: a flow's first step, a step, a plain job, or the executor of a node."""
    read = read_options(ModuleConfig, config, "config", where=file)
    if read.node is not None:
        return _read_node(handle, read, queue, file)
    flow = read.flow or FlowConfig()
    handler = make_handler(handle, flow.step or read.step or name, _handler_options(read, queue, file))
    schedule = read_schedule(_read_schedule_config(read, file), handler)
    if read.flow is None and read.step is None and read.subscriptions is None and read.triggers is None:
        return JobDefinition(handler, any_name=True, schedule=schedule)
    if read.order_key is not None:
        raise DefinitionError(
            "config.orderKey only applies to jobs outside a flow; remove it, because steps of a run have no order key",
            where=file,
        )
    for key in _RETENTION:
        if getattr(read, key) is not None:
            raise DefinitionError(
                f"config.{key} only applies to jobs outside a flow; remove it, because the jobs of a run are removed "
                "together with the run",
                where=file,
            )
    step, start_on = _read_step(handler, flow, read, file)
    if flow.role not in ("main", "step"):
        raise DefinitionError(
            f"role must be 'main' (a flow's first step) or 'step', got {shorten(flow.role)}", where=file
        )
    if flow.role == "step":
        return apply_schedule(make_entry(step, start_on, can_start=read.flow is None), schedule)
    if flow.id is None:
        raise DefinitionError("config.flow with the role 'main' requires an 'id'", where=file)
    return FlowDefinition(
        flow.id,
        step,
        flow.version,
        read_kinds("accepts", flow.accepts, file) or (),
        flow.events or {},
        schedule,
        (*read_start_on(flow.start_on, file), *start_on),
        flow.on_change,
        check_attributes(flow.attributes, file),
        read_webhook(flow.webhook, flow.id, file),
    )


class NodeConfig(msgspec.Struct):
    """`config["node"]`."""

    type: str
    config: Any = None


def _read_node(handle: Callable[..., Any], config: ModuleConfig, queue: str | None, file: str) -> NodeDefinition:
    """Read the executor of a type of node: `"node": "http.get"`, or `{"type": …, "config": schema}`."""
    given = {"type": config.node} if isinstance(config.node, str) else config.node
    if not isinstance(given, Mapping):
        raise DefinitionError(f"config.node must be a type such as 'http.get', got {shorten(given)}", where=file)
    node = read_options(NodeConfig, given, "config.node", where=file)
    for name in ("flow", "step", "schedule", "cron", "subscriptions", "triggers", "wait"):
        if getattr(config, name) is not None:
            raise DefinitionError(f"config has 'node' and {name!r}; the executor of a node cannot have it", where=file)
    breaker = config.breaker
    if isinstance(breaker, Mapping):
        breaker = {_SNAKE.get(key, key): value for key, value in breaker.items()}
        breaker = _convert_number(breaker, "open_for")
    options = {**_handler_options(config, queue, file), "dead_letters": False}
    return make_node(handle, node.type, options, node.config, breaker)


_SNAKE = {"openFor": "open_for"}


def _read_schedule_config(config: ModuleConfig, file: str) -> ScheduleConfig | None:
    """Return `schedule`, or its short form `cron`."""
    if config.cron is None:
        return _convert_number(config.schedule, "every")  # type: ignore[no-any-return]
    if config.schedule is not None:
        raise DefinitionError(
            "config has both 'schedule' and 'cron'; use either 'schedule' or 'cron', not both", where=file
        )
    return {"cron": config.cron}


def _convert_number(options: Any, key: str) -> Any:
    """Return options with a number of milliseconds under `key` as a duration."""
    if isinstance(options, Mapping) and is_number(options.get(key)):
        return {**options, key: ms_to_duration(options[key])}
    return options


def _read_step(
    handler: Handler, flow: FlowConfig, config: ModuleConfig, file: str
) -> tuple[StepDefinition, tuple[Subscription, ...]]:
    """Return the step, and the events of other streams that it listens to."""
    triggers = read_kinds("triggers", flow.triggers if flow.triggers is not None else config.triggers, file)
    listens = read_subscriptions(triggers, None, None, flow.subscriptions, file)
    own, every = split_streams((*listens, *read_subscription_list(config.subscriptions, file)), file)
    step = StepDefinition(
        handler,
        own,
        read_mode(flow.mode or config.mode or "once", file),
        read_kinds("emits", flow.emits if flow.emits is not None else config.emits, file),
        flow.id,
        **read_compensation(flow.compensation, file),
    )
    return step, every


def _handler_options(config: ModuleConfig, queue: str | None, file: str) -> dict[str, Any]:
    options = msgspec.structs.asdict(config)
    options["rate_limit"] = _convert_number(config.rate_limit, "duration")
    if config.timeout_ms is not None or is_number(config.timeout):
        options["timeout"] = ms_to_duration(config.timeout if config.timeout_ms is None else config.timeout_ms)
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
        return read_await(value, "await", has_ms=True)
    except DefinitionError as problem:
        raise DefinitionError(str(problem), where=file) from None
