"""The bridge port: how the queues of another system are joined to an App."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from .store import Store
from .unit import Receipt, Unit

WriteUnits = Callable[[Sequence[Unit]], Awaitable[list[Receipt]]]
"""Writes units in a transaction of the bridge."""


class Message(msgspec.Struct, frozen=True):
    """A job of the other system."""

    id: str
    queue: str
    data: Any
    attempt: int = 1


class BridgeHost(Protocol):
    """The App, as a bridge sees it. A key is used once, so a message may be delivered again."""

    @property
    def store(self) -> Store: ...

    def flow_of(self, target: Callable[..., Any]) -> str | None:
        """Return the name of the flow that a function starts, or None for a plain function."""
        ...

    def check_flow(self, name: str) -> None:
        """Raise UnknownFlow for a flow that this App does not have."""
        ...

    async def start(self, flow: str, input: Any, key: str) -> None: ...

    async def emit(self, kind: str, data: Any, key: str) -> None: ...

    async def enqueue(self, queue: str, name: str | None, payload: Any, key: str) -> None: ...

    async def load_value(self, key: str) -> Any:
        """Return the value saved under a key, or None."""
        ...

    async def save_value(self, key: str, value: Any) -> None: ...

    def with_writer(self, write: WriteUnits) -> BridgeHost:
        """Return the same host with another writer."""
        ...


@runtime_checkable
class Bridge(Protocol):
    """Joins another system's queues to an App. It opens and closes with the App, and runs while a worker runs."""

    async def open(self, host: BridgeHost) -> None: ...

    async def run(self) -> None:
        """Move messages until cancelled."""
        ...

    async def close(self) -> None: ...
