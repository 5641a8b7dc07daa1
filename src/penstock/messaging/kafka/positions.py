"""How far a partition was consumed, saved in our store by the commit of each effect.

Kafka's own offset is committed later, so a message may be delivered again: after a kill, or because two processes have
the partition for a moment. The position is a compare-and-set in the unit of the effect. So of two deliveries one is
applied, and the other one finds the position behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...core.errors import StoreError
from ...core.ids import new_token
from ...ports.store import Store
from ...ports.unit import Committed, Receipt, Refused, StateWrite, Unit


class PositionMoved(Exception):
    """Another process consumes the partition: the position is not the one that was read."""


class DeadLetterMark(msgspec.Struct, frozen=True):
    """A dead letter that is being sent: its partition and where that one ended before."""

    partition: int
    start: int


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last offset that was applied, and what is known of the next one."""

    offset: int = -1
    trying: int = -1  # the offset that the following values are about
    failures: int = 0
    starts: int = 0  # of a function, counted before it is called
    dead: DeadLetterMark | None = None

    def at(self, offset: int) -> Position:
        """Return what is known of an offset."""
        return self if self.trying == offset else Position(self.offset, offset)


class PartitionPosition:
    """The position of one partition, and its version in the store."""

    def __init__(self, store: Store, group: str, topic: str, partition: int) -> None:
        self._store = store
        self._key = f"shared/kafka/{group}/{topic}/{partition}"
        self._version = 0
        self.value = Position()

    async def load(self) -> None:
        """Read the position."""
        row = await self._store.state(self._key)
        self._version = row.version if row is not None else 0
        try:
            self.value = msgspec.json.decode(row.value, type=Position) if row is not None else Position()
        except msgspec.MsgspecError as problem:
            raise StoreError(
                f"the state {self._key!r} must be a position in a topic of Kafka ({problem}); delete it to apply the "
                "messages after the group's committed offset"
            ) from None

    def reset(self) -> None:
        """Forget the position: the topic is another one now. The version stays, so that the next write replaces it."""
        self.value = Position()

    async def save(self, value: Position) -> None:
        """Save the position alone. Raise PositionMoved if another process saved one meanwhile."""
        await PositionWriter(self, value).write([Unit(new_token())])

    def _write(self, value: Position) -> StateWrite:
        return StateWrite(self._key, msgspec.json.encode(value), self._version)


class PositionWriter:
    """Writes the unit of an effect together with a position."""

    def __init__(self, position: PartitionPosition, value: Position) -> None:
        self._position = position
        self._value = value
        self.is_written = False

    async def write(self, units: Sequence[Unit]) -> list[Receipt]:
        """Write units, the first one with the position. Raise PositionMoved if another process moved it."""
        position = self._position
        if self.is_written:
            return (await position._store.commit(units)).receipts
        first, *others = units
        state = position._write(self._value)
        first.state = [*first.state, state]
        receipts = (await position._store.commit([first, *others])).receipts
        receipt = receipts[0]
        if isinstance(receipt, Refused) and receipt.key == state.key:
            raise PositionMoved
        if isinstance(receipt, Committed):
            self._note()
        return receipts

    def _note(self) -> None:
        """Take over the position that is written now, with its version."""
        self.is_written = True
        self._position.value = self._value
        self._position._version += 1
