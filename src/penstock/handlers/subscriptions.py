"""Subscriptions: which events start a step or a flow, with `when` and `map`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from ..core.errors import DefinitionError
from ..core.events import BadEmit, check_kind
from ..core.options import DELAY_META, MAX_KEY_CHARS, MAX_PRIORITY, read_options, rename_keys
from ..core.text import shorten
from .options import read_kinds

When = Callable[..., bool] | Mapping[str, Any]
Stream = Literal["flow", "global"]


@dataclass(frozen=True)
class Subscription:
    """An event kind that starts a step.

    Args:
        kind: The kind of event.
        when: A function of the event that accepts or rejects it, or a mapping its data must contain.
        map: A function of the event that returns the step's input, or `{"data": input, "opts": {…}}` with options of
            its job; without it, the input is the event's data.
        stream: `"flow"` for the events of the step's own run, `"global"` for those of any run and from outside. A step
            that listens to `"global"` is the first step of a flow, and each event starts a run.
        has_options: Whether `map` always returns `{"data": …, "opts": …}`, of which `opts` may be left out.
    """

    kind: str
    when: When | None = None
    map: Callable[..., Any] | None = None
    stream: Stream = "flow"
    has_options: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "stream", read_stream(self.stream))
        for name in ("when", "map"):
            value = getattr(self, name)
            # It is called inside a commit and not awaited: a coroutine would always count as true.
            if inspect.iscoroutinefunction(value):
                raise DefinitionError(
                    f"`{name}` of the subscription to {self.kind!r} must be a `def` function that takes the event, got "
                    "an async function"
                )
            if value is not None and not callable(value) and not (name == "when" and isinstance(value, Mapping)):
                other = (
                    " that takes the event, or a dict of the fields and values that the event's data must contain"
                    if name == "when"
                    else " that takes the event"
                )
                raise DefinitionError(
                    f"`{name}` for event kind {self.kind!r} is {shorten(value)}, but must be a function{other}"
                )


_KEYS = {"kind", "when", "map", "stream"}
_RUN, _CORRELATION = "run-of-the-step", "correlation-of-the-step"  # passed to a `stream` that is a function


def read_stream(value: Any) -> Stream:
    """Read the stream of a subscription: "flow" or "global", the name of that stream, or a function that returns it."""
    name = value
    if callable(value):
        try:
            taken = len(inspect.signature(value).parameters)
            name = value(*(_RUN, _CORRELATION)[:taken])
        except Exception:
            name = None  # it needs a real run
    if name is None and value is None:
        return "flow"
    if isinstance(name, str):
        last = name.rpartition(":")[2]
        if name == "flow" or (last in (_RUN, _CORRELATION) and name.count(":") == 2 and ":flow:" in name):
            return "flow"
        if last in ("global", "events") and name.count(":") <= 1:
            return "global"
    raise DefinitionError(
        f"the stream of a subscription must be 'flow' or 'global', got {shorten(value)}. With 'flow', events of the "
        "same run start the step. With 'global', each event starts a new run. To wait for an event of another run, "
        "use wait=Await('event', …) or ctx.wait.event. To follow a queue, use app.queues.events"
    )


def read_subscriptions(on: Any, when: Any, map: Any, subscriptions: Any, where: str) -> tuple[Subscription, ...]:
    """Read what starts a step: the kinds in `on`, which share `when` and `map`, and `subscriptions`."""
    kinds = read_kinds("on", on, where) or ()
    for name, value in (("when", when), ("map", map)):
        if value is not None and not kinds:
            raise DefinitionError(
                f"{name} requires on=; if you use subscriptions= instead, set {name} on each of them", where=where
            )
    listens = [read_subscription({"kind": kind, "when": when, "map": map}, where) for kind in kinds]
    return (*listens, *read_subscription_list(subscriptions, where))


def read_subscription_list(subscriptions: Any, where: str) -> list[Subscription]:
    """Read a list of subscriptions, or None."""
    if subscriptions is not None and not isinstance(subscriptions, list | tuple):
        raise DefinitionError(
            f'`subscriptions` must be a list such as [Subscription("order.paid")], got {shorten(subscriptions)}',
            where=where,
        )
    return [subscription for item in subscriptions or () for subscription in _expand(item, where)]


def _expand(item: Any, where: str) -> list[Subscription]:
    """Read a subscription; `{"stream", "when": {"kind", "where"}, "map"}` has one for each of its kinds."""
    if not isinstance(item, Mapping) or not {"kind", "eventKind", "event_kind"}.isdisjoint(item):
        return [read_subscription(item, where)]
    when = item.get("when")
    if not isinstance(when, Mapping) or not {"kind", "where"}.issuperset(when) or not when.get("kind"):
        return [read_subscription(item, where)]
    rest = {**item, "when": when.get("where")}
    kinds = read_kinds("when.kind", when["kind"], where) or ()
    return [replace(read_subscription({**rest, "kind": kind}, where), has_options=True) for kind in kinds]


def read_subscription(item: Subscription | Mapping[str, Any] | str, where: str) -> Subscription:
    """Read a subscription: a kind, or a mapping such as {"kind": "order.paid", "when": {...}}."""
    if isinstance(item, Subscription):
        return item
    if isinstance(item, str):
        item = {"kind": item}
    fields = rename_keys(item, _KEYS, "a subscription", aliases={"event_kind": "kind"}, where=where)
    if not isinstance(fields.get("kind"), str):
        name = next((key for key in item if str(key) in ("kind", "eventKind", "event_kind")), "kind")
        raise DefinitionError(
            f"a subscription requires {name!r}, the kind of an event such as 'order.paid', got {shorten(dict(item))}",
            where=where,
        )
    try:
        return Subscription(**fields)
    except DefinitionError as problem:
        raise DefinitionError(str(problem), where=where) from None


def read_start_on(value: Any, where: str) -> tuple[Subscription, ...]:
    """Read the events that start a flow: a kind, a subscription, or a list of them."""
    items = [value] if isinstance(value, str | Subscription | Mapping) else value or ()
    if not isinstance(items, list | tuple | set | frozenset):
        raise DefinitionError(
            f'`start_on` must be an event kind such as "order.paid", or a list of kinds, got {shorten(value)}',
            where=where,
        )
    return check_start_on(tuple(read_subscription(item, where) for item in items), where)


def check_start_on(found: tuple[Subscription, ...], where: str) -> tuple[Subscription, ...]:
    """Return the events that start a flow; raise DefinitionError for a kind that is not valid."""
    for subscription in found:
        try:
            check_kind(subscription.kind)
        except BadEmit as problem:
            raise DefinitionError(f"start_on: {problem}", where=where) from None
    return found


def split_streams(
    subscriptions: tuple[Subscription, ...], where: str
) -> tuple[tuple[Subscription, ...], tuple[Subscription, ...]]:
    """Return the subscriptions to the step's own run, and those to all events; a step has one sort of them."""
    own = tuple(one for one in subscriptions if one.stream == "flow")
    every = tuple(one for one in subscriptions if one.stream == "global")
    if own and every:
        raise DefinitionError(
            f"this step subscribes to {own[0].kind!r} of its own run and to {every[0].kind!r} on the stream 'global'. "
            "The first continues a run and the second starts one: use two steps",
            where=where,
        )
    return own, every


class MapOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """`opts` that `map` returns: options of the job that the event starts. Numbers are milliseconds."""

    job_id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_CHARS)] | None = None
    delay_ms: Annotated[int, DELAY_META] | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)] | None = None
    attempts: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    dedupe: bool | None = None

    aliases: ClassVar[Mapping[str, str]] = {"delay": "delay_ms"}


def read_mapped(value: Any, has_options: bool = False) -> tuple[Any, MapOptions | None]:
    """Return the input and the options that a `map` returned.

    `{"data": …, "opts": …}` has options; any other value is the input, unless `has_options` requires that form.
    """
    if isinstance(value, Mapping) and (
        value.keys() == {"data", "opts"} or (has_options and "data" in value and value.keys() <= {"data", "opts"})
    ):
        opts = value.get("opts")
        return value["data"], read_options(MapOptions, opts, "opts") if opts else None
    if has_options:
        raise DefinitionError(f'map must return {{"data": input, "opts": {{…}}}}, got {shorten(value)}')
    return value, None
