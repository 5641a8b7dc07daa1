"""The plan of a dag: its nodes by number, and what each passes to which. Made once for each version."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType

from .definition import Dag, Node
from .expressions import Template

EMPTY: Mapping[str, str] = MappingProxyType({})


class Plan:
    """A dag in the form that decisions read."""

    def __init__(self, dag: Dag, version: int, queues: Mapping[str, str] = EMPTY) -> None:
        self.dag = dag
        self.queues = queues  # by type, where no executor of it is loaded
        self.version = version
        self.nodes: tuple[Node, ...] = dag.nodes
        self.index = {node.id: n for n, node in enumerate(dag.nodes)}
        self.parents = [tuple(self.index[id] for id in node.inputs) for node in dag.nodes]
        self.children: list[list[int]] = [[] for _ in dag.nodes]
        for n, parents in enumerate(self.parents):
            for parent in parents:
                self.children[parent].append(n)
        self.templates = [Template(node.config) for node in dag.nodes]
        self.readers: list[list[int]] = [[] for _ in dag.nodes]  # nodes that read its data and do not follow it
        for n, template in enumerate(self.templates):
            for id in template.nodes:
                if self.index[id] not in self.parents[n]:
                    self.readers[self.index[id]].append(n)

    @property
    def entries(self) -> list[int]:
        """The nodes that start with the run."""
        return [n for n, parents in enumerate(self.parents) if not parents]

    @cached_property
    def last_count(self) -> int:
        """How many nodes no other one follows. Their data is the run's result."""
        return sum(not children for children in self.children)

    @cached_property
    def keeps_input(self) -> bool:
        """Whether some expression reads the run's input."""
        return self.limit is not None or any(template.reads_input for template in self.templates)

    @property
    def limit(self) -> int | None:
        """How many nodes of one run may be queued or running. With a limit, data waits in the state of the run."""
        return self.dag.max_concurrency

    def needs_data(self, n: int, is_whole: bool = False) -> bool:
        """Return whether a node needs more than the input of its job: what other nodes have left for it. The job of a
        join may have all of its input."""
        template = self.templates[n]
        return (
            (len(self.parents[n]) > 1 and not is_whole)
            or self.limit is not None
            or template.reads_input
            or any(self.index[id] not in self.parents[n] for id in template.nodes)
        )
