"""Types of the arguments of `ctx.call` and `ctx.call_many`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from ..core.durations import Duration

if TYPE_CHECKING:
    from ..durable.child_runs import OnCallTimeout
    from .context import Context
    from .sync_context import SyncContext

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741
"""The input of a flow."""
R = TypeVar("R")
"""The result of a flow."""

if TYPE_CHECKING:
    NoInput = (
        Callable[[], T]
        | Callable[[Context], T]
        | Callable[[SyncContext], T]
        | Callable[[None], T]
        | Callable[[None, Any], T]
    )
    """A flow's function that needs no input and returns T."""


class CallManyOptions(TypedDict, total=False):
    """The keyword arguments of `ctx.call_many`."""

    timeout: Duration | None
    on_timeout: OnCallTimeout
    name: str | None
    priority: int | None
    correlation_id: str | None
    tags: Mapping[str, str] | None


class CallOptions(CallManyOptions, total=False):
    """The keyword arguments of `ctx.call`."""

    key: str | None
