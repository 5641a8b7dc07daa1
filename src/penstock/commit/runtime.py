"""What every engine and command of one App shares, passed once instead of argument by argument."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.clock import Clock
from ..core.events import EventBodies
from ..ports.store import Store
from ..telemetry.instrumentation import Instrumentation
from ..telemetry.tracing import NO_SPAN, Span
from .committer import Committer

if TYPE_CHECKING:
    from ..context.blobs import BlobView
    from ..handlers.registry import Registry


@dataclass(frozen=True, slots=True)
class Runtime:
    """The store, the group commit in front of it, and where time, ids and code come from.

    `registry` is a function because `app.reload()` replaces the registry while work goes on.
    """

    store: Store
    committer: Committer
    bodies: EventBodies
    clock: Clock
    new_unit_id: Callable[[], str]
    registry: Callable[[], Registry]
    instrumentation: Instrumentation | None = None  # None: nobody listens
    public_url: str = ""  # the start of the URLs of triggers
    blobs: BlobView | None = None  # set by App

    @property
    def is_traced(self) -> bool:
        """Whether somebody makes spans."""
        return self.instrumentation is not None and self.instrumentation.tracer is not None

    def produce(self, operation: str, destination: str) -> AbstractContextManager[Span]:
        """Open the span of a command that creates work, if somebody traces."""
        found = self.instrumentation
        return NO_SPAN if found is None or found.tracer is None else found.tracer.produce(operation, destination)
