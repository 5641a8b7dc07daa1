"""Events that are on their way to whoever waits for them: one, or several of a kind that were committed together."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..core.events import Event
from ..core.matching import keys_of
from ..ports.store import WaitRow


class Told(msgspec.Struct, frozen=True):
    """An event, and where it stands in the order of all streams."""

    stream: str
    cursor: str
    event: Event


class Bundle:
    """Events of one kind, oldest first. No gate was opened between them: who may have one may have all of them."""

    def __init__(self, told: Sequence[Told]) -> None:
        self.told = told
        self.kind = told[0].event.kind
        self.before = told[0].cursor
        self._filed: dict[str, list[int]] = {}
        self._anywhere: list[int] = []  # those with too many values to be filed under each
        for n, one in enumerate(told):
            keys = keys_of(one.event.data)
            if keys is None:
                self._anywhere.append(n)
            for key in keys or ():
                self._filed.setdefault(key, []).append(n)

    @property
    def keys(self) -> list[str] | None:
        """Under which those who may want one of them are filed; None: under any."""
        return None if self._anywhere else sorted(self._filed)

    def candidates(self, row: WaitRow) -> list[Told]:
        """The events that may be what a gate waits for, oldest first."""
        filed = self._filed.get(row.key or "", [])
        return [self.told[n] for n in (sorted([*filed, *self._anywhere]) if self._anywhere else filed)]
