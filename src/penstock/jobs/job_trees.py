"""Job trees: `Node(…)`, or a dict as BullMQ's FlowProducer takes it, validated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ..core.durations import Duration, ms_to_duration, to_ms
from ..core.errors import BadArgument, DefinitionError
from ..core.near_match import check_keys
from ..core.retry import RetryOption
from ..core.text import any_of, shorten
from ..ports.unit import OnFailure

OnFailureWord = Literal["fail", "continue", "ignore", "remove", "wait"]
MAX_JOBS = 5_000  # a tree is one commit, which delays other commits
MAX_DEPTH = 50
# BullMQ's names. Without any of them, a parent waits for a failed child until it is retried or removed.
FAILURE_FLAGS = {
    "failParentOnFailure": OnFailure.FAIL,
    "continueParentOnFailure": OnFailure.CONTINUE,
    "ignoreDependencyOnFailure": OnFailure.IGNORE,
    "removeDependencyOnFailure": OnFailure.REMOVE,
}
_KEYS = {"name", "queue", "queueName", "data", "opts", "children"}
_OPTS = {"jobId", "delay", "priority", "attempts", "backoff", *FAILURE_FLAGS}


@dataclass(frozen=True)
class Node:
    """A job of a tree, for `app.jobs.enqueue_tree`. It runs when all its children have ended.

        Node(bind, {"title": "Report"}, children=[Node(render, {"page": n}) for n in range(3)])

    Args:
        job: A function marked with `@job`, or the name of a queue.
        input: What the handler receives.
        children: The jobs this one waits for.
        on_failure: What the parent does if this job finally fails: "fail" too, run at once ("continue"), run when the
            others have ended with the failure known ("ignore") or not ("remove"), or "wait" until the job is retried
            or removed.
        name: Name of the job, if several handlers share the queue.
        key: Idempotency key; becomes the id of the job. A tree whose root has a key is added once.
        delay: How long to wait before the job is due, once its children have ended.
        priority: Lower runs first.
        retry: Retry policy of this job instead of the handler's.
    """

    job: str | Callable[..., Any]
    input: Any = None
    children: Sequence[Node] = ()
    on_failure: OnFailureWord | OnFailure = "fail"
    name: str | None = None
    key: str | None = None
    delay: Duration | None = None
    priority: int | None = None
    retry: RetryOption | None = None

    def __post_init__(self) -> None:
        words = [one.value for one in OnFailure]
        if self.on_failure not in words:
            raise BadArgument(f"on_failure must be {any_of(words)}, got {shorten(self.on_failure)}")
        if isinstance(self.children, Node | str | Mapping) or not isinstance(self.children, Sequence):
            raise BadArgument(f"children must be a list of nodes, got {shorten(self.children)}")


class JobTree(msgspec.Struct, frozen=True):
    """The jobs that `app.jobs.enqueue_tree` added."""

    id: str
    queue: str
    name: str
    children: list[JobTree] = []


def read_tree(value: Node | Mapping[str, Any]) -> Node:
    """Return the tree as nodes at every level; raise BadArgument if it is too large."""
    tree = _read_node(value, "the tree", 1)
    count = sum(1 for _ in _walk(tree))
    if count > MAX_JOBS:
        raise BadArgument(f"the tree has {count} jobs; the limit is {MAX_JOBS}. Split it into several trees")
    return tree


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _walk(child)


def _read_node(value: Any, where: str, depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise BadArgument(f"{where} is nested deeper than {MAX_DEPTH} levels; check that no node contains itself")
    if isinstance(value, Node):
        node, children = value, value.children
    elif isinstance(value, Mapping):
        node, children = _read_mapping(value, where), value.get("children") or ()
    else:
        raise BadArgument(
            f"{where} must be a Node, or a dict with 'name', 'queue', 'data' and 'children', got {shorten(value)}"
        )
    if isinstance(children, str | Mapping) or not isinstance(children, Sequence):
        raise BadArgument(f"the children of {where} must be a list, got {shorten(children)}")
    nodes = [_read_node(child, f"child {n} of {where}", depth + 1) for n, child in enumerate(children, 1)]
    return _with_children(node, nodes)


def _with_children(node: Node, children: Sequence[Node]) -> Node:
    return Node(
        node.job, node.input, children, node.on_failure, node.name, node.key, node.delay, node.priority, node.retry
    )


def _read_mapping(value: Mapping[str, Any], where: str) -> Node:
    opts = value.get("opts") or {}
    try:
        check_keys(value, _KEYS, where)
        check_keys(opts, _OPTS, f"the opts of {where}")
    except DefinitionError as problem:
        raise BadArgument(str(problem)) from None
    queue = value.get("queueName", value.get("queue"))
    if not isinstance(queue, str):
        raise BadArgument(f"the 'queue' of {where} must be the name of a queue, got {shorten(queue)}")
    delay = opts.get("delay")
    return Node(
        queue,
        value.get("data"),
        on_failure=_read_on_failure(opts, where),
        name=value.get("name"),
        key=opts.get("jobId"),
        # BullMQ's delay is in milliseconds.
        delay=(ms_to_duration(delay) if isinstance(delay, int | float) else to_ms(delay) / 1000) if delay else None,
        priority=opts.get("priority"),
        retry=_read_retry(opts),
    )


def _read_on_failure(opts: Mapping[str, Any], where: str) -> OnFailure:
    flags = [flag for flag in FAILURE_FLAGS if opts.get(flag)]
    if len(flags) > 1:
        raise BadArgument(f"the opts of {where} have {' and '.join(flags)}; use only one of them")
    return FAILURE_FLAGS[flags[0]] if flags else OnFailure.WAIT


def _read_retry(opts: Mapping[str, Any]) -> RetryOption | None:
    attempts, backoff = opts.get("attempts"), opts.get("backoff")
    if attempts is None:
        return None
    if backoff is None:
        return {"attempts": attempts, "backoff": {"type": "fixed", "delayMs": 0, "jitter": False}}
    options = backoff if isinstance(backoff, Mapping) else {"type": "fixed", "delay": backoff}
    return {"attempts": attempts, "backoff": {"jitter": False, **options}}
