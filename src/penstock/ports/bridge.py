"""The port between an App and a bridge to the queues of another system."""

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
    name: str = ""  # of the job; Kafka has it as the header `name`
    key: str = ""  # names the effect of the message once and for all; default: its id

    @property
    def effect_key(self) -> str:
        """Return the idempotency key of what the message does."""
        return self.key or self.id


class BridgeHost(Protocol):
    """The App as a bridge sees it. A key takes effect once, so a bridge may deliver a message again."""

    @property
    def store(self) -> Store: ...

    def flow_of(self, target: Callable[..., Any]) -> str | None:
        """Return the name of the flow that a function starts, None for a plain function."""
        ...

    def check_flow(self, name: str) -> None:
        """Raise UnknownFlow for an unknown flow."""
        ...

    async def start(self, flow: str, input: Any, key: str) -> None:
        """Start a run once for a key. A key that the flow declares takes the place of this one."""
        ...

    async def emit(self, kind: str, data: Any, key: str) -> None: ...

    async def emit_to_entity(self, urn: str, event: str, payload: Any, key: str, type: str | None = None) -> None:
        """Emit an event to an entity once for a key. A urn without an entity gets a new one, of the type that the urn's
        prefix or `type` names."""
        ...

    async def enqueue(self, queue: str, name: str | None, payload: Any, key: str) -> None:
        """Enqueue a job once for a key. A key that its handler declares takes the place of this one."""
        ...

    def serves(self, queue: str) -> bool:
        """Return whether a handler of the App takes the jobs of a queue."""
        ...

    async def load_value(self, key: str) -> Any:
        """Return the value saved under a key, None if there is none."""
        ...

    async def save_value(self, key: str, value: Any) -> None: ...

    def with_writer(self, write: WriteUnits) -> BridgeHost:
        """Return a host that writes through `write`."""
        ...


@runtime_checkable
class Bridge(Protocol):
    """Connects the queues of another system with an App. It opens and closes with the App, and runs with a worker."""

    async def open(self, host: BridgeHost) -> None: ...

    async def run(self) -> None:
        """Move messages until cancelled."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class CheckedBridge(Protocol):
    """A bridge that can say whether its system answers."""

    async def check(self) -> None:
        """Raise a PenstockError or an OSError if the other system does not answer."""
        ...
