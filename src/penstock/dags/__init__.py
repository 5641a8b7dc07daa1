"""Dags: graphs of nodes as data. What a worker file or a builder of dags imports, and their engine."""

from typing import TYPE_CHECKING

from ..core.lazy_names import lazy_names

if TYPE_CHECKING:
    from ..handlers.nodes import Fail, Next, Skip, node
    from .builder import DagBuilder
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "DagBuilder": ".builder",
            "Fail": "..handlers.nodes",
            "Next": "..handlers.nodes",
            "Skip": "..handlers.nodes",
            "node": "..handlers.nodes",
        },
    )

__all__ = ["DagBuilder", "Fail", "Next", "Skip", "node"]
