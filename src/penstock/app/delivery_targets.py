"""What a delivered event can start or reach: a flow, a dag, a run, an entity, the receiver of alerts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..core.errors import DagInactive
from ..core.events import Event
from ..core.payload import pack
from ..flows.start_on import find_start, started_run_id

if TYPE_CHECKING:
    from .app import App


class DeliveryTargets:
    """What the deliveries of one App act on."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def start_flow(self, flow: str, run: str, event: Event) -> None:
        """Start a run of a flow or of a dag that starts on an event."""
        app = self._app
        if flow not in app.registry.flows and await app._dag_engine.load_definition(flow):
            try:
                await app._dag_engine.commands.start(flow, run, pack(event.data), correlation_id=event.correlation_id)
            except DagInactive:
                pass  # deactivated meanwhile
            return
        known = app.registry.flow(flow)
        if (start := await find_start(known, event)) is not None:
            commands, id = app._transactions.direct.commands, await started_run_id(known, start, run)
            await commands.start(
                known, id, start.input, correlation_id=event.correlation_id, cause=event.id, options=start.options
            )

    async def emit_to_run(self, run: str, kind: str, data: Any, key: str, tags: Sequence[str]) -> None:
        """Emit an event to one run."""
        await self._app._transactions.direct.emit_to_run(run, kind, data, key, tags)

    async def emit_to_entity(self, payload: dict[str, Any]) -> None:
        """Emit a delayed event to its entity."""
        from ..entities.commands import DelayedEvent

        one = msgspec.convert(payload, DelayedEvent)
        commands = self._app._entity_engine.commands
        await commands.emit_to(one.urn, one.event, one.payload, key=one.key, type=one.type)

    async def send_alert(self, payload: dict[str, Any]) -> None:
        """Send a notification to the alert webhook."""
        from .alert_webhook import send_alert

        await send_alert(self._app.settings.alert_webhook, payload)
