"""`client.dags`."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from ..app.dags import DagComparison
from ..app.run_handle import Run
from ..core.argument_checks import check_arguments
from ..core.durations import Duration
from ..dags.breakers import BreakerState
from ..dags.catalog import DagSummary
from ..dags.definition import Dag, read_dag
from ..dags.warnings import DagWarning
from .connection import Connection
from .runs import Runs, StartedRun
from .times import show_duration

DAG, RUN = "/api/_dags/{}", "/api/_dags/runs/{}"


class _Check(msgspec.Struct):
    warnings: list[DagWarning]


class _OfRun(msgspec.Struct):
    dag: Dag
    version: int


@check_arguments
class Dags:
    """Definitions of dags in the store of the server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def register(self, dag: Dag | Mapping[str, Any] | str | bytes, *, notes: str = "") -> DagSummary:
        """Check a definition and store it as the next version. The same definition again stores nothing.

        Args:
            dag: What `DagBuilder.build()` returns, a mapping, or JSON text.
            notes: What has changed, for people.
        """
        found = read_dag(dag)
        body = {"dag": msgspec.to_builtins(found), "notes": notes}
        return await self._connection.request("PUT", DagSummary, DAG, found.id, body=body)

    async def check(self, dag: Dag | Mapping[str, Any] | str | bytes) -> list[DagWarning]:
        """Check a definition without storing it, and return its warnings. Raise DagInvalid with every mistake.

        Args:
            dag: What `DagBuilder.build()` returns, a mapping, or JSON text.
        """
        body = {"dag": msgspec.to_builtins(read_dag(dag))}
        return (await self._connection.request("POST", _Check, "/api/_dags/check", body=body)).warnings

    async def get(self, id: str, *, version: int | None = None) -> Dag:
        """Return a definition.

        Args:
            id: The dag's id.
            version: Which version. Default: the newest.
        """
        return await self._connection.get(Dag, DAG + "/definition", id, version=version)

    async def describe(self, id: str) -> DagSummary:
        """Return a dag's title, whether it is active, and its versions.

        Args:
            id: The dag's id.
        """
        return await self._connection.get(DagSummary, DAG, id)

    async def list(self) -> list[DagSummary]:
        """Return all dags, by id."""
        return await self._connection.get(builtins.list[DagSummary], "/api/_dags")

    async def compare(self, id: str, old: int, new: int) -> DagComparison:
        """Return what has changed from one version to another.

        Args:
            id: The dag's id.
            old: The first version.
            new: The second version.
        """
        return await self._connection.get(DagComparison, DAG + "/compare", id, old=old, new=new)

    async def diagram(self, id: str, *, version: int | None = None) -> dict[str, Any]:
        """Return a dag as a graph, `{"nodes": […], "edges": […]}`.

        Args:
            id: The dag's id.
            version: Which version. Default: the newest.
        """
        return await self._connection.get(dict[str, Any], DAG + "/diagram", id, version=version)

    async def of_run(self, run: str) -> tuple[Dag, int]:
        """Return the definition that a run was started with, and its version.

        Args:
            run: The run's id.
        """
        found = await self._connection.get(_OfRun, RUN + "/definition", run)
        return found.dag, found.version

    async def deactivate(self, id: str) -> bool:
        """Deactivate a dag: no more runs of it start, and its schedules are removed. Return False if it is already.

        Args:
            id: The dag's id.
        """
        return await self._connection.post_for_ok(DAG + "/deactivate", id)

    async def activate(self, id: str) -> bool:
        """Activate a dag that was deactivated. Return False if it is active already.

        Args:
            id: The dag's id.
        """
        return await self._connection.post_for_ok(DAG + "/activate", id)

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
        """Start a run of a dag and return its handle.

        Args:
            id: The dag's id.
            input: What its first nodes receive: any JSON value, dataclass, msgspec or pydantic model.
            version: Which version. Default: the newest.
            key: Idempotency key. It becomes the run's id; a key that exists starts nothing.
            correlation_id: Stored with every event of the run. Default: the run's id.
            priority: Of the run's nodes; lower runs first.
            delay: How long to wait before the first nodes are due, such as "10m".
            at: When the first nodes are due, a datetime with a time zone. Instead of `delay`.
            tags: Names and values to find the run by.
        """
        started = await self._connection.post(
            StartedRun,
            DAG + "/start",
            id,
            input=input,
            version=version,
            key=key,
            correlationId=correlation_id,
            priority=priority,
            delay=show_duration(delay),
            at=at,
            tags=tags,
        )
        return started.make_handle(Runs(self._connection))

    async def retry(self, run: str, *, node: str | None = None) -> Sequence[str]:
        """Run the failed nodes of a run again, and return their new jobs. Nodes that completed are not run again.

        Args:
            run: The run's id.
            node: Only this node. Default: every failed one.
        """
        return (await self._connection.post(Jobs, RUN + "/retry", run, node=node))["jobs"]

    async def breakers(self) -> Sequence[BreakerState]:
        """Return the circuit breakers that have counted failures: closed, open or half-open."""
        return await self._connection.get(builtins.list[BreakerState], "/api/_dags/breakers")

    async def reset_breaker(self, type: str, key: str = "") -> bool:
        """Close a circuit breaker. Return False if it is closed and has counted no failures.

        Args:
            type: Type of the nodes that it guards.
            key: Which one, if the type has one for each value of a key.
        """
        return await self._connection.post_for_ok("/api/_dags/breakers/reset", type=type, key=key)


Jobs = dict[str, list[str]]
