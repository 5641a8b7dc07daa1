"""Events that travel with a command: they are part of the first unit that the command commits.

The audit event of a request is one: the command and its record are one commit, so neither exists without the other.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

import msgspec

from ..ports.unit import NewEvent, Receipt, Unit

if TYPE_CHECKING:
    from .committer import Build


class AttachedEvents:
    """Events for the first unit of a command."""

    __slots__ = ("_events", "is_committed", "is_taken")

    def __init__(self, *events: NewEvent) -> None:
        self._events = events
        self.is_taken = False  # by the first unit; work that this unit starts inherits the context, not the events
        self.is_committed = False

    def attach(self, build: Build) -> Build:
        """Return a build whose unit also appends the events, after its own: receipts number events in order."""
        self.is_taken = True

        def build_with_events(version: int, record: bytes | None) -> Unit | Receipt:
            built = build(version, record)
            if isinstance(built, Unit):  # a copy: the same unit may be built again
                return msgspec.structs.replace(built, events=[*built.events, *self._events])
            return built

        return build_with_events


ATTACHED: ContextVar[AttachedEvents | None] = ContextVar("penstock_attached_events", default=None)
