"""What becomes of a job that comes from pg-boss."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ...ports.bridge import BridgeHost, Message


class StartFlow(msgspec.Struct, frozen=True):
    """Starts a run of a flow with the job's data; the run has the job's id."""

    flow: str

    async def take(self, hands: BridgeHost, message: Message) -> None:
        await hands.start(self.flow, message.data, message.id)


class EmitEvent(msgspec.Struct, frozen=True):
    """Tells everyone that something happened, with the job's data."""

    kind: str

    async def take(self, hands: BridgeHost, message: Message) -> None:
        await hands.emit(self.kind, message.data, f"pgboss/{message.id}")


class AddJob(msgspec.Struct, frozen=True):
    """Adds a job with the same data and id to a queue of ours."""

    queue: str
    name: str | None = None

    async def take(self, hands: BridgeHost, message: Message) -> None:
        await hands.enqueue(self.queue, self.name, message.data, message.id)


Handover = StartFlow | EmitEvent | AddJob
Handler = Callable[[Message], Awaitable[Any]]
Target = Handover | Handler | Callable[..., Any]


def resolve(target: Target, hands: BridgeHost) -> Handover | Handler:
    """A function marked with @flow starts it; others are called with the message. An unknown flow is said now."""
    if isinstance(target, StartFlow):
        hands.check_flow(target.flow)
    if isinstance(target, Handover) or (flow := hands.flow_of(target)) is None:
        return target
    return StartFlow(flow)
