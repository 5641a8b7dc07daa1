"""The parts of an App for code without an event loop: each call waits for its answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from ..context.state import Key
from ..core.durations import Duration
from ..core.events import Event
from ..jobs.dead_letters import DeadLetter
from ..ports.store import JobRow, QueueRow
from ..ports.unit import JobState
from .events import Events, Hears, Unsubscribe
from .queues import Child, DeadLetters, Queues, Redriven
from .state import AppState

T = TypeVar("T")


class Call(Protocol):
    """Runs a coroutine on the App's loop and gives what it gave."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


def each(call: Call, items: AsyncIterator[T]) -> Iterator[T]:
    """The items of an async iterator one by one; it is closed when nobody wants more."""
    try:
        while (found := call(_next(items))) is not None:
            yield found[0]
    finally:
        if isinstance(items, AsyncGenerator):
            call(items.aclose())


async def _next(items: AsyncIterator[T]) -> tuple[T] | None:
    try:
        return (await anext(items),)
    except StopAsyncIteration:
        return None


class SyncQueues:
    """`app.queues`; see Queues."""

    def __init__(self, call: Call, queues: Queues) -> None:
        self._call = call
        self._queues = queues

    def list(self, *, internal: bool = False) -> list[QueueRow]:
        return self._call(self._queues.list(internal=internal))

    def counts(self, queue: str) -> dict[str, int]:
        return self._call(self._queues.counts(queue))

    def jobs(
        self, queue: str, state: JobState | str = JobState.WAITING, *, after: str | None = None, limit: int = 50
    ) -> Sequence[JobRow]:
        return self._call(self._queues.jobs(queue, state, after=after, limit=limit))

    def job(self, id: str) -> JobRow:
        return self._call(self._queues.job(id))

    def children(self, id: str) -> Sequence[Child]:
        return self._call(self._queues.children(id))

    def dependencies(self, id: str) -> dict[str, int]:
        return self._call(self._queues.dependencies(id))

    def pause(self, queue: str) -> None:
        self._call(self._queues.pause(queue))

    def resume(self, queue: str) -> None:
        self._call(self._queues.resume(queue))

    def promote(self, id: str) -> bool:
        return self._call(self._queues.promote(id))

    def retry(self, id: str) -> bool:
        return self._call(self._queues.retry(id))

    def remove(self, id: str) -> bool:
        return self._call(self._queues.remove(id))

    def drain(self, queue: str, *, delayed: bool = False) -> int:
        return self._call(self._queues.drain(queue, delayed=delayed))

    def events(self, queue: str, *, after: str | None = None, shared: bool = False) -> Iterator[Event]:
        return each(self._call, self._queues.events(queue, after=after, shared=shared))


class SyncDeadLetters:
    """`app.dead_letters`; see DeadLetters."""

    def __init__(self, call: Call, letters: DeadLetters) -> None:
        self._call = call
        self._letters = letters

    def queues(self) -> dict[str, int]:
        return self._call(self._letters.queues())

    def list(self, queue: str, *, after: str | None = None, limit: int = 50) -> list[tuple[str, DeadLetter]]:
        return self._call(self._letters.list(queue, after=after, limit=limit))

    def show(self, id: str) -> DeadLetter:
        return self._call(self._letters.show(id))

    def redrive(self, id: str, *, payload: Any = None) -> Redriven:
        return self._call(self._letters.redrive(id, payload=payload))

    def retry(self, failed: JobRow) -> Redriven:
        return self._call(self._letters.retry(failed))

    def redrive_all(
        self,
        queue: str,
        *,
        where: Callable[[DeadLetter], bool] | None = None,
        change: Callable[[Any], Any] | None = None,
        limit: int | None = None,
    ) -> Redriven:
        return self._call(self._letters.redrive_all(queue, where=where, change=change, limit=limit))

    def discard(self, id: str) -> bool:
        return self._call(self._letters.discard(id))


class SyncState:
    """`app.state`; see AppState."""

    def __init__(self, call: Call, state: AppState) -> None:
        self._call = call
        self._state = state

    def of_run(self, run: str) -> SyncState:
        return SyncState(self._call, self._state.of_run(run))

    def get(self, key: Key, default: Any = None) -> Any:
        return self._call(self._state.get(key, default))

    def set(self, key: Key, value: Any, *, ttl: Duration | None = None) -> None:
        self._call(self._state.set(key, value, ttl=ttl))

    def delete(self, key: Key) -> None:
        self._call(self._state.delete(key))

    def list(self, prefix: Key = "", *, limit: int = 100) -> dict[str, Any]:
        return self._call(self._state.list(prefix, limit=limit))

    def patch(self, key: Key, change: Callable[[Any], Any], *, ttl: Duration | None = None) -> Any:
        return self._call(self._state.patch(key, change, ttl=ttl))


class SyncEvents:
    """`app.events`; see Events. What hears of events is called on the App's own thread."""

    def __init__(self, call: Call, events: Events) -> None:
        self._call = call
        self._events = events

    def append(
        self,
        stream: str,
        kind: str,
        data: Any = None,
        *,
        subject: str | None = None,
        correlation_id: str | None = None,
        meta: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> Event | None:
        said = self._events.append(
            stream, kind, data, subject=subject, correlation_id=correlation_id, meta=meta, key=key
        )
        return self._call(said)

    def read(
        self,
        stream: str,
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int = 100,
        backward: bool = False,
    ) -> list[Event]:
        return self._call(self._events.read(stream, after=after, before=before, limit=limit, backward=backward))

    def read_all(self, stream: str) -> list[Event]:
        return self._call(self._events.read_all(stream))

    def subscribe(self, stream: str, *, after: str | None = None) -> Iterator[Event]:
        return each(self._call, self._events.subscribe(stream, after=after))

    def on_kind(self, kind: str, handler: Hears) -> Unsubscribe:
        return self._call(self._events.on_kind(kind, handler))

    def on_subject(self, subject: str, handler: Hears) -> Unsubscribe:
        return self._call(self._events.on_subject(subject, handler))
