"""Bridges to other systems' queues, run beside a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ..commit.command_sink import BridgeSink
from ..core.errors import ConfigError, PenstockError
from ..core.outage_retry import open_with_retry
from ..handlers.decorators import FlowDefinition, read_definitions
from ..handlers.entities import EntityDefinition
from ..messaging.definition import list_places, read_messaging
from ..messaging.targets import EmitToEntity
from ..ports.bridge import Bridge, BridgeHost, CheckedBridge, WriteUnits
from ..ports.store import Store
from .workers import start_service

if TYPE_CHECKING:
    from .app import App

BRIDGE_CONNECT_TIMEOUT = "30s"  # when a worker starts


CHECK_TIMEOUT_S = 2.0


class BridgeView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A bridge of this App, and whether its system answers."""

    name: str
    up: bool
    problem: str | None = None


async def check_bridges(bridges: Sequence[Bridge]) -> Sequence[BridgeView]:
    """Ask every bridge whether its system answers. One that cannot be asked counts as up."""
    return [await _check_bridge(bridge, type(bridge).__name__) for bridge in bridges]


async def _check_bridge(bridge: Bridge, name: str) -> BridgeView:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            if isinstance(bridge, CheckedBridge):
                await bridge.check()
    except (PenstockError, OSError) as problem:  # a timeout is an OSError
        return BridgeView(name, False, type(problem).__name__)
    return BridgeView(name, True)


def make_entity_bridges(entities: Iterable[EntityDefinition]) -> list[Bridge]:
    """Return the bridges of entities. Raise ConfigError for an invalid one, or for a queue that two of them consume."""
    found: list[Bridge] = []
    owners: dict[tuple[str, str], str] = {}
    for one in entities:
        if one.messaging is None:
            continue
        targets = {event: EmitToEntity(event, one.name) for event in one.machine.events}
        try:
            bridges = read_messaging(one.messaging, targets)
        except ConfigError as problem:
            raise ConfigError(f"entity {one.name!r}: {problem}") from None
        for place in list_places(one.messaging):
            other = owners.setdefault(place, one.name)
            if other != one.name:
                raise ConfigError(
                    f"queue {place[1]!r} has events of the entities {other!r} and {one.name!r}: each would fail the "
                    "messages of the other; declare both in one `bridges = read_messaging(…)`"
                )
        found += bridges
    return found


@asynccontextmanager
async def run_bridges(app: App, bridges: Sequence[Bridge]) -> AsyncIterator[None]:
    """Open the bridges that worker files and entities declare, and move their messages while a worker runs."""
    async with AsyncExitStack() as stack:
        for bridge in bridges:
            await open_with_retry(
                "the bridge is not open yet", partial(bridge.open, AppBridgeHost(app)), BRIDGE_CONNECT_TIMEOUT
            )
            stack.push_async_callback(bridge.close)
        tasks = [start_service(bridge.run, "penstock-bridge") for bridge in bridges]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class AppBridgeHost:
    """The App as a bridge sees it."""

    def __init__(self, app: App, write: WriteUnits | None = None) -> None:
        self._app = app
        transactions = app._transactions
        self._writers = transactions.direct if write is None else transactions.writers_to(BridgeSink(write))

    @property
    def store(self) -> Store:
        return self._app.store

    def with_writer(self, write: WriteUnits) -> BridgeHost:
        return AppBridgeHost(self._app, write)

    def flow_of(self, target: Callable[..., Any]) -> str | None:
        found = (one.name for one in read_definitions(target) if isinstance(one, FlowDefinition))
        return next(found, None)

    def check_flow(self, name: str) -> None:
        self._app.registry.flow(name)

    def serves(self, queue: str) -> bool:
        return queue in self._app.registry.queues()

    async def start(self, flow: str, input: Any, key: str) -> None:
        await self._writers.runs.start(flow, input, default_key=key)

    async def emit(self, kind: str, data: Any, key: str) -> None:
        await self._writers.emit(kind, data, None, key)

    async def emit_to_entity(self, urn: str, event: str, payload: Any, key: str, type: str | None = None) -> None:
        await self._writers.entities.emit_to(urn, event, payload, key=key, type=type)

    async def enqueue(self, queue: str, name: str | None, payload: Any, key: str) -> None:
        await self._writers.jobs.enqueue(queue, [payload], name=name, default_key=key)

    async def load_value(self, key: str) -> Any:
        return await self._app.state.get(key)

    async def save_value(self, key: str, value: Any) -> None:
        await self._app.state.set(key, value)
