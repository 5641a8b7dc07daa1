"""`penstock flows list|show`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout
from typing import Any

from cyclopts import App as Commands

from ...app.flows import flow_to_dict
from ...flows.diagram import build_diagram, render_text
from ...handlers.registry import Registry
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import has_unicode_output, print_json, print_text
from ..session import build_store_app, build_worker_app, is_server_url
from ..tables import print_rows

flows = Commands(name="flows", help="List the flows in the worker files; 'flows show NAME' shows one.")


@flows.command(name="list")
@flows.default
def list_flows(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """List the flows in the worker files."""
    if is_server_url(common):
        rows = asyncio.run(_ask(common, lambda app: app.flows.list()))
    else:
        rows = [flow_to_dict(flow) for flow in load_registry(common).flows.values()]
    shown = [{**row, "steps": ", ".join(row["steps"])} for row in rows]
    print_rows(rows if common.json else shown, ("flow", "version", "steps"), json=common.json, empty="No flows.")
    return 0


@flows.command
def show(name: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Show the steps of a flow, what starts them and what they emit.

    Parameters
    ----------
    name
        The flow's name.
    """
    flow = None if is_server_url(common) else load_registry(common).flow(name)
    found = asyncio.run(_ask(common, lambda app: app.flows.get(name))) if flow is None else flow_to_dict(flow)
    if common.json:
        print_json(found)
        return 0
    rows = [{"step": step, **about} for step, about in found["steps"].items()]
    shown = [{k: ", ".join(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows]
    print_rows(shown, ("step", "queue", "on", "mode", "emits", "attempts", "file"), json=False, empty="")
    if flow is not None:  # a drawing needs the code
        print_text(render_text(build_diagram(flow), has_unicode_output()))
    return 0


async def _ask(common: CommonOptions, read: Callable[[Any], Awaitable[Any]]) -> Any:
    """Return what a server knows about flows, as the worker files would show it."""
    async with build_store_app(common) as app:
        found = await read(app)
    for one in found if isinstance(found, list) else [found]:
        for name in ("id", "inputSchema"):
            one.pop(name, None)
    return found


def load_registry(common: CommonOptions) -> Registry:
    """Load the worker files without opening a store."""
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        return build_worker_app(common).registry
