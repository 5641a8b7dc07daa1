"""Tracing: what makes spans of starts, attempts, durable calls and requests. A listener of an App may be a tracer too.

Traces travel as W3C `traceparent` strings: in the options of jobs, in run records, in the `meta` of emitted events. So
another process, on another day, continues the trace. Without a tracer nothing is stored and nothing is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from .instrumentation import AttemptEnded, AttemptStarted


class Span(Protocol):
    """A span that is open."""

    def set(self, name: str, value: Any) -> None:
        """Add an attribute."""
        ...


class CallSpan(Protocol):
    """The span of a durable call whose function runs. A replayed call has none."""

    def activate(self) -> Callable[[], None]:
        """Make it the current span of this task or thread; return what undoes that."""
        ...

    def end(self, error: BaseException | None = None, *, is_recorded: bool = True) -> None:
        """End it. A second call does nothing."""
        ...


class AttemptSpan(Protocol):
    """The span of an attempt."""

    @property
    def traceparent(self) -> str: ...

    def activate(self) -> Callable[[], None]:
        """Make it the current span of this task; return what undoes that."""
        ...

    def start_call(self, key: str) -> CallSpan | None:
        """Start the span of a durable call. None: the trace is not sampled."""
        ...

    def end(self, event: AttemptEnded | None) -> None:
        """End it with how the attempt ended; None if that could not be recorded."""
        ...


@runtime_checkable
class Tracer(Protocol):
    """Makes spans."""

    def produce(self, operation: str, destination: str) -> AbstractContextManager[Span]:
        """Open the span of a command that creates work: start, enqueue, emit or fire. What is built inside joins it."""
        ...

    def serve(self, method: str, route: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        """Open the span of an HTTP request, in the trace that its headers name."""
        ...

    def start_attempt(self, event: AttemptStarted, trace: str | None, links: Sequence[str]) -> AttemptSpan | None:
        """Start the span of an attempt in the trace of its job. `links` are the spans that woke it after a wait."""
        ...


class _NoSpan:
    def set(self, name: str, value: Any) -> None:
        """Add nothing."""


NO_SPAN: AbstractContextManager[Span] = nullcontext(_NoSpan())
