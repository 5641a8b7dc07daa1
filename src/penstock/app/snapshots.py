"""Snapshots: folded streams, kept for a while, so that a look at a long stream reads and folds only its new events.

A snapshot is kept as bytes: its size is known, and no caller can change it. It is never returned without a look at the
store: the first event of the stream and the last one that was folded must be there unchanged. So a trimmed stream, and
one of a server that lost its last writes, is folded again from its first event.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import msgspec

from ..core.clock import Clock
from ..core.events import Event
from ..flows.reducer import TriggerView, apply_trigger
from ..ports.store import Store
from ..worker.engines import IncrementalEngine

MAX_SNAPSHOTS = 1000
MAX_SNAPSHOT_BYTES = 32 * 1024 * 1024  # of all together
MAX_AGE_MS = 60_000  # since it was last used
MIN_EVENTS = 50  # shorter streams are folded faster than they are checked
PAGE_EVENTS = 1000
S = TypeVar("S")
Key = tuple[str, Hashable]
"""A stream, and the key of the reducer."""


class Reducer(msgspec.Struct, Generic[S], frozen=True):
    """How a stream is folded: an empty state, and a function that applies an event to it and returns the next one.

    A state that msgspec does not read back unchanged as a `type` is not kept.
    """

    key: Hashable  # identifies the code: two reducers with the same key fold alike
    new: Callable[[], S]
    apply: Callable[[S, Event], S]
    type: Any = Any


def run_reducer(engine: IncrementalEngine) -> Reducer[Any]:
    """Return how an engine folds the streams of its runs."""

    def apply(view: Any, event: Event) -> Any:
        engine.apply_event(view, event)
        return view

    return Reducer(("run", engine.kind), engine.view_type, apply, engine.view_type)


def _apply_trigger(view: TriggerView, event: Event) -> TriggerView:
    apply_trigger(view, event)
    return view


TRIGGER_REDUCER = Reducer("trigger", TriggerView, _apply_trigger, TriggerView)


class Snapshot(msgspec.Struct, frozen=True):
    """A folded stream: up to which event, and what must still be in the store for it to be true."""

    state: bytes
    first: Event
    before_last: str | None  # the cursor that returns the last event and those after it
    last: Event
    epoch: int
    used_ms: int


class Snapshots:
    """Folds streams. Keeps the states that were used last, within a number, a size and an age."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._kept: OrderedDict[Key, Snapshot] = OrderedDict()
        self._bytes = 0

    @property
    def size(self) -> tuple[int, int]:
        """How many snapshots are kept, and how many bytes they have."""
        return len(self._kept), self._bytes

    async def fold(self, stream: str, reducer: Reducer[S]) -> S:
        """Return the state of a stream as it is now. The caller may change it."""
        key = (stream, reducer.key)
        known = self._find(key)
        if known is not None:
            new = await self._read_after(stream, known)
            if new is not None:
                return self._advance(key, reducer, known, new)
        self._drop(key)
        return await self._fold_all(key, reducer)

    async def _read_after(self, stream: str, known: Snapshot) -> list[Event] | None:
        """Return the events after a snapshot; None if it is not true any more."""
        first, page = await asyncio.gather(
            self._store.read(stream, limit=1),
            self._store.read(stream, after=known.before_last, limit=PAGE_EVENTS),
        )
        if first != [known.first] or not page or page[0] != known.last:
            return None
        events = page[1:]
        while len(page) == PAGE_EVENTS:
            page = await self._store.read(stream, after=page[-1].id, limit=PAGE_EVENTS)
            events += page
        return events

    def _advance(self, key: Key, reducer: Reducer[S], known: Snapshot, new: list[Event]) -> S:
        state: S = msgspec.msgpack.decode(known.state, type=reducer.type)
        for event in new:
            state = reducer.apply(state, event)
        if new:
            before_last = new[-2].id if len(new) > 1 else known.last.id
            self._keep(key, reducer, state, known.first, before_last, new[-1], known.epoch)
        else:
            self._kept[key] = msgspec.structs.replace(known, used_ms=self._clock.now_ms())
            self._kept.move_to_end(key)
        return state

    async def _fold_all(self, key: Key, reducer: Reducer[S]) -> S:
        epoch = self._store.rewind_epoch
        events: list[Event] = []
        while page := await self._store.read(key[0], after=events[-1].id if events else None, limit=PAGE_EVENTS):
            events += page
            if len(page) < PAGE_EVENTS:
                break
        state = reducer.new()
        for event in events:
            state = reducer.apply(state, event)
        if len(events) >= MIN_EVENTS:
            self._keep(key, reducer, state, events[0], events[-2].id, events[-1], epoch)
        return state

    def _find(self, key: Key) -> Snapshot | None:
        known = self._kept.get(key)
        if known is None:
            return None
        is_old = self._clock.now_ms() - known.used_ms >= MAX_AGE_MS
        return None if is_old or known.epoch != self._store.rewind_epoch else known

    def _keep(
        self,
        key: Key,
        reducer: Reducer[Any],
        state: Any,
        first: Event,
        before_last: str,
        last: Event,
        epoch: int,
    ) -> None:
        self._drop(key)
        data = _encode(state, reducer.type)
        if data is None or len(data) > MAX_SNAPSHOT_BYTES:
            return
        now = self._clock.now_ms()
        self._kept[key] = Snapshot(data, first, before_last, last, epoch, now)
        self._bytes += len(data)
        while self._kept:
            oldest = next(iter(self._kept))
            if (
                len(self._kept) <= MAX_SNAPSHOTS
                and self._bytes <= MAX_SNAPSHOT_BYTES
                and now - self._kept[oldest].used_ms < MAX_AGE_MS
            ):
                break
            self._drop(oldest)

    def _drop(self, key: Key) -> None:
        known = self._kept.pop(key, None)
        if known is not None:
            self._bytes -= len(known.state)


def _encode(state: Any, type_: Any) -> bytes | None:
    """Return a state as bytes, None if it would not be read back as it is: a tuple or an object of another library."""
    try:
        data = msgspec.msgpack.encode(state)
        return data if type_ is not Any or _is_same(msgspec.msgpack.decode(data), state) else None
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def _is_same(a: Any, b: Any) -> bool:
    """Return whether two values are equal and of the same types, also inside: 1 is not True, a list is not a tuple."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_is_same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_is_same, a, b))
    return bool(a == b)
