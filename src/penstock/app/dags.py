"""`app.dags`: definitions of dags in the store, and their runs."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ..core.argument_checks import check_arguments, check_count, check_optional_text, check_tags, resolve_due
from ..core.durations import Duration
from ..core.errors import DagInvalid, UnknownDag
from ..core.ids import check_id, uuid7
from ..core.near_match import did_you_mean
from ..core.options import check_priority
from ..core.payload import pack, unpack
from ..dags.breakers import BreakerState
from ..dags.built_in import BUILT_IN, find_inner_type
from ..dags.catalog import DagSummary
from ..dags.config_checks import find_config_problems, find_unknown_targets
from ..dags.definition import Dag, read_dag
from ..dags.diagram import describe_dag_diagram
from ..dags.run_record import decode as decode_record
from ..dags.warnings import DagWarning, find_warnings
from ..handlers.nodes import NodeHandler
from ..ports.unit import DAG
from .dag_files import read_dag_files
from .dag_triggers import DagTriggers
from .run_handle import Run

if TYPE_CHECKING:
    from .app import App


class DagComparison(msgspec.Struct, frozen=True, omit_defaults=True):
    """What has changed from one version of a dag to another.

    Attributes:
        added: Ids of nodes that only the second one has.
        removed: Ids of nodes that only the first one has.
        changed: Ids of nodes that both have, with the names of the fields that differ.
        fields: Names of the fields of the dag itself that differ, such as `priority`.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: dict[str, tuple[str, ...]] = {}
    fields: tuple[str, ...] = ()


@check_arguments
class Dags:
    """Definitions of dags. Each is stored with its versions, so that workers without the file run it."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._engine = app._dag_engine
        self._catalog = app._dag_engine.catalog
        self._triggers = DagTriggers(app)

    async def register(self, dag: Dag | Mapping[str, Any] | str | bytes, *, notes: str = "") -> DagSummary:
        """Check a definition and store it as the next version. The same definition again stores nothing.

        Raise DagInvalid with every mistake: unknown fields and nodes, a cycle, a type without an executor, a config
        that does not fit its executor.

        Args:
            dag: What `DagBuilder.build()` returns, a mapping, or JSON text.
            notes: What has changed, for people.
        """
        found = read_dag(dag)
        queues = self._check_types(found)
        await self._triggers.check(found)
        summary = await self._catalog.register(found, queues, notes)
        await self._triggers.store(summary, found)
        return summary

    def check(self, dag: Dag | Mapping[str, Any] | str | bytes) -> list[DagWarning]:
        """Check a definition without storing it, and return its warnings. Raise DagInvalid with every mistake.

        Args:
            dag: What `DagBuilder.build()` returns, a mapping, or JSON text.
        """
        found = read_dag(dag)
        self._check_types(found)
        return [*find_warnings(found), *self._find_unknown_targets(found)]

    async def get(self, id: str, *, version: int | None = None) -> Dag:
        """Return a definition. Raise UnknownDag if it is not registered.

        Args:
            id: The dag's id.
            version: Which version. Default: the newest.
        """
        return await self._version(id, version)

    async def describe(self, id: str) -> DagSummary:
        """Return a dag's title, whether it is active, and its versions. Raise UnknownDag if it is not registered.

        Args:
            id: The dag's id.
        """
        return await self._catalog.get(id)

    async def list(self) -> list[DagSummary]:
        """Return all dags, by id."""
        return await self._catalog.list()

    async def compare(self, id: str, old: int, new: int) -> DagComparison:
        """Return what has changed from one version to another.

        Args:
            id: The dag's id.
            old: The first version.
            new: The second version.
        """
        first = await self._version(id, check_count(old, "old"))
        second = await self._version(id, check_count(new, "new"))
        before = {node.id: node for node in first.nodes}
        after = {node.id: node for node in second.nodes}
        changed = {id: names for id in after if id in before and (names := _changed_fields(before[id], after[id]))}
        return DagComparison(
            tuple(id for id in after if id not in before),
            tuple(id for id in before if id not in after),
            changed,
            tuple(name for name in _changed_fields(first, second) if name != "nodes"),
        )

    async def diagram(self, id: str, *, version: int | None = None) -> dict[str, Any]:
        """Return a dag as a graph, `{"nodes": […], "edges": […]}`. A node has `id` and `type`, an edge `from` and `to`.

        Args:
            id: The dag's id.
            version: Which version. Default: the newest.
        """
        return describe_dag_diagram(await self.get(id, version=version))

    async def of_run(self, run: str) -> tuple[Dag, int]:
        """Return the definition that a run was started with, and its version.

        Args:
            run: The run's id.
        """
        record = decode_record((await self._engine.commands.row(run)).record, run)
        return (await self._catalog.plan(record.dag, record.version)).dag, record.version

    async def deactivate(self, id: str) -> bool:
        """Deactivate a dag: no more runs of it start, and its triggers are removed; runs that have started go on.
        Return False if it is already.

        Args:
            id: The dag's id.
        """
        has_changed = await self._catalog.set_active(id, False)
        await self._triggers.remove(await self._catalog.get(id))
        return has_changed

    async def activate(self, id: str) -> bool:
        """Activate a dag that was deactivated, with the triggers of its newest version. Return False if it is active
        already.

        Args:
            id: The dag's id.
        """
        has_changed = await self._catalog.set_active(id, True)
        await self._triggers.store(await self._catalog.get(id), await self.get(id))
        return has_changed

    async def start(
        self,
        id: str,
        input: Any = None,
        *,
        version: int | None = None,
        key: str | None = None,
        correlation_id: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Run[Any]:
        """Start a run of a dag and return its handle. `app.start` does the same with the newest version.

        Args:
            id: The dag's id.
            input: What its first nodes receive: any JSON value, dataclass, msgspec or pydantic model.
            version: Which version. Default: the newest.
            key: Idempotency key. It becomes the run's id; a key that exists starts nothing.
            correlation_id: Stored with every event of the run. Default: the run's id.
            priority: Of the run's nodes; lower runs first.
            delay: How long to wait before the first nodes are due, such as "10m".
            at: When the first nodes are due, a datetime with a time zone. Instead of `delay`.
            tags: Names and values to find the run by: `app.runs.list(tags=...)`.
        """
        run = check_id(key, "idempotency key") if key is not None else uuid7(self._app.clock.now_ms())
        data = pack(input, f"the input of dag {id!r}")
        is_new = await self._engine.commands.start(
            id,
            run,
            data,
            version=version,
            correlation_id=check_optional_text(correlation_id, "the correlation id"),
            priority=check_priority(priority) if priority else 0,
            due=resolve_due(delay, at, self._app.clock),
            tags=check_tags(tags, "tags"),
        )
        starter = self._app._transactions.direct.runs
        started = await starter.describe_start(DAG, run, unpack(data), is_new=is_new)
        return Run(run, self._app.runs, existing=started.existing, differs=started.differs)

    async def retry(self, run: str, *, node: str | None = None) -> Sequence[str]:
        """Run the failed nodes of a run again, and return their new jobs. Nodes that completed are not run again.

        Args:
            run: The run's id.
            node: Only this node. Default: every failed one.
        """
        return await self._engine.commands.retry(run, node)

    async def breakers(self) -> Sequence[BreakerState]:
        """Return the circuit breakers that have counted failures: closed, open or half-open."""
        return await self._engine.breakers.list()

    async def reset_breaker(self, type: str, key: str = "") -> bool:
        """Close a circuit breaker. Return False if it is closed and has counted no failures.

        Args:
            type: Type of the nodes that it guards.
            key: Which one, if the type has one for each value of a key.
        """
        return await self._engine.breakers.reset(type, key)

    async def _version(self, id: str, version: int | None) -> Dag:
        summary = await self._catalog.get(id)
        known = [one.version for one in summary.versions]
        if version is not None and version not in known:
            raise UnknownDag(f"dag {id!r} has no version {version}; its versions: {', '.join(map(str, known))}")
        return (await self._catalog.plan(id, summary.latest if version is None else version)).dag

    def _find_unknown_targets(self, dag: Dag) -> builtins.list[DagWarning]:
        known = {*self._app.registry.flows, *self._catalog.known}
        if not find_unknown_targets(dag, known):
            return []
        files = (one.id for _, one in read_dag_files(self._app) if isinstance(one, Dag))
        return find_unknown_targets(dag, {*known, *files})

    def _check_types(self, dag: Dag) -> dict[str, str]:
        """Return the queue of each type. Raise DagInvalid for types without an executor, and for configs that do not
        fit theirs."""
        problems: builtins.list[str] = []
        queues: dict[str, str] = {}
        known = {*self._app.registry.nodes, *BUILT_IN}
        for n, node in enumerate(dag.nodes):
            executor = self._engine.executor(node.type)
            if executor is None:
                hint = did_you_mean(node.type, known) or f"known types: {', '.join(sorted(known))}"
                problems.append(f"nodes[{n}].type: no executor for {node.type!r}; {hint}")
                continue
            queues[node.type] = executor.queue_name
            if (inner := find_inner_type(node)) is not None:
                called = self._engine.executor(inner)
                if called is None:
                    hint = did_you_mean(inner, known) or f"known types: {', '.join(sorted(known))}"
                    problems.append(f"nodes[{n}].config.executor: no executor for {inner!r}; {hint}")
                elif called.runner is not None:
                    problems.append(
                        f"nodes[{n}].config.executor: {inner!r} runs in the runner {called.runner!r}, and items are "
                        "passed to executors in the worker's own process; use workflowId"
                    )
                elif called.takes_ctx:
                    problems.append(
                        f"nodes[{n}].config.executor: {inner!r} takes ctx, which items do not have; use workflowId"
                    )
            if misfits := self._engine.check_config(executor, node, f"nodes[{n}].config"):
                problems += misfits
            elif self._engine.is_built_in(executor):
                problems += find_config_problems(node, f"nodes[{n}].config")
            problems += _check_rate_key(dag, n, executor)
        if problems:
            raise DagInvalid(problems)
        return queues


def _check_rate_key(dag: Dag, n: int, executor: NodeHandler) -> list[str]:
    """Return why the rate key of an executor cannot be made: it needs the whole input when the node is enqueued."""
    if executor.rate_key is None or (dag.max_concurrency is None and len(dag.nodes[n].inputs) < 2):
        return []
    reason = "maxConcurrency" if dag.max_concurrency is not None else "several inputs"
    return [f"nodes[{n}].type: {executor.name!r} has a rate_key, which a node with {reason} cannot have"]


def _changed_fields(before: msgspec.Struct, after: msgspec.Struct) -> tuple[str, ...]:
    """Return the names of the fields that differ, as definitions spell them."""
    fields = msgspec.structs.fields(after)
    return tuple(one.encode_name for one in fields if getattr(before, one.name) != getattr(after, one.name))
