"""Types of what `start` takes, written once for App, SyncApp and the test kit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypedDict

from ..context.context import Context
from ..context.sync_context import SyncContext
from ..core.durations import Duration

NoInput = (
    Callable[[], Any]
    | Callable[[Context], Any]
    | Callable[[SyncContext], Any]
    | Callable[[None], Any]
    | Callable[[None, Any], Any]
)
"""A flow's function that needs no input."""


class StartOptions(TypedDict, total=False):
    """The keyword arguments of `app.start`."""

    key: str | None
    correlation_id: str | None
    priority: int | None
    delay: Duration | None
    at: datetime | None
    tags: Mapping[str, str] | None
    tx: Any


class Unset:
    """The type of UNSET."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Any = Unset()
"""Stands for an argument that was not passed, where None is a value."""
