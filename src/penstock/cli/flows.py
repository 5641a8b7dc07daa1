"""`penstock flows list|show`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Any

from cyclopts import App as Commands

from ..flows.diagram import as_text, diagram_of
from ..handlers.registry import Flow, Registry
from .options import USUAL_PLACE, Common
from .output import print_json, unicode_out
from .session import working_app
from .tables import show_list

flows = Commands(name="flows", help="List the flows of the worker files; 'flows show NAME' shows one.")


@flows.command(name="list")
@flows.default
def list_flows(*, common: Common = USUAL_PLACE) -> int:
    """List the flows of the worker files."""
    registry = load(common)
    rows = [flow_object(flow) for flow in registry.flows.values()]
    shown = [{**row, "steps": ", ".join(row["steps"])} for row in rows]
    show_list(rows if common.json else shown, ("flow", "version", "steps"), json=common.json, none="No flows.")
    return 0


@flows.command
def show(name: str, /, *, common: Common = USUAL_PLACE) -> int:
    """Show a flow: its steps, what starts them and what they emit.

    Parameters
    ----------
    name
        The flow's name.
    """
    flow = load(common).flow(name)
    if common.json:
        print_json(flow_object(flow))
        return 0
    rows = [{"step": step, **about} for step, about in flow_object(flow)["steps"].items()]
    shown = [{k: ", ".join(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows]
    show_list(shown, ("step", "queue", "on", "mode", "emits", "attempts", "file"), json=False, none="")
    print(as_text(diagram_of(flow), unicode_out()))
    return 0


def load(common: Common) -> Registry:
    """What the worker files define; no store is opened."""
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        return working_app(common).registry


def flow_object(flow: Flow) -> dict[str, Any]:
    """The object `flows --json` prints."""
    steps = {
        name: {
            "queue": step.handler.queue_name,
            "on": list(step.kinds),
            "mode": step.mode if step.kinds else None,
            "emits": list(step.emits) if step.emits is not None else None,
            "attempts": step.handler.retry.attempts,
            "compensation": step.compensation,
            "file": step.handler.where,
        }
        for name, step in flow.steps.items()
    }
    definition = flow.definition
    return {
        "flow": flow.name,
        "version": definition.version,
        "entry": definition.entry.name,
        "accepts": list(definition.accepts),
        "steps": steps,
    }
