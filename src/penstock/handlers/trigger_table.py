"""The trigger table of a flow: which event starts which step. It is JSON, so that a run can be pinned to it."""

from __future__ import annotations

from collections.abc import Sequence
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
    """All steps of a flow. The listeners of all kinds are collected once."""

    flow: str
    entry: str
    steps: dict[str, TableStep]
    version: str | None = None

    def listeners(self, kind: str) -> Sequence[str]:
        """Return the steps that a kind of event starts."""
        return self._listeners.get(kind, ())

    @cached_property
    def _listeners(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, step in self.steps.items():
            for kind in dict.fromkeys(step.kinds):
                found.setdefault(kind, []).append(name)
        return found

    @cached_property
    def compensating_kinds(self) -> frozenset[str]:
        """The kinds of events that compensate steps."""
        return frozenset(kind for step in self.steps.values() for kind in step.compensate_on)

    @cached_property
    def fingerprint(self) -> str:
        """The hash of the table."""
        return digest(encode(self))


encode = msgspec.json.Encoder(order="deterministic").encode
decode = msgspec.json.Decoder(TriggerTable).decode
