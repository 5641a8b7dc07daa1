"""Functions that are called for events, by kind and by subject."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from ..core.events import Event

log = logging.getLogger("penstock.events")

Subscriber = Callable[[Event], Awaitable[None] | None]
Unsubscribe = Callable[[], None]


class Subscribers:
    """The functions of one App or one client."""

    def __init__(self) -> None:
        self._by_kind: dict[str, list[Subscriber]] = {}
        self._by_subject: dict[str, list[Subscriber]] = {}

    def add_for_kind(self, kind: str, handler: Subscriber) -> Unsubscribe:
        """Call a function for the events of a kind. Return a function that stops it."""
        return _add(self._by_kind, kind, handler)

    def add_for_subject(self, subject: str, handler: Subscriber) -> Unsubscribe:
        """Call a function for the events about a run or a job. Return a function that stops it."""
        return _add(self._by_subject, subject, handler)

    async def notify(self, event: Event) -> None:
        """Call the functions of an event. One that raises is logged and disturbs no other."""
        for handler in (*self._by_subject.get(event.subject, ()), *self._by_kind.get(event.kind, ())):
            try:
                answer = handler(event)
                if inspect.isawaitable(answer):
                    await answer
            except Exception:
                log.exception("a subscriber to %s raised", event.kind)
            except asyncio.CancelledError:
                if (me := asyncio.current_task()) is not None and me.cancelling():
                    raise
                log.exception("a subscriber to %s awaited something that was cancelled", event.kind)


def _add(table: dict[str, list[Subscriber]], key: str, handler: Subscriber) -> Unsubscribe:
    table.setdefault(key, []).append(handler)

    def stop() -> None:
        handlers = table.get(key, [])
        if handler in handlers:
            handlers.remove(handler)

    return stop
