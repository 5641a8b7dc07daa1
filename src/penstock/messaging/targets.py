"""What a message does here: start a run, emit an event, emit to an entity, enqueue a job, or call a function."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from ..core.errors import BadArgument, BadMessage, ConfigError, StoreUnavailable, UnknownMessage
from ..core.near_match import did_you_mean
from ..core.text import shorten
from ..ports.bridge import BridgeHost, Message

log = logging.getLogger("penstock.messaging")
ANY_NAME = "*"
OUTAGE_WAIT_S = 0.5


class StartFlow(msgspec.Struct, frozen=True):
    """Starts a run of a flow with the message's data as input. The run has the message's key as its id, or the key that
    the flow declares."""

    flow: str

    async def deliver(self, host: BridgeHost, message: Message) -> None:
        await host.start(self.flow, message.data, message.effect_key)


class EmitEvent(msgspec.Struct, frozen=True):
    """Emits a global event with the message's data."""

    kind: str

    async def deliver(self, host: BridgeHost, message: Message) -> None:
        await host.emit(self.kind, message.data, f"message/{message.effect_key}")


class AddJob(msgspec.Struct, frozen=True):
    """Enqueues a job with the same data. Its id is the message's key, or the key that its handler declares."""

    queue: str
    name: str | None = None

    async def deliver(self, host: BridgeHost, message: Message) -> None:
        await host.enqueue(self.queue, self.name, message.data, message.effect_key)


class EmitToEntity(msgspec.Struct, frozen=True):
    """Emits an event to the entity that the message names: its data is `{"urn": …, "payload": …}`.

    `type` is needed if the urn's prefix does not name the type of a new entity.
    """

    event: str
    type: str | None = None

    async def deliver(self, host: BridgeHost, message: Message) -> None:
        urn, payload = read_entity_data(message)
        await host.emit_to_entity(urn, self.event, payload, f"message/{message.effect_key}", self.type)


CommandTarget = StartFlow | EmitEvent | AddJob | EmitToEntity
MessageHandler = Callable[[Message], Awaitable[Any]]
Target = CommandTarget | MessageHandler | Callable[..., Any]
Targets = Target | Mapping[str, Target]
"""One target for all messages of a queue, or one for each name of a message; `"*"` takes the other names."""


async def deliver_when_up(target: CommandTarget, host: BridgeHost, message: Message) -> None:
    """Deliver a message. While our own store is away the message waits: that uses up no attempt."""
    while True:
        try:
            await target.deliver(host, message)
        except StoreUnavailable as problem:
            log.warning("the store does not answer, message %s of %r waits: %s", message.id, message.queue, problem)
            await asyncio.sleep(OUTAGE_WAIT_S)
        else:
            return


class Routes(msgspec.Struct, frozen=True):
    """The targets of a queue by the name of a message. Each message has exactly one."""

    queue: str
    by_name: Mapping[str, CommandTarget | MessageHandler]

    def find(self, message: Message) -> CommandTarget | MessageHandler:
        """Return the target of a message, or raise UnknownMessage."""
        found = self.by_name.get(message.name, self.by_name.get(ANY_NAME))
        if found is None:
            known = f"known names: {', '.join(sorted(self.by_name))}"
            raise UnknownMessage(
                f"no target takes messages named {shorten(message.name)} of queue {self.queue!r}; "
                f"{did_you_mean(message.name, self.by_name) or known}, or add a target for '*'"
            )
        return found


def resolve_routes(queue: str, targets: Targets, host: BridgeHost | None) -> Routes:
    """Return the routes of a queue. Raise UnknownFlow for an unknown flow, ConfigError for an invalid target."""
    by_name = targets if isinstance(targets, Mapping) else {ANY_NAME: targets}
    if not by_name:
        raise BadArgument(f"consume[{queue!r}] must have a target for at least one name, got {{}}")
    return Routes(queue, {name: resolve_target(one, host) for name, one in by_name.items()})


def resolve_target(target: Target, host: BridgeHost | None) -> CommandTarget | MessageHandler:
    """Return the target itself, or StartFlow for a function with @flow. Raise UnknownFlow for an unknown flow."""
    if isinstance(target, CommandTarget) and host is None:
        raise ConfigError(f"{target!r} needs an App; pass the bridge to an App as bridges=[…], or consume a function")
    if isinstance(target, StartFlow) and host is not None:
        host.check_flow(target.flow)
    if isinstance(target, CommandTarget):
        return target
    given: Any = target
    if not callable(given):
        known = "StartFlow, EmitEvent, AddJob, EmitToEntity or a function"
        raise ConfigError(f"a target must be {known}, got {shorten(target)}")
    flow = host.flow_of(target) if host is not None else None
    return target if flow is None else StartFlow(flow)


def read_entity_data(message: Message) -> tuple[str, Any]:
    """Return the urn and the payload of a message, or raise BadMessage."""
    data = message.data
    urn = data.get("urn") if isinstance(data, Mapping) else None
    if not isinstance(urn, str) or not urn:
        raise BadMessage(
            f'message {message.id!r} of queue {message.queue!r} must be {{"urn": "…", "payload": …}}, '
            f"got {shorten(data)}"
        )
    return urn, data.get("payload")


def check_entity_data(data: Any, queue: str) -> dict[str, Any]:
    """Return the data that `produce` sends, or raise BadArgument."""
    if not isinstance(data, Mapping) or not isinstance(data.get("urn"), str) or not data["urn"]:
        raise BadArgument(f'a message for {queue!r} must be {{"urn": "…", "payload": …}}, got {shorten(data)}')
    if unknown := sorted(set(data) - {"urn", "payload"}):
        raise BadArgument(f"a message for {queue!r} has the unknown field {unknown[0]!r}; use urn and payload")
    return dict(data)
