"""The definition of a dag: data that is read, checked and stored.

`read_dag` accepts a mapping or JSON text. It reports every mistake at once, each with its path and the nearest known
name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ..core.durations import Duration, is_number, to_ms
from ..core.errors import BadDuration, DagInvalid, ExpressionError, PenstockError
from ..core.ids import check_name
from ..core.near_match import did_you_mean
from ..core.options import check_priority
from ..core.payload import parse_json, to_plain
from ..core.retry import RetryOption, RetryPolicy
from ..core.text import MAX_SHOWN_CHARS, shorten
from ..handlers.options import RateOption, read_rate_limit
from ..ports.unit import RateLimit
from .expressions import Template
from .spellings import lift_config
from .triggers import Trigger, read_trigger

MAX_NODES = 20_000
MAX_SHOWN_CYCLE = 10
MAX_DEFINITION_BYTES = 4 * 1024 * 1024
_DAG_KEYS = {"id": "id", "name": "name", "nodes": "nodes", "entryNodeId": "entryNodeId", "priority": "priority"} | {
    "delay": "delay",
    "delayMs": "delayMs",
    "entry_node_id": "entryNodeId",
    "triggers": "triggers",
    "maxConcurrency": "maxConcurrency",
    "max_concurrency": "maxConcurrency",
}
_NODE_KEYS = {key: key for key in ("id", "type", "inputs", "outputs", "config", "retry", "timeout", "delay")} | {
    "continueOnFail": "continueOnFail",
    "continue_on_fail": "continueOnFail",
    "timeoutMs": "timeoutMs",
    "delayMs": "delayMs",
    "rateLimit": "rateLimit",
    "rate_limit": "rateLimit",
}
# Fields of other engines that mean something else here: refuse what would be ignored.
_ABSENT = {
    "concurrencyLockTTL": "remove it; a slot of maxConcurrency is part of the run and cannot be lost",
    "jobId": "remove it; jobs are named <run>.<node>.<n>, and key= of the start names the run",
}


class Node(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One node of a dag.

    Attributes:
        id: Its name in the dag.
        type: The type of its executor: `@node("http.get")`, or a built-in one.
        inputs: The nodes that it follows.
        config: What its executor receives as `config`; its strings may contain expressions.
        continue_on_fail: Whether its final failure is passed on as data instead of failing the run.
        retry: Instead of the executor's retry policy.
        timeout_ms: Instead of the executor's timeout.
        delay_ms: How much later it starts, after its last input.
        rate_limit: How many of its attempts start per duration, in all runs and workers.
    """

    id: str
    type: str
    inputs: tuple[str, ...] = ()
    config: Any = None
    continue_on_fail: bool = False
    retry: RetryPolicy | None = None
    timeout_ms: int | None = None
    delay_ms: int = 0
    rate_limit: RateLimit | None = None


class Dag(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A graph of nodes.

    Attributes:
        id: Its name: `app.dags.start(id)`.
        nodes: Its nodes.
        name: A title for people.
        priority: Of its jobs; lower runs first.
        delay_ms: How much later its first nodes start.
        entry_node_id: The node that the others are reached from; `find_warnings` names those that are not. Every node
            without inputs starts with the run.
        triggers: What starts its runs: schedules, webhooks and events.
        max_concurrency: How many nodes of one run are queued or running at the same time; waiting ones do not count.
    """

    id: str
    nodes: tuple[Node, ...]
    name: str = ""
    priority: int = 0
    delay_ms: int = 0
    entry_node_id: str | None = None
    triggers: tuple[Trigger, ...] = ()
    max_concurrency: int | None = None


class DagWarning(msgspec.Struct, frozen=True):
    """What is probably a mistake in a dag."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class DagBuilder:
    """Builds a dag in Python.

        expenses = DagBuilder("expenses")
        check = expenses.add("check", "policy.check")
        expenses.add("pay", "bank.pay", after=check)
        await app.dags.register(expenses.build())

    Args:
        id: Its name: `app.dags.start(id)`.
        name: A title for people.
        priority: Of its jobs; lower runs first.
        delay: Start its first nodes this much later.
        triggers: What starts its runs: `{"schedule": "0 8 * * *"}`, `{"webhook": "expenses"}`, `{"event": "a.b"}`.
        max_concurrency: Maximum number of nodes of one run that are queued or running at the same time.
    """

    def __init__(
        self,
        id: str,
        *,
        name: str = "",
        priority: int = 0,
        delay: Duration | None = None,
        triggers: Sequence[Mapping[str, Any]] = (),
        max_concurrency: int | None = None,
    ) -> None:
        self._fields: dict[str, Any] = {"id": id, "name": name, "priority": priority, "delay": delay}
        self._fields["maxConcurrency"] = max_concurrency
        self._fields["triggers"] = list(triggers)
        self._nodes: list[dict[str, Any]] = []

    def add(
        self,
        id: str,
        type: str,
        *,
        after: str | Sequence[str] = (),
        config: Any = None,
        continue_on_fail: bool = False,
        retry: RetryOption | None = None,
        timeout: Duration | None = None,
        delay: Duration | None = None,
        rate_limit: RateOption | None = None,
    ) -> str:
        """Add a node, and return its id.

        Args:
            id: Its name in the dag.
            type: The type of its executor.
            after: The node or the nodes that it follows.
            config: What its executor receives as `config`; its strings may contain expressions.
            continue_on_fail: Pass its final failure on as data instead of failing the run.
            retry: Number of attempts or a policy, instead of the executor's.
            timeout: Fail an attempt that runs longer than this, instead of the executor's timeout.
            delay: Start it this much later.
            rate_limit: Maximum number of its attempts per duration, in all runs and workers: `"10/1m"`.
        """
        inputs = [after] if isinstance(after, str) else list(after) if isinstance(after, Sequence) else after
        options = {"config": config, "retry": retry, "timeout": timeout, "delay": delay}
        options["rateLimit"] = rate_limit
        given = {key: value for key, value in options.items() if value is not None}
        self._nodes.append({"id": id, "type": type, "inputs": inputs, "continueOnFail": continue_on_fail, **given})
        return id

    def build(self) -> Dag:
        """Return the dag. Raise DagInvalid with every mistake."""
        given = {key: value for key, value in self._fields.items() if value is not None}
        return read_dag({**given, "nodes": self._nodes})


def read_dag(data: Any) -> Dag:
    """Read a dag from a mapping, or from JSON text. Raise DagInvalid with every mistake and its path."""
    if isinstance(data, Dag):  # it may have been built without a check
        data = msgspec.to_builtins(data)
    if isinstance(data, str | bytes):
        data = parse_json(data, "the dag", MAX_DEFINITION_BYTES)
    return _Reader().read(data)


class _Reader:
    """Reads one definition and collects its mistakes."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def read(self, data: Any) -> Dag:
        if not isinstance(data, Mapping):
            raise DagInvalid([f"a dag must be an object with id and nodes, got {shorten(data)}"])
        fields = self._fields(data, _DAG_KEYS, "")
        id = self._name(fields.get("id"), "id")
        raw = fields.get("nodes")
        if not isinstance(raw, list | tuple) or not raw:
            self.problems.append(f"nodes: must be a list of at least one node, got {shorten(raw)}")
            raw = []
        if len(raw) > MAX_NODES:
            self.problems.append(f"nodes: at most {MAX_NODES} nodes, got {len(raw)}")
            raw = []
        nodes = [self._node(one, f"nodes[{n}]") for n, one in enumerate(raw)]
        nodes = self._link(raw, nodes)
        title = fields.get("name", "")
        if not isinstance(title, str):
            self.problems.append(f"name: must be a text, got {shorten(title)}")
            title = ""
        self._check_graph(nodes, fields.get("entryNodeId"))
        delay = self._duration(fields, "delay", "") or 0
        entry, triggers = fields.get("entryNodeId"), self._triggers(fields.get("triggers", ()))
        limit = self._concurrency(fields.get("maxConcurrency"))
        found = Dag(id, tuple(nodes), title, self._priority(fields), delay, entry, triggers, limit)
        if self.problems:
            raise DagInvalid(self.problems)
        return found

    def _fields(self, data: Mapping[Any, Any], known: Mapping[str, str], path: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in data.items():
            shown = key if isinstance(key, str) and key.isidentifier() and len(key) <= MAX_SHOWN_CHARS else shorten(key)
            where = f"{path}.{shown}" if path else shown
            if key in _ABSENT:
                self.problems.append(f"{where}: {_ABSENT[key]}")
            elif key not in known:
                names = sorted(name for name in set(known.values()) if not name.endswith("Ms"))
                hint = did_you_mean(key, known) or f"known fields: {', '.join(names)}"
                self.problems.append(f"{where}: unknown field; {hint}")
            else:
                found[known[key]] = value
        return found

    def _node(self, data: Any, path: str) -> Node:
        if not isinstance(data, Mapping):
            self.problems.append(f"{path}: a node must be an object with id and type, got {shorten(data)}")
            return Node("", "")
        fields = lift_config(self._fields(data, _NODE_KEYS, path))
        continues = fields.get("continueOnFail", False)
        if not isinstance(continues, bool):
            self.problems.append(f"{path}.continueOnFail: must be true or false, got {shorten(continues)}")
        config = self._config(fields.get("config"), f"{path}.config")
        return Node(
            self._name(fields.get("id"), f"{path}.id"),
            self._name(fields.get("type"), f"{path}.type"),
            self._ids(fields.get("inputs", ()), f"{path}.inputs"),
            config,
            bool(continues),
            self._retry(fields.get("retry"), f"{path}.retry"),
            self._duration(fields, "timeout", path),
            self._duration(fields, "delay", path) or 0,
            self._rate(fields.get("rateLimit"), f"{path}.rateLimit"),
        )

    def _link(self, raw: Sequence[Any], nodes: list[Node]) -> list[Node]:
        """Add the edges that `outputs` names to the inputs of their targets."""
        more: dict[str, list[str]] = {}
        known = {node.id for node in nodes}
        for n, (one, source) in enumerate(zip(raw, nodes, strict=True)):
            targets = one.get("outputs", ()) if isinstance(one, Mapping) else ()
            for m, target in enumerate(self._ids(targets, f"nodes[{n}].outputs")):
                if target not in known:
                    self._unknown(f"nodes[{n}].outputs[{m}]", target, known)
                more.setdefault(target, []).append(source.id)
        if not more:
            return nodes
        return [
            msgspec.structs.replace(one, inputs=tuple(dict.fromkeys([*one.inputs, *more.get(one.id, ())])))
            for one in nodes
        ]

    def _check_graph(self, nodes: list[Node], entry: Any) -> None:
        index: dict[str, int] = {}
        for n, one in enumerate(nodes):
            if one.id and index.setdefault(one.id, n) != n:
                self.problems.append(f"nodes[{n}].id: {one.id!r} is the id of nodes[{index[one.id]}] too")
        for n, one in enumerate(nodes):
            seen: set[str] = set()
            for m, parent in enumerate(one.inputs):
                if parent not in index:
                    self._unknown(f"nodes[{n}].inputs[{m}]", parent, index)
                elif parent in seen:
                    self.problems.append(f"nodes[{n}].inputs[{m}]: {parent!r} is listed twice")
                seen.add(parent)
        if self.problems or not nodes:
            return
        first = [one.id for one in nodes if not one.inputs]
        if not first:
            self.problems.append("nodes: no node without inputs, so none can start")
        if entry is not None and entry not in first:
            if entry in index:
                self.problems.append(f"entryNodeId: node {entry!r} has inputs, so it is not an entry")
            else:
                self._unknown("entryNodeId", entry, index)
        if (cycle := find_cycle(nodes)) is not None:
            self.problems.append(f"nodes[{index[cycle[0]]}].inputs: a cycle: {_show_cycle(cycle)}")
        if not self.problems:
            self._check_references(nodes, index)

    def _check_references(self, nodes: list[Node], index: Mapping[str, int]) -> None:
        """Check that every expression reads nodes that have ended before its own node starts."""
        read: dict[int, set[str]] = {}
        for n, one in enumerate(nodes):
            wanted = Template(one.config).nodes - set(one.inputs)
            for name in sorted(wanted - index.keys()):
                self._unknown(f"nodes[{n}].config", name, index)
            if wanted := wanted & index.keys():
                read[n] = wanted
        for n, name in find_later_nodes(nodes, index, read):
            self.problems.append(
                f"nodes[{n}].config: node {name!r} does not come before {nodes[n].id!r}; add it to inputs"
            )

    def _unknown(self, path: str, name: Any, known: Iterable[str]) -> None:
        hint = did_you_mean(name, known)
        self.problems.append(f"{path}: no node {shorten(name)}" + (f"; {hint}" if hint else ""))

    def _name(self, value: Any, path: str) -> str:
        try:
            return check_name(value, "name")
        except PenstockError as problem:
            self.problems.append(f"{path}: {problem}")
            return ""

    def _ids(self, value: Any, path: str) -> tuple[str, ...]:
        if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
            return tuple(value)
        self.problems.append(f"{path}: must be a list of node ids, got {shorten(value)}")
        return ()

    def _config(self, value: Any, path: str) -> Any:
        try:
            plain = to_plain(value, path)
            Template(plain)
        except ExpressionError as problem:
            self.problems.append(f"{path}: {problem}")
            return None
        except PenstockError as problem:
            self.problems.append(str(problem))
            return None
        return plain

    def _retry(self, value: Any, path: str) -> RetryPolicy | None:
        if value is None:
            return None
        try:
            return RetryPolicy.parse(value)
        except (PenstockError, ValueError) as problem:
            self.problems.append(f"{path}: {problem}")
            return None

    def _rate(self, value: Any, path: str) -> RateLimit | None:
        try:
            return read_rate_limit(value, None)
        except PenstockError as problem:
            self.problems.append(f"{path}: {str(problem).replace('rate_limit', 'rateLimit')}")
            return None

    def _concurrency(self, value: Any) -> int | None:
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
            return value
        self.problems.append(f"maxConcurrency: must be a whole number from 1, got {shorten(value)}")
        return None

    def _duration(self, fields: Mapping[str, Any], key: str, path: str) -> int | None:
        value = fields.get(key)
        if value is None and is_number(ms := fields.get(f"{key}Ms")):  # as a definition that was read shows it
            value = ms / 1000
        if value is None:
            return None
        try:
            return to_ms(value)
        except (BadDuration, TypeError) as problem:
            self.problems.append(f"{f'{path}.{key}' if path else key}: {problem}")
            return None

    def _triggers(self, value: Any) -> tuple[Trigger, ...]:
        if not isinstance(value, list | tuple):
            self.problems.append(f"triggers: must be a list, got {shorten(value)}")
            return ()
        found: list[Trigger] = []
        for n, one in enumerate(value):
            try:
                found.append(read_trigger(one))
            except PenstockError as problem:
                self.problems.append(f"triggers[{n}]: {problem}")
        return tuple(found)

    def _priority(self, fields: Mapping[str, Any]) -> int:
        try:
            return check_priority(fields.get("priority") or 0) or 0
        except PenstockError as problem:
            self.problems.append(f"priority: {problem}")
            return 0


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


def _show_cycle(cycle: Sequence[str]) -> str:
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


def find_warnings(dag: Dag) -> list[DagWarning]:
    """Return what is probably a mistake: nodes that `entry_node_id` does not lead to, or that nothing connects."""
    children: dict[str, list[str]] = {}
    for one in dag.nodes:
        for parent in one.inputs:
            children.setdefault(parent, []).append(one.id)
    if dag.entry_node_id is None:
        return [
            DagWarning(f"nodes[{n}]", f"{one.id!r} is connected to no other node; it starts with the run")
            for n, one in enumerate(dag.nodes)
            if len(dag.nodes) > 1 and not one.inputs and one.id not in children
        ]
    reached, left = {dag.entry_node_id}, [dag.entry_node_id]
    while left:
        for child in children.get(left.pop(), ()):
            if child not in reached:
                reached.add(child)
                left.append(child)
    return [
        DagWarning(f"nodes[{n}]", f"{one.id!r} cannot be reached from {dag.entry_node_id!r}; it starts on its own")
        for n, one in enumerate(dag.nodes)
        if one.id not in reached
    ]
