"""Starting runs: resolve the flow, validate the input, choose the id, command the start."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from ..commit.command_sink import CommandSink
from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.argument_checks import check_optional_text, check_tags
from ..core.ids import check_id, uuid7
from ..core.options import check_priority
from ..core.payload import pack, unpack
from ..core.trace_context import current_trace
from ..flows.run_commands import FlowCommands
from ..handlers.registry import Flow
from ..ports.script_files import Deferred
from ..ports.unit import Unit
from ..worker.child_runs import RunStart
from ..worker.engines import Engines, RunDefinition
from ..worker.routes import build_start_route
from .advice import Advice


class Started(NamedTuple):
    """The id of a run. With a key that was used before, nothing was started."""

    id: str
    existing: bool = False
    differs: bool = False  # the run of the key was started with another input


class RunStarter:
    """Starts runs through one sink: the store, or the caller's transaction."""

    def __init__(
        self, runtime: Runtime, commands: FlowCommands, engines: Engines, sink: CommandSink, advice: Advice
    ) -> None:
        self._runtime = runtime
        self._commands = commands
        self._engines = engines
        self._sink = sink
        self._advice = advice

    def resolve(self, flow: str | Callable[..., Any]) -> RunDefinition:
        """Return what a name, or a function marked with `@flow`, starts."""
        return self._engines.find_definition(self._runtime.registry(), flow)

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
    ) -> Started:
        """Start a run. A key that was used before starts nothing.

        The id is `key`, or else the key the flow declares, or else `default_key`, or else a UUIDv7. If the flow
        declares a function of another language, the id stands for the run until a worker has evaluated its key.
        """
        known = await self._engines.load_definition(self._runtime.registry(), flow)
        data = pack(input, f"the input of {known.kind} {known.name!r}")
        value = unpack(data)
        known.check_start(value)
        is_routed = False
        try:
            key = key if key is not None else known.make_key(value)
        except Deferred:
            is_routed = True
        run = self.new_id(key if key is not None else default_key)
        correlation = check_optional_text(correlation_id, "correlation_id") if correlation_id is not None else None
        priority = check_priority(priority) if priority else 0
        own = check_tags(tags, "tags") if tags is not None else {}
        if is_routed:
            with self._runtime.produce("start", known.name) as span:
                span.set("penstock.run", run)
                return await self._route(known.name, run, value, correlation, priority, due, own)
        if self._runtime.is_traced:
            with self._runtime.produce("start", known.name) as span:
                span.set("penstock.run", run)
                is_new = await self._command(known, run, data, value, correlation, priority, due, own)
        else:
            is_new = await self._command(known, run, data, value, correlation, priority, due, own)
        return Started(run) if is_new else await self.describe_start(known.kind, run, value, is_new=False)

    async def _route(
        self,
        flow: str,
        run: str,
        value: Any,
        correlation: str | None,
        priority: int,
        due: int,
        tags: dict[str, str],
    ) -> Started:
        """Leave the start to a worker that can evaluate the key. The id stands for the run of that key."""
        trace = current_trace.get()
        start = RunStart(flow, run, value, correlation or "", None, priority, due, tags, trace=trace)
        unit = Unit(self._runtime.new_unit_id(), jobs=[build_start_route(start)])
        await self._sink.submit(CommitRequest(lambda _v, _r: unit))
        return Started(run)

    async def describe_start(self, kind: str, run: str, input: Any, *, is_new: bool) -> Started:
        """Return what a start did: a run that is not new may have another input."""
        return Started(run) if is_new else Started(run, True, not await self._advice.check_same_input(kind, run, input))

    def _command(
        self,
        known: RunDefinition,
        run: str,
        data: bytes,
        value: Any,
        correlation: str | None,
        priority: int,
        due: int,
        tags: dict[str, str],
    ) -> Coroutine[Any, Any, bool]:
        if isinstance(known, Flow):
            return self._commands.start(
                known, run, data, correlation_id=correlation, priority=priority, due=due, tags=tags
            )
        trace = current_trace.get()
        start = RunStart(
            known.name, run, value, correlation or run, None, priority, due, tags, kind=known.kind, trace=trace
        )
        return self._engines.of_run_kind(known.kind).start(start, self._sink)

    def new_id(self, key: str | None) -> str:
        """Return the id of a new run: its idempotency key, or a UUIDv7."""
        return check_id(key, "idempotency key") if key is not None else uuid7(self._runtime.clock.now_ms())
