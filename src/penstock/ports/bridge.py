"""What a bridge to another system's queues asks of an App, and an App of a bridge."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from .store import Store
from .unit import Receipt, Unit

WriteUnits = Callable[[Sequence[Unit]], Awaitable[list[Receipt]]]
"""Writes units in a transaction that is the bridge's own."""


class Message(msgspec.Struct, frozen=True):
    """A job of the other system, handed to us."""

    id: str
    queue: str
    data: Any
    attempt: int = 1


class BridgeHost(Protocol):
    """What an App does with what comes in. A key is taken once, so the same message may be brought again."""

    @property
    def store(self) -> Store: ...

    def flow_of(self, target: Callable[..., Any]) -> str | None:
        """The name of the flow a function begins, None for a plain function."""
        ...

    def check_flow(self, name: str) -> None:
        """Raises UnknownFlow for a flow that is not known here."""
        ...

    async def start(self, flow: str, input: Any, key: str) -> None: ...

    async def emit(self, kind: str, data: Any, key: str) -> None: ...

    async def enqueue(self, queue: str, name: str | None, payload: Any, key: str) -> None: ...

    async def load_value(self, key: str) -> Any:
        """What was remembered under a key, None if nothing was."""
        ...

    async def save_value(self, key: str, value: Any) -> None: ...

    def with_writer(self, write: WriteUnits) -> BridgeHost:
        """The same hands, what they do being written by `write`."""
        ...


@runtime_checkable
class Bridge(Protocol):
    """Joins another system's queues to an App. It is opened and closed with it, and runs while a worker does."""

    async def open(self, hands: BridgeHost) -> None: ...

    async def run(self) -> None:
        """Moves messages until it is cancelled."""
        ...

    async def close(self) -> None: ...
