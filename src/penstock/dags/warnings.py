"""Warnings about a dag: what is probably a mistake in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from .definition import BRANCH, Dag, list_next

PURE = ("transform", BRANCH)  # what they do is their data


class DagWarning(msgspec.Struct, frozen=True):
    """What is probably a mistake in a dag."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def find_warnings(dag: Dag) -> list[DagWarning]:
    """Return what is probably a mistake: nodes that nothing leads to, and data that no node uses."""
    children: dict[str, list[str]] = {one.id: [] for one in dag.nodes}
    for one in dag.nodes:
        for parent in one.inputs:
            children[parent].append(one.id)
    return [
        *_find_unreachable(dag, children),
        *_find_never_chosen(dag, children),
        *_find_unused(dag, children),
    ]


def _find_unreachable(dag: Dag, children: Mapping[str, Sequence[str]]) -> Iterator[DagWarning]:
    if dag.entry_node_id is None:
        for n, one in enumerate(dag.nodes):
            if len(dag.nodes) > 1 and not one.inputs and not children[one.id]:
                yield DagWarning(f"nodes[{n}]", f"{one.id!r} is connected to no other node; it starts with the run")
        return
    reached, left = {dag.entry_node_id}, [dag.entry_node_id]
    while left:
        for child in children[left.pop()]:
            if child not in reached:
                reached.add(child)
                left.append(child)
    for n, one in enumerate(dag.nodes):
        if one.id not in reached:
            yield DagWarning(
                f"nodes[{n}]", f"{one.id!r} cannot be reached from {dag.entry_node_id!r}; it starts on its own"
            )


def _find_never_chosen(dag: Dag, children: Mapping[str, Sequence[str]]) -> Iterator[DagWarning]:
    index = {one.id: n for n, one in enumerate(dag.nodes)}
    for one in dag.nodes:
        chosen = list_next(one)
        if chosen is None:
            continue
        named = {id for _, id in chosen}
        for child in children[one.id]:
            if child not in named:
                yield DagWarning(
                    f"nodes[{index[child]}].inputs",
                    f"no case of the branch {one.id!r} names {child!r}, so it never follows from there",
                )


def _find_unused(dag: Dag, children: Mapping[str, Sequence[str]]) -> Iterator[DagWarning]:
    """Yield the nodes whose data is lost among that of others: only the result of the run has it."""
    last_count = sum(not found for found in children.values())
    for n, one in enumerate(dag.nodes):
        if last_count > 1 and not children[one.id] and one.type in PURE:
            yield DagWarning(f"nodes[{n}]", f"no node uses the data of {one.id!r}, a {one.type} node")
