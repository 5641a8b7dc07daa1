"""`penstock diagram NAME`: of a flow, a dag, or of a run in the version that it was started with."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from cyclopts import Parameter

from ...app.dag_files import find_dag_files
from ...app.run_diagrams import read_run_diagram
from ...core.errors import NotFound, PenstockError, UnknownDag
from ...core.ids import BadId
from ...dags.definition import Dag
from ...dags.diagram import build_dag_diagram, describe_dag_diagram
from ...dags.files import read_dag_file
from ...flows.diagram import Diagram, build_diagram, render_mermaid, render_text
from ...flows.diagram_data import describe_diagram
from ...flows.diagram_svg import render_svg
from ...settings import Settings
from ..errors import UsageError
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import has_unicode_output, print_json, print_text
from ..session import build_store_app, is_server_url
from .flows import load_registry

Format = Literal["text", "mermaid", "svg"]


def diagram(
    flow: str,
    /,
    *,
    version: Annotated[int | None, Parameter(help="Version of a dag. Default: the newest.")] = None,
    run: Annotated[
        bool, Parameter(negative="", help="FLOW is a run: draw the version that it was started with.")
    ] = False,
    format: Annotated[Format | None, Parameter(help="Output format. Default: text.")] = None,
    output: Annotated[str | None, Parameter(help="Write to this file.")] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Draw a flow: its steps and the events that connect them; or a dag: its nodes. With --json, print its nodes and
    edges.

    Parameters
    ----------
    flow
        The name of the flow or the dag.
    """
    if is_server_url(common):
        if format is not None or output is not None or not common.json:
            raise UsageError(
                "a drawing needs the worker files or the store; --url http://… prints a diagram with --json"
            )
        print_json(asyncio.run(_ask(flow, version, run, common)))
        return 0
    graph, described = _find(flow, version, run, common)
    if common.json and format is None and output is None:
        print_json(described)
        return 0
    unicode = output is not None or has_unicode_output()
    drawn = (
        render_svg(graph)
        if format == "svg"
        else render_mermaid(graph)
        if format == "mermaid"
        else render_text(graph, unicode)
    )
    if output is not None:
        _write(output, drawn)
    elif common.json:
        print_json({"flow": flow, "format": format or "text", "diagram": drawn})
    else:
        print_text(drawn)
    return 0


def _find(name: str, version: int | None, is_run: bool, common: CommonOptions) -> tuple[Diagram, dict[str, Any]]:
    """Return the graph of a flow in the worker files, or else of a dag in the store."""
    if is_run:
        return asyncio.run(_load_run(name, common))
    if version is None:
        registry = load_registry(common)
        if name in registry.flows or (dag := _find_dag(name, common)) is None:
            known = registry.flow(name)  # raises with the nearest name
            return build_diagram(known), describe_diagram(known)
    else:
        dag = asyncio.run(_load_dag(name, version, common))
    return build_dag_diagram(dag), describe_dag_diagram(dag)


def _find_dag(name: str, common: CommonOptions) -> Dag | None:
    """Return a dag from the store, or else from a file beside the workers."""
    try:
        return asyncio.run(_load_dag(name, None, common))
    except (NotFound, UnknownDag, BadId, UsageError):
        return _read_dag_file(name, common)


def _read_dag_file(name: str, common: CommonOptions) -> Dag | None:
    for path in find_dag_files(Path(Settings.load({"dir": common.dir}).dir)):
        try:
            dag = read_dag_file(path)
        except PenstockError:
            continue  # `penstock check` reports it
        if dag.id == name:
            return dag
    return None


async def _ask(name: str, version: int | None, is_run: bool, common: CommonOptions) -> dict[str, Any]:
    """Return the diagram of a flow or a dag from a server."""
    async with build_store_app(common) as app:
        if is_run:
            return await app.runs.diagram(name)
        if version is None:
            try:
                return await cast("Any", app.flows).diagram(name)  # type: ignore[no-any-return]
            except NotFound:
                pass
        return describe_dag_diagram(await app.dags.get(name, version=version))


async def _load_dag(name: str, version: int | None, common: CommonOptions) -> Dag:
    async with build_store_app(common) as app:
        return await app.dags.get(name, version=version)


async def _load_run(id: str, common: CommonOptions) -> tuple[Diagram, dict[str, Any]]:
    async with build_store_app(common) as app:
        return await read_run_diagram(app, id)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text + "\n", "utf-8")
    except OSError as problem:
        raise UsageError(f"cannot write {path}: {problem.strerror}") from None
