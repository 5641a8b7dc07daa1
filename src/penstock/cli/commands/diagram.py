"""`penstock diagram FLOW`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ...flows.diagram import build_diagram, render_mermaid, render_text
from ...flows.diagram_svg import render_svg
from ..errors import UsageError
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import has_unicode_output, print_json, print_text
from .flows import load_registry

Format = Literal["text", "mermaid", "svg"]


def diagram(
    flow: str,
    /,
    *,
    format: Annotated[Format, Parameter(help="Output format.")] = "text",
    output: Annotated[str | None, Parameter(help="Write to this file.")] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Draw a flow: its steps and the events that connect them.

    Parameters
    ----------
    flow
        The flow's name.
    """
    graph = build_diagram(load_registry(common).flow(flow))
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
        print_json({"flow": flow, "format": format, "diagram": drawn})
    else:
        print_text(drawn)
    return 0


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text + "\n", "utf-8")
    except OSError as problem:
        raise UsageError(f"cannot write {path}: {problem.strerror}") from None
