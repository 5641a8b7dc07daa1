"""Steps and flows as people define them: `@flow`, `@step`, and what both become."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from ..core.durations import Duration
from ..core.errors import DefinitionError
from ..core.events import BadEmit, check_kind
from ..core.ids import BadId, check_name
from ..core.near_match import check_keys
from ..core.retry import RetryOption
from ..core.schemas import Schema
from ..durable.declared_waits import Await
from ..schedules.declared import CodeSchedule, ScheduleConfig, read_schedule
from .handler import DEFINITIONS_ATTRIBUTE, Handler, JobDefinition, make_handler
from .options import IdempotencyKey, KeepOption, RateKeyOption, RateOption, check_options, read_kinds
from .subscriptions import Subscription, When, check_subscription_list, expand_on, read_start_on, read_subscription
from .trigger_table import Mode

F = TypeVar("F", bound=Callable[..., Any])
OnChange = Literal["continue", "pin", "fail"]


@dataclass(frozen=True)
class StepDefinition:
    """A step: a handler, what starts it and what it emits."""

    handler: Handler
    subscriptions: tuple[Subscription, ...] = ()
    mode: Mode = "once"
    emits: tuple[str, ...] | None = None  # None: undeclared, anything goes
    flow: str | None = None  # None: it joins every flow that emits what it listens to
    compensation: str | None = None
    compensate_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.flow is not None:
            _check_flow_name(self.flow, self.handler.where)
        for kind in self.emits or ():
            try:
                check_kind(kind)
            except BadEmit as problem:
                raise DefinitionError(f"emits: {problem}", where=self.handler.where) from None

    @property
    def name(self) -> str:
        return self.handler.name

    @property
    def on_timeout(self) -> str | None:
        """The step that takes over when its declared wait is in vain."""
        return self.handler.wait.on_timeout if self.handler.wait is not None else None

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(s.kind for s in self.subscriptions))


@dataclass(frozen=True)
class FlowDefinition:
    """A flow: the step it begins with, and what holds for all of it."""

    name: str
    entry: StepDefinition
    version: str | None = None
    accepts: tuple[str, ...] = ()  # kinds that come from outside
    events: Mapping[str, Any] = field(default_factory=dict)  # schemas of kinds
    schedule: CodeSchedule | None = None
    start_on: tuple[Subscription, ...] = ()  # events, from any run or from outside, that start it
    on_change: OnChange = "continue"  # what becomes of runs begun under another version

    def __post_init__(self) -> None:
        _check_flow_name(self.name, self.entry.handler.where)
        if not isinstance(self.events, Mapping):
            raise DefinitionError(
                f"events={self.events!r}: give the schema of each kind, such as {{'order.paid': Paid}}",
                where=self.entry.handler.where,
            )
        if self.on_change not in ("continue", "pin", "fail"):
            raise DefinitionError(
                f"on_change={self.on_change!r}: write 'continue' (this code goes on with runs of other versions), "
                "'pin' (leave them to workers that have theirs) or 'fail'",
                where=self.entry.handler.where,
            )
        if self.on_change != "continue" and self.version is None:
            raise DefinitionError(
                f'on_change={self.on_change!r} needs a version to compare: write version="1"',
                where=self.entry.handler.where,
            )


@check_options
def flow(
    name: str,
    *,
    step: str | None = None,
    emits: Sequence[str] | str | None = None,
    version: str | None = None,
    on_change: OnChange = "continue",
    accepts: Sequence[str] | str = (),
    events: Mapping[str, Schema] | None = None,
    start_on: str | Subscription | Mapping[str, Any] | Sequence[str | Subscription | Mapping[str, Any]] = (),
    schedule: ScheduleConfig | None = None,
    compensation: str | Mapping[str, Any] | None = None,
    queue: str | None = None,
    retry: RetryOption | None = None,
    timeout: Duration | None = None,
    wait: Await | Mapping[str, Any] | None = None,
    priority: int = 0,
    delay: Duration | None = None,
    concurrency: int | None = None,
    max_active: int | None = None,
    rate_limit: RateOption | None = None,
    rate_key: RateKeyOption | None = None,
    dead_letters: bool = True,
    dead_letter_queue: str | None = None,
    key: IdempotencyKey | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
) -> Callable[[F], F]:
    """Marks a function as the first step of a flow; the function itself stays as it is.

    `on_change` says what becomes of runs begun under another `version`: this code goes on with them, they are left to
    workers that have theirs (`pin`), or they fail.
    """
    options = dict(locals())
    if callable(name):  # `@flow` without its name would mark nothing, in silence
        raise DefinitionError(f'a flow needs a name: write @flow("{getattr(name, "__name__", "name")}")')

    def mark(fn: F) -> F:
        handler = make_handler(fn, step, options)
        kinds = read_kinds("emits", emits, handler.where)
        first = StepDefinition(handler, emits=kinds, flow=name, **_compensation(compensation, handler.where))
        definition = FlowDefinition(
            name,
            first,
            version,
            read_kinds("accepts", accepts, handler.where) or (),
            events or {},
            read_schedule(schedule, handler),
            read_start_on(start_on, handler.where),
            on_change,
        )
        return _mark(fn, definition)

    return mark


@check_options
def step(
    *,
    on: Sequence[str] | str | None = None,
    subscriptions: Sequence[Subscription | Mapping[str, Any]] | None = None,
    when: When | None = None,
    map: Callable[..., Any] | None = None,
    mode: Mode = "once",
    name: str | None = None,
    flow: str | None = None,
    emits: Sequence[str] | str | None = None,
    schedule: ScheduleConfig | None = None,
    compensation: str | Mapping[str, Any] | None = None,
    queue: str | None = None,
    retry: RetryOption | None = None,
    timeout: Duration | None = None,
    wait: Await | Mapping[str, Any] | None = None,
    priority: int = 0,
    delay: Duration | None = None,
    concurrency: int | None = None,
    max_active: int | None = None,
    rate_limit: RateOption | None = None,
    rate_key: RateKeyOption | None = None,
    dead_letters: bool = True,
    dead_letter_queue: str | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
) -> Callable[[F], F]:
    """Marks a function as a step that the events `on` start; the function itself stays as it is.

    `mode`: `once` per run at the first matching event, `each` matching event, or once when `all` listed kinds arrived.
    With a `schedule` in place of events it is the first step of a flow, named `flow` or after the step.
    """
    options = dict(locals())

    def mark(fn: F) -> F:
        handler = make_handler(fn, name, options)
        listens = [read_subscription(item, handler.where) for item in expand_on(on, when, map, handler.where)]
        listens += [
            read_subscription(item, handler.where) for item in check_subscription_list(subscriptions, handler.where)
        ]
        definition = StepDefinition(
            handler,
            tuple(listens),
            _mode(mode, handler.where),
            read_kinds("emits", emits, handler.where),
            flow,
            **_compensation(compensation, handler.where),
        )
        return _mark(fn, scheduled_step(definition, read_schedule(schedule, handler)))

    return mark


def scheduled_step(step: StepDefinition, schedule: CodeSchedule | None) -> StepDefinition | FlowDefinition:
    """A step that a schedule starts begins a flow; one that events start as well would begin in the middle."""
    if schedule is None:
        return step
    if step.subscriptions:
        raise DefinitionError(
            f"step {step.name!r} is started by {', '.join(step.kinds)} and by a schedule: schedule the flow instead",
            where=step.handler.where,
        )
    name = step.flow or step.name
    return FlowDefinition(name, replace(step, flow=name), schedule=schedule)


def _check_flow_name(name: str, where: str) -> None:
    try:
        check_name(name, "flow name")
    except BadId as problem:
        raise DefinitionError(str(problem), where=where) from None


def _mark(fn: F, definition: Any) -> F:
    setattr(fn, DEFINITIONS_ATTRIBUTE, [*getattr(fn, DEFINITIONS_ATTRIBUTE, []), definition])
    return fn


def _mode(mode: str, where: str) -> Mode:
    if mode not in ("once", "each", "all"):
        raise DefinitionError(
            f"mode={mode!r}: write 'once' (first match), 'each' (every match) or 'all' (when every kind has come)",
            where=where,
        )
    return mode  # type: ignore[return-value]


def _compensation(value: str | Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"compensation": value}
    if not isinstance(value, Mapping):
        raise DefinitionError(f"compensation={value!r}: give the name of the step that undoes this one", where=where)
    check_keys(value, {"step", "on"}, "compensation", where)
    if not isinstance(value.get("step"), str):
        raise DefinitionError(f"compensation={dict(value)!r}: name the 'step' that undoes this one", where=where)
    kinds = read_kinds("compensation's on", value.get("on"), where)
    return {"compensation": value["step"], "compensate_on": kinds or ()}


def read_definitions(fn: Callable[..., Any]) -> list[Any]:
    """What the decorators left on a function."""
    return list(getattr(inspect.unwrap(fn), DEFINITIONS_ATTRIBUTE, None) or getattr(fn, DEFINITIONS_ATTRIBUTE, []))


@check_options
def job(
    *,
    queue: str | None = None,
    name: str | None = None,
    schedule: ScheduleConfig | None = None,
    retry: RetryOption | None = None,
    timeout: Duration | None = None,
    priority: int = 0,
    delay: Duration | None = None,
    concurrency: int | None = None,
    max_active: int | None = None,
    rate_limit: RateOption | None = None,
    rate_key: RateKeyOption | None = None,
    dead_letters: bool = True,
    dead_letter_queue: str | None = None,
    keep_completed: KeepOption | None = None,
    keep_failed: KeepOption | None = None,
    key: IdempotencyKey | None = None,
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
        setattr(fn, DEFINITIONS_ATTRIBUTE, [*getattr(fn, DEFINITIONS_ATTRIBUTE, []), definition])
        return fn

    return mark
