"""The definition of a dag: data that is read, checked and stored.

`read_dag` accepts a mapping or JSON text. It reports every mistake at once, each with its path and the nearest known
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ..core.durations import is_number, to_ms
from ..core.errors import BadDuration, DagInvalid, ExpressionError, PenstockError
from ..core.ids import check_name
from ..core.near_match import did_you_mean
from ..core.options import check_priority
from ..core.payload import parse_json, to_plain
from ..core.retry import RetryPolicy
from ..core.text import MAX_SHOWN_CHARS, shorten
from ..handlers.options import read_rate_limit
from ..ports.unit import RateLimit
from .expressions import Template
from .graph import find_cycle, find_later_nodes, show_cycle
from .spellings import lift_config
from .triggers import Trigger, read_trigger

BRANCH = "branch"
MAX_NODES = 20_000
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
        if entry is not None and not isinstance(entry, str):
            self.problems.append(f"entryNodeId: must be the id of a node, got {shorten(entry)}")
        elif entry is not None and entry not in first:
            if entry in index:
                self.problems.append(f"entryNodeId: node {entry!r} has inputs, so it is not an entry")
            else:
                self._unknown("entryNodeId", entry, index)
        if (cycle := find_cycle(nodes)) is not None:
            self.problems.append(f"nodes[{index[cycle[0]]}].inputs: a cycle: {show_cycle(cycle)}")
        if not self.problems:
            self._check_references(nodes, index)
            self._check_branches(nodes)

    def _check_branches(self, nodes: list[Node]) -> None:
        """Check that the cases of each branch name nodes that follow it."""
        children: dict[str, list[str]] = {}
        for one in nodes:
            for parent in one.inputs:
                children.setdefault(parent, []).append(one.id)
        for n, one in enumerate(nodes):
            for path, id in list_next(one) or ():
                followers = children.get(one.id, [])
                if id not in followers:
                    hint = did_you_mean(id, followers) or f"nodes after it: {', '.join(followers) or 'none'}"
                    self.problems.append(f"nodes[{n}].config.{path}: {shorten(id)} does not follow {one.id!r}; {hint}")

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


def list_next(node: Node) -> list[tuple[str, str]] | None:
    """Return the nodes that a `branch` node may choose, each with the path in its config; None for any other node, and
    if an expression chooses."""
    config = node.config
    if node.type != BRANCH or not isinstance(config, dict) or not isinstance(config.get("cases"), list):
        return None
    lists = [(f"cases[{n}].next", case.get("next")) for n, case in enumerate(config["cases"]) if isinstance(case, dict)]
    lists.append(("default", config.get("default", [])))
    found = []
    for path, ids in lists:
        if not isinstance(ids, list) or not all(isinstance(id, str) and "{{" not in id for id in ids):
            return None
        found += [(f"{path}[{n}]", id) for n, id in enumerate(ids)]
    return found
