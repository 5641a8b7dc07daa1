"""The trigger table of a flow: which event starts which step. It is JSON, so that a run can be pinned to it."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import msgspec

from ..core.ids import digest

Mode = Literal["once", "each", "all"]


class TableStep(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A step in the trigger table."""

    queue: str
    kinds: tuple[str, ...] = ()
    mode: Mode = "once"
    priority: int = 0
    delay_ms: int = 0
    compensation: str | None = None
    compensate_on: tuple[str, ...] = ()


class TriggerTable(msgspec.Struct, omit_defaults=True, rename="camel", dict=True):
    """All steps of a flow. The listeners of a kind are cached."""

    flow: str
    entry: str
    steps: dict[str, TableStep]
    version: str | None = None

    def __post_init__(self) -> None:
        self._listeners: dict[str, tuple[str, ...]] = {}

    def listeners(self, kind: str) -> tuple[str, ...]:
        """Return the steps that a kind of event starts."""
        found = self._listeners.get(kind)
        if found is None:
            found = self._listeners[kind] = tuple(name for name, step in self.steps.items() if kind in step.kinds)
        return found

    @cached_property
    def fingerprint(self) -> str:
        """The hash of the table."""
        return digest(encode(self))


encode = msgspec.json.Encoder(order="deterministic").encode
decode = msgspec.json.Decoder(TriggerTable).decode
