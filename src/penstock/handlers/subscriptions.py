"""What starts a step or a flow, as people write it: kinds of events, with `when` and `map`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import DefinitionError
from ..core.events import BadEmit, check_kind
from ..core.near_match import check_keys
from .options import read_kinds

When = Callable[..., bool] | Mapping[str, Any]


@dataclass(frozen=True)
class Subscription:
    """An event kind that starts a step, if `when` holds, with an input that `map` makes of it.

    `when` is a function of the event, or a mapping its data must contain.
    """

    kind: str
    when: When | None = None
    map: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        for name in ("when", "map"):
            given = getattr(self, name)
            # It decides inside a commit and is not awaited: a coroutine would always count as true.
            if inspect.iscoroutinefunction(given):
                raise DefinitionError(f"the {name} of {self.kind!r} is async: write a plain function of the event")
            if given is not None and not callable(given) and not (name == "when" and isinstance(given, Mapping)):
                way = ", or a mapping that its data must contain" if name == "when" else ""
                raise DefinitionError(f"the {name} of {self.kind!r} is {given!r}: give a function of the event{way}")


def expand_on(on: Any, when: Any, map: Any, where: str) -> list[Mapping[str, Any]]:
    """The kinds of `on`, each with the `when` and `map` that go with them."""
    kinds = read_kinds("on", on, where) or ()
    for name, value in (("when", when), ("map", map)):
        if value is not None and not kinds:
            raise DefinitionError(
                f"{name} goes with on=, and there is none: give each of the subscriptions its own {name}", where=where
            )
    return [{"kind": kind, "when": when, "map": map} for kind in kinds]


def check_subscription_list(subscriptions: Any, where: str) -> Sequence[Any]:
    """Subscriptions are a list, if there are any."""
    if subscriptions is None or isinstance(subscriptions, list | tuple):
        return subscriptions or ()
    raise DefinitionError(
        f'subscriptions={subscriptions!r}: give a list, such as [Subscription("order.paid")]', where=where
    )


def read_subscription(item: Subscription | Mapping[str, Any] | str, where: str) -> Subscription:
    """A subscription as the specs write it: {eventKind, when?, map?}."""
    if isinstance(item, Subscription):
        return item
    if isinstance(item, str):
        item = {"kind": item}
    check_keys(item, {"eventKind", "event_kind", "kind", "when", "map"}, "a subscription", where)
    kind = item.get("eventKind", item.get("event_kind", item.get("kind")))
    if not isinstance(kind, str):
        raise DefinitionError(f"the subscription {dict(item)!r} names no 'eventKind'", where=where)
    try:
        return Subscription(kind, item.get("when"), item.get("map"))
    except DefinitionError as problem:
        raise DefinitionError(str(problem), where=where) from None


def read_start_on(value: Any, where: str) -> tuple[Subscription, ...]:
    """The events that start a flow: a kind, a subscription, or several of them."""
    items = [value] if isinstance(value, str | Subscription | Mapping) else value or ()
    if not isinstance(items, list | tuple | set | frozenset):
        raise DefinitionError(f'start_on={value!r}: give the kind of an event ("order.paid"), or a list', where=where)
    found = tuple(read_subscription(item, where) for item in items)
    for subscription in found:
        try:
            check_kind(subscription.kind)
        except BadEmit as problem:
            raise DefinitionError(f"start_on: {problem}", where=where) from None
    return found
