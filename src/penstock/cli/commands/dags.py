"""`penstock dags list|show|register|check|compare|activate|deactivate|retry|breakers|reset-breaker`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from ...app import App
from ...app.dags import DagComparison
from ...core.text import pluralize
from ...dags.breakers import BreakerState
from ...dags.catalog import DagSummary
from ...dags.definition import Dag
from ...dags.diagram import build_dag_diagram
from ...dags.files import read_dag_file
from ...dags.warnings import DagWarning
from ...flows.diagram import render_text
from ..errors import warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import has_unicode_output, print_json, print_text
from ..session import build_store_app, build_worker_app, is_server_url, refuse_memory_store
from ..tables import print_result, print_rows

dags = Commands(name="dags", help="List dags; register, check, compare, retry; circuit breakers.")
Version = Annotated[int | None, Parameter(help="Which version. Default: the newest.")]


@dags.command(name="list")
@dags.default
def list_dags(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """List dags."""
    rows = [summary_to_dict(one) for one in asyncio.run(_list(common))]
    print_rows(rows, ("id", "name", "active", "version", "registered", "notes"), json=common.json, empty="No dags.")
    return 0


@dags.command
def show(id: str, /, *, version: Version = None, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Show a dag: its versions, its nodes and its diagram. With --json, print the definition.

    Parameters
    ----------
    id
        The dag's id.
    """
    summary, dag = asyncio.run(_show(common, id, version))
    if common.json:
        print_json({**summary_to_dict(summary), "definition": msgspec.to_builtins(dag)})
        return 0
    print_rows(_versions(summary), ("version", "registered", "notes"), json=False, empty="")
    nodes = [{"node": one.id, "type": one.type, "inputs": ", ".join(one.inputs)} for one in dag.nodes]
    print_rows(nodes, ("node", "type", "inputs"), json=False, empty="")
    print_text(render_text(build_dag_diagram(dag), has_unicode_output()))
    return 0


@dags.command
def register(
    file: str,
    /,
    *,
    notes: Annotated[str, Parameter(help="What has changed, for people.")] = "",
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Check the definition in a JSON or YAML file, and store it as the next version.

    Parameters
    ----------
    file
        The file: .json, .yaml or .yml.
    """
    refuse_memory_store(common)
    dag = read_dag_file(Path(file))
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        summary, warnings = asyncio.run(_register(common, dag, notes))
    _print_warnings(file, warnings)
    row = summary_to_dict(summary)
    print_result(f"Dag {summary.id} is registered as version {summary.latest}.", row, json=common.json)
    return 0


@dags.command
def check(file: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Check the definition in a JSON or YAML file against the executors in the worker files; store nothing.

    Parameters
    ----------
    file
        The file: .json, .yaml or .yml.
    """
    dag = read_dag_file(Path(file))
    with redirect_stdout(sys.stderr):
        warnings = asyncio.run(_check(common, dag))
    _print_warnings(file, warnings)
    shown = {"id": dag.id, "nodes": len(dag.nodes), "warnings": [msgspec.to_builtins(one) for one in warnings]}
    print_result(f"Dag {dag.id} with {pluralize(len(dag.nodes), 'node')} is valid.", shown, json=common.json)
    return 0


@dags.command
def compare(id: str, old: int, new: int, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Compare two versions of a dag.

    Parameters
    ----------
    id
        The dag's id.
    old
        The first version.
    new
        The second version.
    """
    found = asyncio.run(_compare(common, id, old, new))
    rows = [{"node": "(dag)", "change": "changed", "fields": ", ".join(found.fields)}] if found.fields else []
    rows += [{"node": node, "change": "added", "fields": ""} for node in found.added]
    rows += [{"node": node, "change": "removed", "fields": ""} for node in found.removed]
    rows += [{"node": node, "change": "changed", "fields": ", ".join(what)} for node, what in found.changed.items()]
    if common.json:
        print_json({"added": found.added, "removed": found.removed, "changed": found.changed, "fields": found.fields})
        return 0
    print_rows(rows, ("node", "change", "fields"), json=False, empty="Nothing has changed.")
    return 0


@dags.command
def activate(id: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Activate a dag that was deactivated; its schedules are added again.

    Parameters
    ----------
    id
        The dag's id.
    """
    changed = asyncio.run(_set_active(common, id, True))
    text = f"Dag {id} is active." if changed else f"Dag {id} is active already."
    print_result(text, {"id": id, "active": True, "changed": changed}, json=common.json)
    return 0


@dags.command
def deactivate(id: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Deactivate a dag: no more runs of it start, and its schedules are removed.

    Parameters
    ----------
    id
        The dag's id.
    """
    changed = asyncio.run(_set_active(common, id, False))
    text = f"Dag {id} is deactivated." if changed else f"Dag {id} is deactivated already."
    print_result(text, {"id": id, "active": False, "changed": changed}, json=common.json)
    return 0


@dags.command
def retry(
    run: str,
    /,
    *,
    node: Annotated[str | None, Parameter(help="Only this node. Default: every failed one.")] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Run the failed nodes of a run again. Nodes that completed are not run again.

    Parameters
    ----------
    run
        The run's id.
    """
    jobs = list(asyncio.run(_retry(common, run, node)))
    print_result(f"Enqueued {', '.join(jobs) or 'nothing'}.", {"run": run, "jobs": jobs}, json=common.json)
    return 0


@dags.command
def breakers(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """List circuit breakers that have counted failures: closed, open or half-open."""
    rows = [breaker_to_dict(one) for one in asyncio.run(_breakers(common))]
    columns = ("type", "key", "state", "failures", "until", "error")
    print_rows(rows, columns, json=common.json, empty="No circuit breaker has counted a failure.")
    return 0


@dags.command
def reset_breaker(type: str, key: str = "", /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Close a circuit breaker.

    Parameters
    ----------
    type
        Type of the nodes that it guards.
    key
        Which one, if the type has one for each value of a key.
    """
    changed = asyncio.run(_reset_breaker(common, type, key))
    name = f"{type} {key}".strip()
    text = f"The breaker of {name} is closed." if changed else f"The breaker of {name} has counted no failures."
    print_result(text, {"type": type, "key": key, "changed": changed}, json=common.json)
    return 0


def breaker_to_dict(breaker: BreakerState) -> dict[str, Any]:
    """Return what `dags breakers --json` prints."""
    return {
        "type": breaker.type,
        "key": breaker.key,
        "state": breaker.state,
        "failures": breaker.failures,
        "until": breaker.until,
        "error": breaker.error,
    }


def summary_to_dict(summary: DagSummary) -> dict[str, Any]:
    """Return what `dags --json` prints."""
    newest = summary.versions[-1]
    return {
        "id": summary.id,
        "name": summary.name,
        "active": summary.is_active,
        "version": newest.version,
        "registered": newest.registered_at,
        "notes": newest.notes,
        "versions": _versions(summary),
    }


def _versions(summary: DagSummary) -> list[dict[str, Any]]:
    return [{"version": one.version, "registered": one.registered_at, "notes": one.notes} for one in summary.versions]


def _print_warnings(file: str, warnings: Sequence[DagWarning]) -> None:
    for one in warnings:
        warn(f"Warning: {file}: {one}")


async def _list(common: CommonOptions) -> list[DagSummary]:
    async with build_store_app(common) as app:
        return await app.dags.list()


async def _show(common: CommonOptions, id: str, version: int | None) -> tuple[DagSummary, Dag]:
    async with build_store_app(common) as app:
        return await app.dags.describe(id), await app.dags.get(id, version=version)


async def _register(common: CommonOptions, dag: Dag, notes: str) -> tuple[DagSummary, list[DagWarning]]:
    async with build_worker_app(common, may_be_remote=True) as app:
        return await app.dags.register(dag, notes=notes), await _find_warnings(app, dag)


async def _check(common: CommonOptions, dag: Dag) -> list[DagWarning]:
    # Executors decide, not what is stored: no store is created for it.
    place = common if is_server_url(common) else replace(common, url=":memory:")
    async with build_worker_app(place, may_be_remote=True) as app:
        return await _find_warnings(app, dag)


async def _find_warnings(app: App, dag: Dag) -> list[DagWarning]:
    found: Any = app.dags.check(dag)
    return list(await found if asyncio.iscoroutine(found) else found)  # over HTTP it waits for the server


async def _compare(common: CommonOptions, id: str, old: int, new: int) -> DagComparison:
    async with build_store_app(common) as app:
        return await app.dags.compare(id, old, new)


async def _set_active(common: CommonOptions, id: str, is_active: bool) -> bool:
    async with build_store_app(common) as app:
        return await (app.dags.activate(id) if is_active else app.dags.deactivate(id))


async def _breakers(common: CommonOptions) -> Sequence[BreakerState]:
    async with build_store_app(common) as app:
        return await app.dags.breakers()


async def _reset_breaker(common: CommonOptions, type: str, key: str) -> bool:
    async with build_store_app(common) as app:
        return await app.dags.reset_breaker(type, key)


async def _retry(common: CommonOptions, run: str, node: str | None) -> Sequence[str]:
    async with build_store_app(common) as app:
        return await app.dags.retry(run, node=node)
