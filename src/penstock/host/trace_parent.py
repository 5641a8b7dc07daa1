"""The span of the attempt, which the worker holds, as the parent of spans that a handler in a child process makes."""

from __future__ import annotations

from collections.abc import Callable


def join_parent(traceparent: str) -> Callable[[], None] | None:
    """Make the attempt's span the current one if OpenTelemetry is installed; return what undoes that."""
    try:
        from opentelemetry import context

        from ..telemetry.opentelemetry import parent_context
    except ImportError:
        return None
    token = context.attach(parent_context(traceparent))
    return lambda: context.detach(token)
