"""`@flow`, `@step` and `@job`: each attaches a definition to a function, which stays as it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from ..core.durations import Duration
from ..core.errors import BadArgument, DefinitionError, PenstockError
from ..core.events import BadEmit, check_kind
from ..core.ids import BadId, check_name
from ..core.options import read_options
from ..core.payload import unpack
from ..core.retry import RetryOption
from ..core.schemas import Schema, UnknownFields
from ..core.text import shorten
from ..durable.declared_waits import Await
from ..schedules.declared import DeclaredSchedule, ScheduleConfig, read_schedule
from .attributes import AttributesOption, check_attributes, read_attributes
from .handler import DEFINITIONS_ATTRIBUTE, Handler, JobDefinition, make_handler
from .options import (
    IdempotencyKey,
    KeepOption,
    OrderKeyOption,
    RateKeyOption,
    RateOption,
    RunnerName,
    check_options,
    read_kinds,
)
from .subscriptions import Subscription, When, check_start_on, read_start_on, read_subscriptions, split_streams
from .trigger_table import Mode
from .webhooks import Webhook, read_webhook

F = TypeVar("F", bound=Callable[..., Any])
OnChange = Literal["continue", "pin", "fail"]


@dataclass(frozen=True)
class StepDefinition:
    """A step: a handler, the events that start it and the events it emits."""

    handler: Handler
    subscriptions: tuple[Subscription, ...] = ()
    mode: Mode = "once"
    emits: tuple[str, ...] | None = None  # None: not declared, any kind is allowed
    flow: str | None = None  # None: it joins every flow that emits what it listens to
    compensation: str | None = None
    compensate_on: tuple[str, ...] = ()
    can_start: bool = False  # it is the first step of a flow of its own, unless another step names it
    start_on: tuple[Subscription, ...] = ()  # the events that start that flow

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
        """The step that takes over when the declared wait expires."""
        return self.handler.wait.on_timeout if self.handler.wait is not None else None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of events that start it."""
        return tuple(dict.fromkeys(s.kind for s in self.subscriptions))


@dataclass(frozen=True)
class FlowDefinition:
    """A flow: its first step, and the options of the whole flow."""

    name: str
    entry: StepDefinition
    version: str | None = None
    accepts: tuple[str, ...] = ()  # kinds that are emitted from outside
    events: Mapping[str, Any] = field(default_factory=dict)  # schemas of kinds
    schedule: DeclaredSchedule | None = None
    start_on: tuple[Subscription, ...] = ()  # events, from any run or from outside, that start it
    on_change: OnChange = "continue"  # what happens to runs started under another version
    attributes: AttributesOption | None = None  # what runs are found by, of their input
    webhook: Webhook | None = None

    def read_attributes(self, input: bytes) -> dict[str, str]:
        """Return the attributes of a run, read from its input."""
        handler, value = self.entry.handler, unpack(input)
        try:
            return read_attributes(self.attributes, value, handler.check_input)
        except Exception as problem:
            if isinstance(problem, PenstockError):
                raise
            raise BadArgument(
                f"the attributes of flow {self.name!r} ({handler.where}) failed for this input: "
                f"{type(problem).__name__}: {problem}"
            ) from problem

    def __post_init__(self) -> None:
        _check_flow_name(self.name, self.entry.handler.where)
        if not isinstance(self.events, Mapping):
            raise DefinitionError(
                "events must be a mapping of each kind to its schema, such as {'order.paid': Paid}, got "
                f"{shorten(self.events)}",
                where=self.entry.handler.where,
            )
        if not isinstance(self.on_change, str) or self.on_change not in ("continue", "pin", "fail"):
            raise DefinitionError(
                f"on_change must be 'continue', 'pin' or 'fail', got {shorten(self.on_change)}. For runs of another "
                "version, 'continue' runs them with this code, 'pin' leaves them to workers with that version, and "
                "'fail' fails them",
                where=self.entry.handler.where,
            )
        if self.version is not None and not isinstance(self.version, str):
            raise DefinitionError(
                f'version must be a string, such as version="1", got {shorten(self.version)}',
                where=self.entry.handler.where,
            )
        if self.on_change != "continue" and self.version is None:
            raise DefinitionError(
                f'on_change={shorten(self.on_change)} requires a version, such as version="1"',
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
    attributes: AttributesOption | None = None,
    webhook: str | Mapping[str, Any] | None = None,
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
    call_concurrency: int | None = None,
    rate_limit: RateOption | None = None,
    rate_key: RateKeyOption | None = None,
    dead_letters: bool = True,
    dead_letter_queue: str | None = None,
    key: IdempotencyKey | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
    unknown_fields: UnknownFields | None = None,
    runner: RunnerName | None = None,
) -> Callable[[F], F]:
    """Define a flow whose first step is this function.

    Args:
        name: Name of the flow.
        step: Name of the first step; by default the function's name.
        emits: The kinds of events the step emits; other kinds fail the attempt. Without it, any kind is allowed.
        version: Version of the flow, recorded with each run.
        on_change: What happens to runs that started under another version: `"continue"` them with this code, `"pin"`
            them to workers that have their version, or `"fail"` them.
        accepts: Kinds of events that are emitted from outside to runs of this flow.
        events: Schemas of event kinds, `{"order.paid": Paid}`.
        start_on: Events, from any run or from outside, that start a run.
        attributes: What runs are found by, of their input: names with dotted paths, `{"customer": "customer.id"}`, or
            a function of the input that returns a mapping.
        webhook: Path of a webhook that starts a run with the body of each call: `"shop/orders"`, or a mapping of
            `path`, `method`, `schema`, `signed`, `key_header`; with `event`, calls emit that event instead.
        schedule: Start runs on a schedule: `"0 9 * * 1-5"`, `"15m"`, or the arguments of `app.schedules.add`.
        compensation: The step that undoes this one when the run fails, or `{"step": …, "on": [kinds of events]}`.
        queue: The queue its jobs go to; by default named after the file.
        retry: Number of attempts, or a policy: `RetryPolicy(…)` or `{"attempts": 3, "backoff": {"delay": "1s"}}`.
        timeout: Fail an attempt that runs longer than this. It cannot stop an `async def` handler that blocks the
            event loop, with `time.sleep` or long computation: use `def`, or `await asyncio.to_thread(…)`.
        wait: Wait before the step runs (`Await("event", …)`, `Await("trigger", …)`) or after it (`Await("time", …)`).
        priority: Lower numbers are claimed first; 0 is first.
        delay: Start each job this much later.
        concurrency: Maximum number of attempts one worker runs at the same time.
        max_active: Maximum number of attempts all workers run at the same time.
        call_concurrency: Maximum number of functions of `ctx.run` that one attempt runs at the same time. Default: the
            setting `call_concurrency`, which is 32.
        rate_limit: Maximum number of starts per duration: `"100/1m"`, or `{"max": 100, "duration": "1m"}`.
        rate_key: Apply the rate limit to each value of this key: a dotted path into the input, or a function of it.
        dead_letters: Whether a final failure makes a dead letter.
        dead_letter_queue: The queue of its dead letters; by default `<queue>-dlq`.
        key: Idempotency key of each run: `"auto"` for a hash of the input, a path into the input, or a function of it.
        input_schema: Schema of the input, a model or a JSON schema; by default the parameter's annotation.
        output_schema: Schema of the result.
        unknown_fields: `"refuse"` or `"ignore"` fields of the input that its dataclass does not have. Default: the
            setting `unknown_fields`, which is `"refuse"`.
        runner: Where the handler runs: `"process"` for a child process of the worker, `"inprocess"` (the default) for
            the worker's own process.
    """
    options = dict(locals())
    if callable(name):  # `@flow` without parentheses would define nothing
        raise DefinitionError(f'@flow requires a name, such as @flow("{getattr(name, "__name__", "name")}")')

    def mark(fn: F) -> F:
        handler = make_handler(fn, step, options)
        kinds = read_kinds("emits", emits, handler.where)
        first = StepDefinition(handler, emits=kinds, flow=name, **read_compensation(compensation, handler.where))
        definition = FlowDefinition(
            name,
            first,
            version,
            read_kinds("accepts", accepts, handler.where) or (),
            events or {},
            read_schedule(schedule, handler),
            read_start_on(start_on, handler.where),
            on_change,
            check_attributes(attributes, handler.where),
            read_webhook(webhook, name, handler.where),
        )
        return _attach(fn, definition)

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
    call_concurrency: int | None = None,
    rate_limit: RateOption | None = None,
    rate_key: RateKeyOption | None = None,
    dead_letters: bool = True,
    dead_letter_queue: str | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
    unknown_fields: UnknownFields | None = None,
    runner: RunnerName | None = None,
) -> Callable[[F], F]:
    """Define a step that events start.

    Args:
        on: The kinds of events that start the step.
        subscriptions: More events that start it, each with its own `when` and `map`.
        when: A function of the event that accepts or rejects it, or a mapping its data must contain; goes with `on`.
        map: A function of the event that returns the step's input; goes with `on`.
        mode: `"once"` per run at the first match, `"each"` match, or once when `"all"` kinds have arrived.
        name: Name of the step; by default the function's name.
        flow: The flow it belongs to; by default every flow that emits one of its kinds.
        emits: The kinds of events the step emits; other kinds fail the attempt. Without it, any kind is allowed.
        schedule: Start runs of a flow, named `flow` or after the step, on a schedule instead of by events.
        compensation: The step that undoes this one when the run fails, or `{"step": …, "on": [kinds of events]}`.
        queue: The queue its jobs go to; by default named after the file.
        retry: Number of attempts, or a policy: `RetryPolicy(…)` or `{"attempts": 3, "backoff": {"delay": "1s"}}`.
        timeout: Fail an attempt that runs longer than this. It cannot stop an `async def` handler that blocks the
            event loop, with `time.sleep` or long computation: use `def`, or `await asyncio.to_thread(…)`.
        wait: Wait before the step runs (`Await("event", …)`, `Await("trigger", …)`) or after it (`Await("time", …)`).
        priority: Lower numbers are claimed first; 0 is first.
        delay: Start each job this much later.
        concurrency: Maximum number of attempts one worker runs at the same time.
        max_active: Maximum number of attempts all workers run at the same time.
        call_concurrency: Maximum number of functions of `ctx.run` that one attempt runs at the same time. Default: the
            setting `call_concurrency`, which is 32.
        rate_limit: Maximum number of starts per duration: `"100/1m"`, or `{"max": 100, "duration": "1m"}`.
        rate_key: Apply the rate limit to each value of this key: a dotted path into the input, or a function of it.
        dead_letters: Whether a final failure makes a dead letter.
        dead_letter_queue: The queue of its dead letters; by default `<queue>-dlq`.
        input_schema: Schema of the input, a model or a JSON schema; by default the parameter's annotation.
        output_schema: Schema of the result.
        unknown_fields: `"refuse"` or `"ignore"` fields of the input that its dataclass does not have. Default: the
            setting `unknown_fields`, which is `"refuse"`.
        runner: Where the handler runs: `"process"` for a child process of the worker, `"inprocess"` (the default) for
            the worker's own process.
    """
    options = dict(locals())

    def mark(fn: F) -> F:
        handler = make_handler(fn, name, options)
        own, every = split_streams(read_subscriptions(on, when, map, subscriptions, handler.where), handler.where)
        definition = StepDefinition(
            handler,
            own,
            read_mode(mode, handler.where),
            read_kinds("emits", emits, handler.where),
            flow,
            **read_compensation(compensation, handler.where),
        )
        definition = make_entry(definition, every, can_start=queue is not None)
        return _attach(fn, apply_schedule(definition, read_schedule(schedule, handler)))

    return mark


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
    call_concurrency: int | None = None,
    rate_limit: RateOption | None = None,
    rate_key: RateKeyOption | None = None,
    order_key: OrderKeyOption | None = None,
    dead_letters: bool = True,
    dead_letter_queue: str | None = None,
    keep_completed: KeepOption | None = None,
    keep_failed: KeepOption | None = None,
    key: IdempotencyKey | None = None,
    input_schema: Schema | None = None,
    output_schema: Schema | None = None,
    unknown_fields: UnknownFields | None = None,
    runner: RunnerName | None = None,
) -> Callable[[F], F]:
    """Define the handler of plain jobs.

    Args:
        queue: The queue its jobs go to; by default named after the file.
        name: Name of the jobs it handles; without it, the handler takes all jobs of its queue.
        schedule: Enqueue jobs on a schedule: `"0 9 * * 1-5"`, `"15m"`, or the arguments of `app.schedules.add`.
        retry: Number of attempts, or a policy: `RetryPolicy(…)` or `{"attempts": 3, "backoff": {"delay": "1s"}}`.
        timeout: Fail an attempt that runs longer than this. It cannot stop an `async def` handler that blocks the
            event loop, with `time.sleep` or long computation: use `def`, or `await asyncio.to_thread(…)`.
        priority: Lower numbers are claimed first; 0 is first.
        delay: Start each job this much later.
        concurrency: Maximum number of attempts one worker runs at the same time.
        max_active: Maximum number of attempts all workers run at the same time.
        call_concurrency: Maximum number of functions of `ctx.run` that one attempt runs at the same time. Default: the
            setting `call_concurrency`, which is 32.
        rate_limit: Maximum number of starts per duration: `"100/1m"`, or `{"max": 100, "duration": "1m"}`.
        rate_key: Apply the rate limit to each value of this key: a dotted path into the input, or a function of it.
        order_key: Run jobs with the same key one at a time, in order: a path into the input, or a function of it.
        dead_letters: Whether a final failure makes a dead letter.
        dead_letter_queue: The queue of its dead letters; by default `<queue>-dlq`.
        keep_completed: How many completed jobs to keep, or for how long: `1000`, `"1d"` or `{"count": 9, "age": "1d"}`.
        keep_failed: How many failed jobs to keep, or for how long.
        key: Idempotency key of each job: `"auto"` for a hash of the input, a path into the input, or a function of it.
        input_schema: Schema of the input, a model or a JSON schema; by default the parameter's annotation.
        output_schema: Schema of the result.
        unknown_fields: `"refuse"` or `"ignore"` fields of the input that its dataclass does not have. Default: the
            setting `unknown_fields`, which is `"refuse"`.
        runner: Where the handler runs: `"process"` for a child process of the worker, `"inprocess"` (the default) for
            the worker's own process.
    """
    options = {key: value for key, value in locals().items() if key != "name"}

    def mark(fn: F) -> F:
        handler = make_handler(fn, name, options)
        definition = JobDefinition(handler, any_name=name is None, schedule=read_schedule(schedule, handler))
        return _attach(fn, definition)

    return mark


def make_entry(step: StepDefinition, start_on: tuple[Subscription, ...], *, can_start: bool) -> StepDefinition:
    """Return a step that can start a flow of its own: by the events of other streams, or because it `can_start` and
    listens to nothing."""
    if start_on and step.flow is not None:
        raise DefinitionError(
            f"step {step.name!r} of flow {step.flow!r} listens to {start_on[0].kind!r} on the stream 'global', and "
            "each such event starts a new run. Move it to start_on= of the @flow, or remove flow= from the step",
            where=step.handler.where,
        )
    can_start = bool(start_on) or (can_start and not step.subscriptions and step.flow is None)
    return replace(step, can_start=can_start, start_on=check_start_on(start_on, step.handler.where))


def apply_schedule(step: StepDefinition, schedule: DeclaredSchedule | None) -> StepDefinition | FlowDefinition:
    """Return the flow that a scheduled step starts, or the step itself; events and a schedule exclude each other."""
    if schedule is None:
        return step
    if step.subscriptions:
        raise DefinitionError(
            f"step {step.name!r} is started by both {', '.join(step.kinds)} and a schedule; schedule the flow instead",
            where=step.handler.where,
        )
    name = step.flow or step.name
    return FlowDefinition(name, replace(step, flow=name), schedule=schedule, start_on=step.start_on)


def _check_flow_name(name: str, where: str) -> None:
    try:
        check_name(name, "flow name")
    except BadId as problem:
        raise DefinitionError(str(problem), where=where) from None


def _attach(fn: F, definition: Any) -> F:
    setattr(fn, DEFINITIONS_ATTRIBUTE, [*getattr(fn, DEFINITIONS_ATTRIBUTE, []), definition])
    return fn


def read_mode(mode: str, where: str) -> Mode:
    """Return the mode, or raise DefinitionError with the accepted ones."""
    if not isinstance(mode, str) or mode not in ("once", "each", "all"):
        raise DefinitionError(
            "mode must be 'once' (first match), 'each' (every match) or 'all' (when every kind has arrived), "
            f"got {shorten(mode)}",
            where=where,
        )
    return mode  # type: ignore[return-value]


class _CompensationOption(msgspec.Struct):
    step: Annotated[str, msgspec.Meta(description="the name of the step that undoes this one")]
    on: Any = None


def read_compensation(value: Any, where: str) -> dict[str, Any]:
    """Read `compensation` as the fields of a step definition."""
    if value is None:
        return {}
    option = read_options(
        _CompensationOption, {"step": value} if not isinstance(value, Mapping) else value, "compensation", where=where
    )
    return {"compensation": option.step, "compensate_on": read_kinds("compensation.on", option.on, where) or ()}


def read_definitions(fn: Callable[..., Any]) -> list[Any]:
    """Return the definitions that decorators attached to a function."""
    inner = inspect.unwrap(fn) if hasattr(fn, "__wrapped__") else fn
    return list(getattr(inner, DEFINITIONS_ATTRIBUTE, None) or getattr(fn, DEFINITIONS_ATTRIBUTE, []))
