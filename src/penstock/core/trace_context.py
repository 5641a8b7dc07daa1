"""The trace that new work joins, as a W3C `traceparent`: a tracer sets it, builders of jobs and runs read it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

current_trace: ContextVar[str | None] = ContextVar("penstock_trace", default=None)  # None: nothing is traced
HEADER = "traceparent"
_FORM = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@contextmanager
def join_trace(trace: str | None) -> Iterator[None]:
    """Let work that is built inside join a trace."""
    token = current_trace.set(trace)
    try:
        yield
    finally:
        current_trace.reset(token)


def is_traceparent(text: object) -> bool:
    """Return whether a value from outside is a `traceparent`."""
    return isinstance(text, str) and _FORM.fullmatch(text) is not None


def read_carrier(carrier: object) -> str | None:
    """Return the `traceparent` of a carrier from outside: headers, or such a mapping as JSON. None if it has none."""
    if isinstance(carrier, str):
        try:
            carrier = json.loads(carrier)
        except (ValueError, RecursionError):
            return None
    found = carrier.get(HEADER) if isinstance(carrier, Mapping) else None
    return found if is_traceparent(found) else None


def split_trace(trace: str) -> tuple[str, str]:
    """Return the trace id and the span id."""
    return trace[3:35], trace[36:52]
