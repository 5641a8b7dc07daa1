"""Subscriptions: which events start a step or a flow, with `when` and `map`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import DefinitionError
from ..core.events import BadEmit, check_kind
from ..core.options import rename_keys
from ..core.text import shorten
from .options import read_kinds

When = Callable[..., bool] | Mapping[str, Any]


@dataclass(frozen=True)
class Subscription:
    """An event kind that starts a step.

    Args:
        kind: The kind of event.
        when: A function of the event that accepts or rejects it, or a mapping its data must contain.
        map: A function of the event that returns the step's input; without it, the input is the event's data.
    """

    kind: str
    when: When | None = None
    map: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        for name in ("when", "map"):
            value = getattr(self, name)
            # It is called inside a commit and not awaited: a coroutine would always count as true.
            if inspect.iscoroutinefunction(value):
                raise DefinitionError(
                    f"`{name}` of the subscription to {self.kind!r} must be a `def` function that takes the event, got "
                    "an async function"
                )
            if value is not None and not callable(value) and not (name == "when" and isinstance(value, Mapping)):
                other = ", or a mapping that its data must contain" if name == "when" else ""
                raise DefinitionError(
                    f"the {name} of {self.kind!r} must be a function of the event{other}, got {shorten(value)}"
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
    return [read_subscription(item, where) for item in subscriptions or ()]


def read_subscription(item: Subscription | Mapping[str, Any] | str, where: str) -> Subscription:
    """Read a subscription: a kind, or a mapping such as {"kind": "order.paid", "when": {...}}."""
    if isinstance(item, Subscription):
        return item
    if isinstance(item, str):
        item = {"kind": item}
    fields = rename_keys(item, {"kind", "when", "map"}, "a subscription", aliases={"event_kind": "kind"}, where=where)
    if not isinstance(fields.get("kind"), str):
        raise DefinitionError(f"a subscription requires 'eventKind', got {dict(item)!r}", where=where)
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
    found = tuple(read_subscription(item, where) for item in items)
    for subscription in found:
        try:
            check_kind(subscription.kind)
        except BadEmit as problem:
            raise DefinitionError(f"start_on: {problem}", where=where) from None
    return found
