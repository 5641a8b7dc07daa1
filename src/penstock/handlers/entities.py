"""`@entity`: a state machine with a name, its hooks, its data and the options of its jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..core.durations import Duration
from ..core.errors import DefinitionError
from ..core.near_match import check_keys, did_you_mean
from ..core.retry import RetryOption
from ..core.schemas import UnknownFields, Validator, make_validator
from ..core.text import shorten
from .entity_machine import Function, Machine, Transition, build_machine, read_states, read_transition
from .handler import DEFINITIONS_ATTRIBUTE, Handler, make_handler
from .options import RateOption, check_options

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

MAX_BATCH = 64  # a mailbox has no more of its events in the record of the entity
_HOOKS_ATTRIBUTE = "__penstock_hooks__"
_CONTEXT_NAMES = ("ctx", "context")


@dataclass(frozen=True)
class Call:
    """A function of the user, and what it takes: `entity`, `payload` and `ctx`, or fewer of them."""

    fn: Function
    count: int  # how many of the values before `ctx`
    takes_ctx: bool
    is_async: bool

    @property
    def name(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    def __call__(self, values: Sequence[Any], ctx: Any) -> Any:
        given = values[: self.count]
        return self.fn(*given, ctx) if self.takes_ctx else self.fn(*given)


@dataclass(frozen=True)
class EventHook:
    """A function that is called before the transition of an event."""

    event: str
    call: Call
    order: int = 0


@dataclass(frozen=True)
class StatusHook:
    """A function that is called after a change of the status; None is any state."""

    from_: str | None
    to: str | None
    call: Call
    fail_on_error: bool = True

    def matches(self, before: str, after: str) -> bool:
        return self.from_ in (None, before) and self.to in (None, after)


@dataclass(frozen=True)
class _Mark:
    """What a decorator left on a method."""

    event: str | None = None
    order: int = 0
    from_: str | None = None
    to: str | None = None
    fail_on_error: bool = True


def on_event(event: str, *, order: int = 0) -> Callable[[F], F]:
    """Mark a method of an `@entity` class: it is called for each such event, before the transition's actions.

    Args:
        event: The event.
        order: Hooks of an event are called in this order, lower first.
    """
    return _marker(_Mark(event=event, order=order))


def on_status_changed(
    from_: str | None = None, to: str | None = None, *, fail_on_error: bool = True
) -> Callable[[F], F]:
    """Mark a method of an `@entity` class: it is called after each change of the status.

    Args:
        from_: Only after a change from this state. Default: from any.
        to: Only after a change to this state. Default: to any.
        fail_on_error: Whether an exception fails the attempt. Otherwise it is recorded and the event goes on.
    """
    return _marker(_Mark(from_=from_, to=to, fail_on_error=fail_on_error))


def _marker(mark: _Mark) -> Callable[[F], F]:
    def apply(fn: F) -> F:
        setattr(fn, _HOOKS_ATTRIBUTE, [*getattr(fn, _HOOKS_ATTRIBUTE, []), mark])
        return fn

    return apply


async def _unbound(input: Any, ctx: Any) -> None:  # noqa: ARG001
    """Stand for the handler of an entity until the engine binds it to an event."""
    raise AssertionError("an entity's handler is bound when its job is claimed")


@dataclass(frozen=True)
class EntityDefinition:
    """A kind of entity, ready to run."""

    name: str
    machine: Machine
    handler: Handler
    conditions: Mapping[int, tuple[Call, ...]]  # by the index of the transition
    actions: Mapping[int, tuple[Call, ...]]
    event_hooks: tuple[EventHook, ...] = ()
    status_hooks: tuple[StatusHook, ...] = ()
    fallback: Call | None = None
    model: Any = None  # of the data; None: a dict
    service: Any = None  # where the data is; None: in Penstock's own store
    prefixes: tuple[str, ...] = ()  # of the urns that belong to it
    checks: Mapping[str, Validator] = field(default_factory=dict, repr=False)
    messaging: Mapping[str, Any] | None = None  # see penstock.messaging.read_messaging
    batches: Mapping[str, int] = field(default_factory=dict)  # event -> how many of it may be handled together

    def check_payload(self, event: str, payload: Any) -> Any:
        """Return the payload, converted to its model; raise SchemaViolation if it does not match."""
        check = self.checks.get(event)
        return payload if check is None else check(payload)

    def check_payloads(self, event: str, payloads: Any) -> list[Any]:
        """Return the payloads of events that are handled together, each converted to its model."""
        return [self.check_payload(event, payload) for payload in payloads]

    def owns(self, urn: str) -> bool:
        """Return whether a urn has one of its prefixes."""
        return urn.startswith(self.prefixes)

    def hooks_of(self, event: str) -> list[EventHook]:
        return [hook for hook in self.event_hooks if hook.event == event]


@check_options
def entity(
    name: str | None = None,
    *,
    queue: str | None = None,
    retry: RetryOption | None = None,
    timeout: Duration | None = None,
    priority: int = 0,
    concurrency: int | None = None,
    max_active: int | None = None,
    rate_limit: RateOption | None = None,
    dead_letters: bool = True,
    dead_letter_queue: str | None = None,
    unknown_fields: UnknownFields | None = None,
) -> Callable[[C], C]:
    """Define a kind of entity: a class with `states` and `transitions`, and hooks as methods.

    The class may also have `events` (the models of payloads by event), `data` (the model of an entity's data),
    `service` (your own storage), `urn` (the prefix of its urns, or several), `on_rejected`, `on_unmet`, a method
    `fallback`, `batches` (events that are handled several at a time, and how many), and `messaging` (the queues that
    its events come from), or `bullmq` and `kafka` alone.

    Args:
        name: The type of the entities. Default: the name of the class in lower case.
        queue: The queue of its jobs; by default named after the file.
        retry: Number of attempts for an event, or a policy: `RetryPolicy(…)` or a mapping.
        timeout: Fail an attempt that runs longer than this.
        priority: Lower numbers are claimed first; 0 is first.
        concurrency: Maximum number of events one worker handles at the same time. Those of one entity never overlap.
        max_active: Maximum number of events all workers handle at the same time.
        rate_limit: Maximum number of events per duration, such as `"100/1m"`.
        dead_letters: Whether an event that finally fails becomes a dead letter.
        dead_letter_queue: Where those go. Default: `<queue>-dlq`.
        unknown_fields: `"refuse"` or `"ignore"` fields of a payload that its dataclass does not have.
    """
    options = {
        "queue": queue, "retry": retry, "timeout": timeout, "priority": priority, "concurrency": concurrency,
        "max_active": max_active, "rate_limit": rate_limit, "dead_letters": dead_letters,
        "dead_letter_queue": dead_letter_queue, "unknown_fields": unknown_fields,
    }  # fmt: skip

    def mark(cls: C) -> C:
        _check_members(name or cls.__name__.lower(), cls)
        parts = {part: getattr(cls, part) for part in _PARTS if hasattr(cls, part)}
        definition = _build(name or cls.__name__.lower(), parts, options, _place_of(cls), cls())
        setattr(cls, DEFINITIONS_ATTRIBUTE, [definition])
        return cls

    return mark


_PARTS = (
    *("states", "transitions", "events", "data", "service", "urn", "on_rejected", "on_unmet", "fallback"),
    *("batches", "messaging", "bullmq", "kafka"),
)


def _check_members(name: str, cls: type) -> None:
    """Refuse a member whose name is almost that of a part: it would have no effect."""
    for member, value in vars(cls).items():
        if member.startswith("_") or member in _PARTS or hasattr(value, _HOOKS_ATTRIBUTE):
            continue
        if near := did_you_mean(member, _PARTS):
            raise DefinitionError(f"entity {name!r} has a member {member!r}, which means nothing; {near}")


def make_entity(definition: Mapping[str, Any], functions: Mapping[str, Function] | None = None) -> type:
    """Build an entity from data, such as a parsed JSON file. Pass what it returns to `App(handlers=[…])`.

    Args:
        definition: `name`, `states`, `transitions` and the other parts of an `@entity` class; `options` has the
            options of the decorator.
        functions: The conditions, actions, hooks and the fallback that the definition names.
    """
    known = functions or {}
    check_keys(definition, {"name", "options", "hooks", *_PARTS}, "an entity")
    name = definition.get("name")
    if not isinstance(name, str) or not name.isprintable():
        raise DefinitionError(f"an entity needs a name, got {shorten(name)}")
    _check_data(definition)
    members: dict[str, Any] = {part: definition[part] for part in _PARTS if part in definition}
    members["transitions"] = [read_transition(one, known) for one in definition.get("transitions", ())]
    members[_HOOKS_ATTRIBUTE] = [_read_hook(hook, known) for hook in definition.get("hooks", ())]
    if isinstance(members.get("fallback"), str):
        members["fallback"] = staticmethod(_find(members["fallback"], known))
    cls = type(name, (), members)
    return entity(name, **definition.get("options", {}))(cls)


def _check_data(definition: Mapping[str, Any]) -> None:
    """Check the types of the parts whose values no other check reads as a whole."""
    for part in ("transitions", "hooks"):
        if part in definition and not isinstance(definition[part], list | tuple):
            raise DefinitionError(f"{part} must be a list, got {shorten(definition[part])}")
    check_keys(definition.get("options", {}), set(inspect.signature(entity).parameters) - {"name"}, "options")


def _read_hook(hook: Mapping[str, Any], functions: Mapping[str, Function]) -> tuple[Function, _Mark]:
    check_keys(hook, {"event", "order", "from", "to", "failOnError", "call"}, "a hook")
    fn = hook["call"] if callable(hook.get("call")) else _find(hook.get("call"), functions)
    if hook.get("event") is not None:
        return fn, _Mark(event=hook["event"], order=hook.get("order", 0))
    return fn, _Mark(from_=hook.get("from"), to=hook.get("to"), fail_on_error=hook.get("failOnError", True))


def _find(name: Any, functions: Mapping[str, Function]) -> Function:
    if not isinstance(name, str) or name not in functions:
        hint = did_you_mean(name, functions) or f"known functions: {', '.join(sorted(functions)) or 'none'}"
        raise DefinitionError(f"no function named {shorten(name)} was passed; {hint}")
    return functions[name]


def _place_of(cls: type) -> tuple[str, int]:
    try:
        return inspect.getsourcefile(cls) or "", inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):  # made from data
        return "", 0


def _build(
    name: str, parts: Mapping[str, Any], options: Mapping[str, Any], place: tuple[str, int], owner: Any
) -> EntityDefinition:
    where = f"{place[0]}:{place[1]}" if place[0] else ""
    try:
        return _build_checked(name, parts, options, place, owner)
    except DefinitionError as problem:
        raise problem if problem.where else DefinitionError(str(problem), where=where or None) from None


def _build_checked(
    name: str, parts: Mapping[str, Any], options: Mapping[str, Any], place: tuple[str, int], owner: Any
) -> EntityDefinition:
    for part in ("states", "transitions"):
        if part not in parts:
            raise DefinitionError(f"entity {name!r} has no {part}")
    for part in ("events", "messaging"):
        if not isinstance(parts.get(part, {}), Mapping):
            raise DefinitionError(f"{part} of entity {name!r} must be a mapping, got {shorten(parts[part])}")
    if not isinstance(parts["transitions"], list | tuple):
        raise DefinitionError(f"transitions of entity {name!r} must be a list, got {shorten(parts['transitions'])}")
    transitions = [read_transition(one, {}) for one in parts["transitions"]]
    fallback = read_call(owner.fallback, 3, f"the fallback of entity {name!r}") if "fallback" in parts else None
    machine = build_machine(
        name,
        read_states(parts["states"]),
        transitions,
        has_fallback=fallback is not None,
        on_rejected=_choice(parts, "on_rejected"),
        on_unmet=_choice(parts, "on_unmet") or "refuse",
    )
    event_hooks, status_hooks = _read_hooks(name, owner, machine)
    schemas = dict(parts.get("events", {}))
    for event in schemas:
        _check_event(name, "events", event, machine)
    lenient: UnknownFields = options.get("unknown_fields") or "refuse"
    checks = {
        event: make_validator(schema, f"the payload of {event!r}", unknown_fields=lenient)
        for event, schema in schemas.items()
    }
    handler = replace(make_handler(_unbound, name, options), file=place[0], line=place[1])
    return EntityDefinition(
        name,
        machine,
        handler,
        _read_calls(name, transitions, "conditions"),
        _read_calls(name, transitions, "actions"),
        event_hooks,
        status_hooks,
        fallback,
        parts.get("data"),
        _make_service(name, parts.get("service")),
        _read_prefixes(name, parts.get("urn")),
        checks,
        _read_messaging_part(name, parts),
        _read_batches(name, parts.get("batches", {}), machine),
    )


def _read_batches(name: str, batches: Any, machine: Machine) -> dict[str, int]:
    if not isinstance(batches, Mapping):
        raise DefinitionError(f"batches of entity {name!r} must be a mapping, got {shorten(batches)}")
    for event, size in batches.items():
        _check_event(name, "batches", event, machine)
        if type(size) is not int or not 2 <= size <= MAX_BATCH:
            raise DefinitionError(
                f"batches of entity {name!r}: {event!r} needs a number from 2 to {MAX_BATCH}, got {shorten(size)}"
            )
    return dict(batches)


def _make_service(name: str, service: Any) -> Any:
    """Return the service: the object itself, or what a class or a function without arguments makes."""
    made = service() if callable(service) and (isinstance(service, type) or not hasattr(service, "load")) else service
    if made is None:
        return None
    for method in ("new", "load", "update", "status", "urn"):
        if not callable(getattr(made, method, None)):
            near = did_you_mean(method, [one for one in dir(made) if not one.startswith("_")]) or "see EntityService"
            raise DefinitionError(f"the service of entity {name!r} has no method {method!r}; {near}")
    return made


def _read_messaging_part(name: str, parts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return where events come from. The App reads it, so that each App has bridges of its own."""
    found = {**parts.get("messaging", {}), **{side: parts[side] for side in ("bullmq", "kafka") if side in parts}}
    if "messaging" in parts and len(found) > len(parts["messaging"]):
        raise DefinitionError(f"entity {name!r} has messaging, and bullmq or kafka beside it; move them into messaging")
    return found or None


def _choice(parts: Mapping[str, Any], name: str) -> str | None:
    value = parts.get(name)
    if value is not None and (not isinstance(value, str) or value not in ("fail", "refuse")):
        raise DefinitionError(f'{name} must be "fail" or "refuse", got {shorten(value)}')
    return value


def _read_prefixes(name: str, urn: Any) -> tuple[str, ...]:
    if urn is None:
        return (f"urn:{name}:", f"{name}:", f"{name}-")
    prefixes = (urn,) if isinstance(urn, str) else tuple(urn) if isinstance(urn, list | tuple | set) else ()
    if not prefixes or not all(isinstance(one, str) and one for one in prefixes):
        raise DefinitionError(f"urn must be the start of the urns of entity {name!r}, got {shorten(urn)}")
    return prefixes


def _read_calls(name: str, transitions: Sequence[Transition], kind: str) -> dict[int, tuple[Call, ...]]:
    found: dict[int, tuple[Call, ...]] = {}
    for n, one in enumerate(transitions):
        what = f"a {kind[:-1]} of the transition to {one.to!r} of entity {name!r}"
        found[n] = tuple(read_call(fn, 2, what) for fn in getattr(one, kind))
    return found


def _read_hooks(name: str, owner: Any, machine: Machine) -> tuple[tuple[EventHook, ...], tuple[StatusHook, ...]]:
    on_events: list[EventHook] = []
    on_statuses: list[StatusHook] = []
    for fn, mark in _marked_functions(owner):
        label = getattr(fn, "__name__", "hook")
        call = read_call(fn, 2, f"hook {label} of entity {name!r}")
        if mark.event is not None:
            _check_event(name, f"hook {label}", mark.event, machine)
            on_events.append(EventHook(mark.event, call, mark.order))
            continue
        for state in (mark.from_, mark.to):
            if state is not None and state not in machine.states:
                near = did_you_mean(state, machine.states) or f"known states: {', '.join(machine.states)}"
                raise DefinitionError(f"hook {label} of entity {name!r} names state {shorten(state)}; {near}")
        on_statuses.append(StatusHook(mark.from_, mark.to, call, mark.fail_on_error))
    return tuple(sorted(on_events, key=lambda hook: hook.order)), tuple(on_statuses)


def _marked_functions(owner: Any) -> Iterator[tuple[Function, _Mark]]:
    """Yield the hooks of a class, and those of a definition that was data."""
    for member in vars(type(owner)):
        if member != _HOOKS_ATTRIBUTE:
            fn = getattr(owner, member)
            yield from ((fn, mark) for mark in getattr(fn, _HOOKS_ATTRIBUTE, ()))
    yield from getattr(owner, _HOOKS_ATTRIBUTE, ())


def _check_event(name: str, what: str, event: Any, machine: Machine) -> None:
    if event not in machine.events:
        near = did_you_mean(event, machine.events) or f"known events: {', '.join(machine.events) or 'none'}"
        raise DefinitionError(f"{what} of entity {name!r} names event {shorten(event)}; {near}")


def read_call(fn: Any, count: int, what: str) -> Call:
    """Read the signature of a user's function: at most `count` values, and `ctx`."""
    if not callable(fn):
        raise DefinitionError(f"{what} must be a function, got {shorten(fn)}")
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a built-in function
        return Call(fn, count, False, False)
    allowed = "(entity, payload, ctx)" if count == 2 else "(entity, event, payload, ctx)"
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    takes_ctx = bool(positional) and positional[-1].name in _CONTEXT_NAMES
    values = positional[:-1] if takes_ctx else positional
    required = [one for one in values if one.default is one.empty]
    others = [one for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    if len(required) > count or others or any(one.name in _CONTEXT_NAMES for one in values):
        shown = ", ".join(str(one) for one in parameters)
        raise DefinitionError(f"{what} must take {allowed} or fewer of them, got ({shown})")
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return Call(fn, count, takes_ctx, _is_async(fn))
    return Call(fn, min(count, len(values)), takes_ctx, _is_async(fn))


def _is_async(fn: Any) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004
