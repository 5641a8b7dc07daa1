"""The dag engine: opens claims of nodes and turns the outcomes of attempts into units."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from ..commit.command_sink import CommandSink, DirectSink
from ..commit.runtime import Runtime
from ..core.errors import PenstockError, SchemaViolation, UnknownDag, UnknownNodeType, UnreadableRecord
from ..core.events import Event
from ..core.ids import BadId, check_id, is_route, step_job_id
from ..core.payload import DECODE_ERRORS, pack, unpack
from ..core.stored import read_stored
from ..core.text import shorten
from ..flows.reducer import RunView, finish_view
from ..flows.run_record import COMPLETED, RUNNING
from ..handlers.nodes import NodeHandler
from ..jobs.engine import missing_handler
from ..ports.runner import Gate, Runner
from ..ports.store import JobRow, RunRow
from ..ports.unit import DAG, ROUTE_STEP, Claim, NewJob
from ..worker.child_runs import RunStart
from ..worker.engines import PreflightProblem, RecordSummary, RunOutcome
from ..worker.outcomes import Launcher
from ..worker.unreadable import mark_options
from . import run_record as records
from .breakers import BreakerGate, Breakers
from .built_in import BUILT_IN, HTTP, MAP, SUB_WORKFLOW, find_inner_type, is_collecting, make_collecting, make_http
from .catalog import Catalog, head_key, version_key
from .decide import Decider
from .definition import Dag, Node
from .expressions import Template
from .http_node import AddressGuard, find_http_breaker
from .node_rates import Gates, NodeRateGate
from .node_work import NodeWork, UnreadableRunWork
from .plan import Plan
from .reducer import apply_dag, reduce_dag
from .routed_nodes import NodeRouteWork
from .run_record import DagRecord, list_bits
from .units import (
    NodeOptions,
    UnitBuilder,
    data_prefix,
    decode_options,
    input_key,
    restore_job,
    results_prefix,
    run_keys,
)

if TYPE_CHECKING:
    from .run_commands import DagCommands

PAGE = 500


class DagDefinition(msgspec.Struct, frozen=True):
    """What runs of a dag are started from."""

    name: str
    kind: str = DAG

    def check_start(self, value: Any) -> None:
        """Accept any input: the first nodes check their own."""

    def make_key(self, value: Any) -> str | None:  # noqa: ARG002
        return None


class DagEngine:
    """Runs dags. Definitions come from the catalog, executors from the registry."""

    kind = DAG
    view_type = RunView

    def __init__(self, runtime: Runtime, launcher: Launcher | None = None, http_allow: Sequence[str] = ()) -> None:
        self._http = make_http(AddressGuard(http_allow))
        self.runtime = runtime
        self.launcher = launcher
        self.catalog = Catalog(runtime)
        self.breakers = Breakers(runtime)
        self.replaced: dict[str, NodeHandler] = {}  # executors of tests, by type
        self.bodies = runtime.bodies
        self.clock = runtime.clock
        self.new_unit_id = runtime.new_unit_id
        self.public_url = runtime.public_url

    # Work

    async def open(self, claim: Claim) -> NodeWork:
        assert claim.run is not None
        assert claim.record is not None
        try:
            record = records.decode(claim.record, claim.run)
            plan = await self.catalog.plan(record.dag, record.version)
        except (UnreadableRecord, UnknownDag) as problem:
            return UnreadableRunWork(self, claim, problem)
        if claim.name == ROUTE_STEP and is_route(claim.job):
            return NodeRouteWork(self, claim, record, plan)
        try:
            options = decode_options(claim.opts)
        except DECODE_ERRORS as problem:
            claim, options = mark_options(claim, problem), NodeOptions(claim.name)
        n = plan.index.get(options.node)
        if n is None:
            return UnreadableRunWork(self, claim, _unknown_node(record, options.node))
        claim, handler = await self._bind(claim, plan, n, options.whole)
        return NodeWork(self, claim, record, plan, n, handler, options.n, options.trace)

    async def _bind(self, claim: Claim, plan: Plan, n: int, is_whole: bool) -> tuple[Claim, Any]:
        """Return the claim with its whole input, and its executor with the rendered config."""
        node = plan.nodes[n]
        executor, inner = self._executor_of(node), find_inner_type(node)
        if executor is None or (inner is not None and not is_collecting(executor)):
            return claim, missing_handler(node.id, claim.queue, self._unknown_type(inner or node.type))
        assert claim.run is not None
        try:
            data, input = await self._read_data(claim, plan, n) if plan.needs_data(n, is_whole) else ({}, None)
            if plan.limit is not None:
                claim = _fetch_input(claim, plan, n, data, input)
            claim, own = _complete_input(claim, plan, n, data)
            known = {**data, **own}
            config = self._render(claim, plan, n, known, input)
            if node.type in (SUB_WORKFLOW, MAP) and isinstance(config, dict):
                await self.load_definition(config.get("workflowId"))  # `ctx.call` knows what is loaded
            followers = [plan.nodes[child].id for child in plan.children[n]]
            skipped = [plan.nodes[parent].id for parent in plan.parents[n] if plan.nodes[parent].id not in known]
            bound = executor.bind(config, followers, node.retry, node.timeout_ms, skipped)
            return claim, bound.with_gate(self._gate(claim, plan, node, bound))
        except PenstockError as problem:
            return claim, _failing(node, claim.queue, problem)

    def _gate(self, claim: Claim, plan: Plan, node: Node, executor: NodeHandler) -> Gate | None:
        """Return what decides whether the executor may be called now: its breaker, and the node's rate limit."""
        gates: list[Gate] = []
        if node.rate_limit is not None:
            gates.append(NodeRateGate(self.runtime, plan.dag.id, node.id, node.rate_limit))
        config = executor.binding.config if executor.binding is not None else None
        options = find_http_breaker(config) if node.type == HTTP else executor.breaker
        if options is not None:
            key = options.make_key(unpack(claim.payload), config)
            gates.append(BreakerGate(self.breakers, node.type, key, options, claim.job, executor.timeout_ms))
        return (gates[0] if len(gates) == 1 else Gates(gates)) if gates else None

    async def _read_data(self, claim: Claim, plan: Plan, n: int) -> tuple[dict[str, Any], Any]:
        """Return what earlier nodes left for this one, by node, and the run's input if the config reads it."""
        run = claim.run or ""
        prefix = data_prefix(run, plan.nodes[n].id)
        found = {id: msgspec.Raw(value) async for id, value in self._read_state(prefix)}
        is_entry_of_limited = plan.limit is not None and not plan.parents[n]
        is_read = plan.templates[n].reads_input or is_entry_of_limited
        input = await self.runtime.store.state(input_key(run)) if is_read else None
        return found, unpack(input.value) if input is not None else None

    def _render(self, claim: Claim, plan: Plan, n: int, data: Mapping[str, Any], input: Any) -> Any:
        template = plan.templates[n]
        if template.is_constant:
            return plan.nodes[n].config
        nodes = {
            id: {"data": unpack(bytes(data[id])) if id in data else None, "skipped": id not in data}
            for id in template.nodes
        }
        try:
            return template.render({"input": input, "nodes": nodes, "run": {"id": claim.run}})
        except PenstockError as problem:
            raise type(problem)(f"the config of node {plan.nodes[n].id!r}: {problem}") from None

    def executor(self, type: str) -> NodeHandler | None:
        """Return the executor of a type: that of the loaded code, or a built-in one."""
        if type in self.replaced:
            return self.replaced[type]
        found = self.runtime.registry().nodes.get(type)
        if found is not None:
            return found.handler
        return self._http if type == HTTP else BUILT_IN.get(type)

    def is_built_in(self, executor: NodeHandler) -> bool:
        """Return whether an executor is one of ours."""
        return executor is self._http or executor is BUILT_IN.get(executor.name)

    def _executor_of(self, node: Node) -> NodeHandler | None:
        """Return the executor of a node: of a `map` or `batch` node with `executor`, with the one it calls."""
        executor, inner = self.executor(node.type), find_inner_type(node)
        called = self.executor(inner) if inner is not None else None
        return make_collecting(executor, called) if executor is not None and called is not None else executor

    def _unknown_type(self, type: str) -> UnknownNodeType:
        return UnknownNodeType(
            f"no executor for nodes of type {type!r} here; add its file with @node({type!r}), or run a worker that "
            "has it"
        )

    # Definitions

    def find_definition(self, target: Any) -> DagDefinition | None:
        """Return the dag of a name that this process knows, or of a definition; None for anything else."""
        id = target.id if isinstance(target, Dag) else target
        return DagDefinition(id) if isinstance(id, str) and id in self.catalog.known else None

    @property
    def names(self) -> Collection[str]:
        return self.catalog.known.keys()

    async def load_definition(self, target: Any) -> bool:
        """Look for a dag in the store, so that `find_definition` knows it. Return whether there is one."""
        if not isinstance(target, str):
            return False
        try:
            return await self.catalog.find(target) is not None
        except BadId:
            return False

    async def start(self, start: RunStart, sink: CommandSink) -> bool:
        """Start a run with the newest version of a dag. Raise if the dag is not active."""
        from .run_commands import DagCommands  # it builds on this module

        commands = self.commands if isinstance(sink, DirectSink) else DagCommands(self, sink)
        return await commands.start(
            start.flow,
            check_id(start.run, "run id"),
            pack(start.input, f"the input of dag {start.flow!r}"),
            correlation_id=start.correlation_id,
            priority=start.priority,
            due=start.due,
            tags=start.tags,
            parent=start.parent,
            link=start.link,
        )

    @cached_property
    def commands(self) -> DagCommands:
        """Commands that write straight to the store."""
        from .run_commands import DagCommands  # it builds on this module

        return DagCommands(self, DirectSink(self.runtime.committer))

    def decider(self, run: str, record: DagRecord, plan: Plan) -> Decider:
        return Decider(run, record, plan, self.clock.now_ms())

    def unit_builder(self, run: str, plan: Plan) -> UnitBuilder:
        shows_status = self.runtime.store.profile.shows_status
        return UnitBuilder(run, plan, self._executor_of, self.bodies, self.clock.now_ms(), shows_status)

    # What the facets of App ask

    def view(self, events: Sequence[Event]) -> RunView:
        """Fold the events of a run."""
        view = reduce_dag(events)
        finish_view(view)
        return view

    def apply_event(self, view: RunView, event: Event) -> None:
        """Apply one more event to a view."""
        apply_dag(view, event)

    def finish_view(self, view: RunView) -> None:
        """Add the status that people see, counts, and the first wait."""
        finish_view(view)

    def result(self, record: bytes) -> bytes | None:
        """Return the result of a completed run as JSON; None if the record does not have it: see `load_result`."""
        hint = "start a new run of the dag"
        return read_stored(lambda data: records.decode(data).result(), record, "the result of the run", hint)

    async def load_result(self, row: RunRow) -> bytes | None:
        """Return the result of a completed run as JSON, from its record or from its state."""
        if (found := self.result(row.record)) is not None:
            return found
        rows = {id: msgspec.Raw(value) async for id, value in self._read_state(results_prefix(row.id))}
        return msgspec.json.encode(rows) if len(rows) == records.decode(row.record).stored_results else None

    async def _read_state(self, prefix: str) -> AsyncIterator[tuple[str, bytes]]:
        """Yield the keys under a prefix, without it, and their values."""
        after = None
        while rows := await self.runtime.store.states(prefix, after=after, limit=PAGE):
            for row in rows:
                yield row.key.removeprefix(prefix), row.value
            after = rows[-1].key
            if len(rows) < PAGE:
                return

    def outcome(self, record: bytes) -> RunOutcome:
        """Return how a closed run ended, for the run that called it."""
        known = records.decode(record)
        if known.status == COMPLETED:
            return RunOutcome(known.result())
        first = known.failures[0] if known.failures else None
        error = first.error if first is not None else known.cancel_reason or ""
        return RunOutcome(None, error, first.code if first is not None else None)

    async def load_record(self, record: bytes) -> None:
        """Load the version of a run. Without it, `job_ids` knows no job."""
        known = records.decode(record)
        try:
            await self.catalog.plan(known.dag, known.version)
        except UnknownDag:
            pass  # the events know most of the jobs

    def job_ids(self, run: str, record: bytes) -> list[str]:
        """Return the ids of the jobs of every node that was started; none if `load_record` was not called."""
        known = records.decode(record, run)
        plan = self.catalog.find_plan(known.dag, known.version)
        if plan is None:
            return []
        return [
            step_job_id(run, plan.nodes[node].id, n)
            for node in list_bits(known.started)
            for n in range(1, known.job_number(node) + 1)
        ]

    async def check(self, claim: Claim, runner: Runner) -> list[PreflightProblem]:  # noqa: ARG002
        """Return why the loaded code cannot continue a node: it has no executor, or the config does not fit it."""
        assert claim.run is not None
        assert claim.record is not None
        record, options = records.decode(claim.record, claim.run), decode_options(claim.opts)
        try:
            plan = await self.catalog.plan(record.dag, record.version)
            if options.node not in plan.index:
                raise _unknown_node(record, options.node)
        except (UnreadableRecord, UnknownDag) as problem:
            return [PreflightProblem(claim.run, record.dag, options.node, options.n, problem.code, str(problem))]
        node = plan.nodes[plan.index[options.node]]
        executor = self.executor(node.type)
        if executor is None:
            missing = self._unknown_type(node.type)
            return [PreflightProblem(claim.run, record.dag, node.id, options.n, missing.code, str(missing))]
        return [
            PreflightProblem(claim.run, record.dag, node.id, options.n, SchemaViolation.code, problem)
            for problem in self.check_config(executor, node, f"the config of node {node.id!r}")
        ]

    def check_config(self, executor: NodeHandler, node: Node, path: str) -> list[str]:
        """Return why a config does not fit its executor. One with expressions is known only when it is rendered."""
        if not Template(node.config).is_constant:
            return []
        try:
            executor.check_config(node.config)
        except SchemaViolation as problem:
            return [f"{path}: {problem}"]
        return []

    def instance(self, job: JobRow) -> tuple[str, int]:
        """Return the node of a job, and which of its jobs it is."""
        try:
            options = decode_options(job.opts)
        except DECODE_ERRORS:
            return job.name, 1
        return options.node, options.n

    def read_record(self, record: bytes) -> RecordSummary:
        """Return what lists show of a run, and the state key of its version of the dag."""
        known = records.decode(record)
        fixed = (version_key(known.dag, known.version),)
        keys, status = (head_key(known.dag), *fixed), known.display_status
        return RecordSummary(
            known.paused, keys, known.dag, status, known.closed, known.open_count, known.parent, fixed_keys=fixed
        )

    def index_keys(self, run: str, record: bytes) -> tuple[str, ...]:
        """Return the keys that a run is found by."""
        return run_keys(run, records.decode(record, run))

    def check_record(self, record: bytes) -> None:
        """Raise if this engine cannot have written a run record."""
        known = records.decode(record)
        if known.status not in {RUNNING, *records.CLOSED} or known.open_count != len(list_bits(known.open)):
            raise UnreadableRecord("the record of the run is not one of a dag: its status or its open nodes are wrong")

    def restore_job(self, run: str, record: bytes, job: NewJob) -> NewJob:
        """Return an exported job of a node with the `node.started` event that its claim appends."""
        return restore_job(self.bodies, run, records.decode(record, run), job)

    def explain(self, record: bytes) -> list[str]:
        """Return a sentence for the nodes that have some of their inputs, or why the dag cannot be read."""
        known = records.decode(record)
        plan = self.catalog.find_plan(known.dag, known.version)
        if plan is None:
            return [f"version {known.version} of dag {known.dag!r} cannot be read; restore it, or cancel the run"]
        return [
            f"node {plan.nodes[node].id!r} waits for {join.missing} of its {len(plan.parents[node])} inputs"
            for node, join in known.joins.items()
        ]


def _complete_input(claim: Claim, plan: Plan, n: int, data: Mapping[str, Any]) -> tuple[Claim, dict[str, Any]]:
    """Return the claim with the input of a join, `{parent: data}`, null for a skipped parent; and the data by node of
    what its job brings."""
    parents = [plan.nodes[parent].id for parent in plan.parents[n]]
    if claim.unreadable is not None or not parents:
        return claim, {}
    if len(parents) == 1:
        return claim, {parents[0]: msgspec.Raw(claim.payload)}
    last: dict[str, msgspec.Raw] = msgspec.json.decode(claim.payload, type=dict[str, msgspec.Raw])
    merged = {id: last.get(id, data.get(id)) for id in parents}
    return msgspec.structs.replace(claim, payload=msgspec.json.encode(merged)), last


def _fetch_input(claim: Claim, plan: Plan, n: int, data: Mapping[str, Any], input: Any) -> Claim:
    """Return the claim with its input: in a dag with `maxConcurrency` the job does not have it."""
    parents = [plan.nodes[parent].id for parent in plan.parents[n]]
    if len(parents) > 1:
        return msgspec.structs.replace(claim, payload=b"{}")
    payload = bytes(data[parents[0]]) if parents else msgspec.json.encode(input)
    return msgspec.structs.replace(claim, payload=payload)


def _unknown_node(record: DagRecord, node: str) -> UnreadableRecord:
    return UnreadableRecord(
        f"version {record.version} of dag {record.dag!r} has no node {shorten(node)}; cancel the run and start it again"
    )


def _failing(node: Node, queue: str, problem: PenstockError) -> NodeHandler:
    """Return an executor that fails at once with the problem: the node's input or config cannot be made."""

    async def fail() -> None:
        raise problem

    return NodeHandler(name=node.type, fn=fail, queue=queue, dead_letters=False)
