"""Starting runs: resolve the flow, validate the input, choose the id, command the start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..commit.runtime import Runtime
from ..core.arguments import check_optional_text, check_tags
from ..core.ids import check_id, uuid7
from ..core.options import check_priority
from ..core.payload import pack, unpack
from ..flows.run_commands import FlowCommands
from ..handlers.registry import Flow, find_flow
from .advice import Advice


class RunStarter:
    """Starts runs through one sink: the store, or the caller's transaction."""

    def __init__(self, runtime: Runtime, commands: FlowCommands, advice: Advice) -> None:
        self._runtime = runtime
        self._commands = commands
        self._advice = advice

    def resolve(self, flow: str | Callable[..., Any]) -> Flow:
        """Return the flow of a name, or of a function marked with `@flow`."""
        return find_flow(self._runtime.registry(), flow)

    async def start(
        self,
        flow: str | Callable[..., Any],
        input: Any,
        *,
        key: str | None = None,
        default_key: str | None = None,
        correlation_id: str | None = None,
        priority: int | None = None,
        due: int = 0,
        tags: Mapping[str, str] | None = None,
    ) -> tuple[str, bool]:
        """Start a run. Return its id, and whether it is new: a key that was used before starts nothing.

        The id is `key`, or else the key the flow declares, or else `default_key`, or else a UUIDv7.
        """
        known = self.resolve(flow)
        data = pack(input, f"the input of flow {known.name!r}")
        entry = known.definition.entry.handler
        value = unpack(data)
        entry.check_start(value, f"flow {known.name!r}")
        key = key if key is not None else entry.make_key(value, known.name)
        run = self.new_id(key if key is not None else default_key)
        is_new = await self._commands.start(
            known,
            run,
            data,
            correlation_id=check_optional_text(correlation_id, "the correlation id"),
            priority=check_priority(priority) if priority else 0,
            due=due,
            tags=check_tags(tags, "tags"),
        )
        if not is_new:
            await self._advice.warn_about_other_input(run, value)
        return run, is_new

    def new_id(self, key: str | None) -> str:
        """Return the id of a new run: its idempotency key, or a UUIDv7."""
        return check_id(key, "idempotency key") if key is not None else uuid7(self._runtime.clock.now_ms())
