"""`penstock diagram FLOW`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ..flows.diagram import as_mermaid, as_text, diagram_of
from ..flows.diagram_svg import as_svg
from .errors import UsageMistake
from .flows import load
from .options import USUAL_PLACE, Common
from .output import print_json, unicode_out

Format = Literal["text", "mermaid", "svg"]


def diagram(
    flow: str,
    /,
    *,
    format: Annotated[Format, Parameter(help="How to draw it.")] = "text",
    output: Annotated[str | None, Parameter(help="Write it to this file.")] = None,
    common: Common = USUAL_PLACE,
) -> int:
    """Draw a flow: its steps and the events that lead from one to the next.

    Parameters
    ----------
    flow
        The flow's name.
    """
    graph = diagram_of(load(common).flow(flow))
    unicode = output is not None or unicode_out()
    drawn = as_svg(graph) if format == "svg" else as_mermaid(graph) if format == "mermaid" else as_text(graph, unicode)
    if output is not None:
        _write(output, drawn)
    elif common.json:
        print_json({"flow": flow, "format": format, "diagram": drawn})
    else:
        print(drawn)
    return 0


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text + "\n", "utf-8")
    except OSError as problem:
        raise UsageMistake(f"cannot write {path}: {problem.strerror}") from None
