"""What a job of a pg-boss queue does here: start a run, emit an event or enqueue a job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ...ports.bridge import BridgeHost, Message


class StartFlow(msgspec.Struct, frozen=True):
    """Starts a run of a flow with the job's data as input. The run has the job's id, or the key that the flow
    declares."""

    flow: str

    async def deliver(self, host: BridgeHost, message: Message) -> None:
        await host.start(self.flow, message.data, message.id)


class EmitEvent(msgspec.Struct, frozen=True):
    """Emits a global event with the job's data."""

    kind: str

    async def deliver(self, host: BridgeHost, message: Message) -> None:
        await host.emit(self.kind, message.data, f"pgboss/{message.id}")


class AddJob(msgspec.Struct, frozen=True):
    """Enqueues a job with the same data and id, or with the key that its handler declares."""

    queue: str
    name: str | None = None

    async def deliver(self, host: BridgeHost, message: Message) -> None:
        await host.enqueue(self.queue, self.name, message.data, message.id)


CommandTarget = StartFlow | EmitEvent | AddJob
MessageHandler = Callable[[Message], Awaitable[Any]]
Target = CommandTarget | MessageHandler | Callable[..., Any]


def resolve_target(target: Target, host: BridgeHost) -> CommandTarget | MessageHandler:
    """Return the target itself, or StartFlow for a function with @flow. Raise UnknownFlow for an unknown flow."""
    if isinstance(target, StartFlow):
        host.check_flow(target.flow)
    if isinstance(target, CommandTarget) or (flow := host.flow_of(target)) is None:
        return target
    return StartFlow(flow)
