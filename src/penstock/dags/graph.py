"""The graph of a dag: cycles, an order of its nodes, and which nodes end before another starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .definition import Node

MAX_SHOWN_CYCLE = 10


def find_cycle(nodes: Sequence[Node]) -> list[str] | None:
    """Return the ids of one cycle, in the direction of the edges; None if there is none."""
    ended = set(sort_nodes(nodes))
    stuck = {one.id: one for n, one in enumerate(nodes) if n not in ended}
    if not stuck:
        return None
    path: dict[str, int] = {}
    at = next(iter(stuck))
    while at not in path:  # every stuck node has a stuck parent
        path[at] = len(path)
        at = next(parent for parent in stuck[at].inputs if parent in stuck)
    return list(path)[path[at] :][::-1]


def show_cycle(cycle: Sequence[str]) -> str:
    if len(cycle) <= MAX_SHOWN_CYCLE:
        return " -> ".join([*cycle, cycle[0]])
    return " -> ".join([*cycle[:MAX_SHOWN_CYCLE], "…", cycle[0]]) + f" ({len(cycle)} nodes)"


def sort_nodes(nodes: Sequence[Node]) -> list[int]:
    """Return the numbers of the nodes, each after its inputs. Those of a cycle, and after one, are missing."""
    index = {one.id: n for n, one in enumerate(nodes)}
    missing = [len(one.inputs) for one in nodes]
    children: list[list[int]] = [[] for _ in nodes]
    for n, one in enumerate(nodes):
        for parent in one.inputs:
            children[index[parent]].append(n)
    found = [n for n, count in enumerate(missing) if not count]
    for at in found:  # it grows
        for child in children[at]:
            missing[child] -= 1
            if not missing[child]:
                found.append(child)
    return found


def find_later_nodes(
    nodes: Sequence[Node], index: Mapping[str, int], read: Mapping[int, Collection[str]]
) -> list[tuple[int, str]]:
    """Return each node with the ones that it reads although they need not end before it starts.

    Sets of nodes are the bits of an integer: one pass over the edges, also for ten thousand nodes."""
    if not read:
        return []
    found: list[tuple[int, str]] = []
    before: list[int] = [0] * len(nodes)
    uses = [0] * len(nodes)  # how many nodes still need the set of this one
    for one in nodes:
        for parent in one.inputs:
            uses[index[parent]] += 1
    for n in sort_nodes(nodes):
        bits = 0
        for at in (index[id] for id in nodes[n].inputs):
            bits |= before[at] | 1 << at
            uses[at] -= 1
            if not uses[at]:
                before[at] = 0
        before[n] = bits
        found += [(n, name) for name in sorted(read.get(n, ())) if not bits >> index[name] & 1]
    return sorted(found)
