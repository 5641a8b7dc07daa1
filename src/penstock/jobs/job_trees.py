"""Trees of jobs as people write them: `Node(…)`, or the dict that BullMQ's FlowProducer takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ..core.durations import Duration, ms_to_duration, to_ms
from ..core.errors import BadArgument, DefinitionError
from ..core.near_match import check_keys
from ..core.retry import RetryOption
from ..ports.unit import OnFailure

OnFailureWord = Literal["fail", "continue", "ignore", "remove", "wait"]
MAX_JOBS = 5_000  # a tree is one write, and everyone else waits for it
MAX_DEPTH = 50
# What BullMQ calls them. Without one of these, a parent waits for a child that failed until it is retried or removed.
FLAGS = {
    "failParentOnFailure": OnFailure.FAIL,
    "continueParentOnFailure": OnFailure.CONTINUE,
    "ignoreDependencyOnFailure": OnFailure.IGNORE,
    "removeDependencyOnFailure": OnFailure.REMOVE,
}
_KEYS = {"name", "queue", "queueName", "data", "opts", "children"}
_OPTS = {"jobId", "delay", "priority", "attempts", "backoff", *FLAGS}


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
        id: Id of the job. A tree whose root has an id is added once.
        delay: How long to wait before the job is due, once its children have ended.
        priority: Lower runs first.
        retry: Retry policy of this job instead of the handler's.
    """

    job: str | Callable[..., Any]
    input: Any = None
    children: Sequence[Node] = ()
    on_failure: OnFailureWord | OnFailure = "fail"
    name: str | None = None
    id: str | None = None
    delay: Duration | None = None
    priority: int | None = None
    retry: RetryOption | None = None

    def __post_init__(self) -> None:
        words = [one.value for one in OnFailure]
        if self.on_failure not in words:
            raise BadArgument(f"on_failure={self.on_failure!r}: write one of {', '.join(words)}")
        if isinstance(self.children, Node | str | Mapping) or not isinstance(self.children, Sequence):
            raise BadArgument(f"children={self.children!r}: give a list of nodes")


class JobTree(msgspec.Struct, frozen=True):
    """The jobs that `app.jobs.enqueue_tree` added."""

    id: str
    queue: str
    name: str
    children: list[JobTree] = []


def read_tree(given: Node | Mapping[str, Any]) -> Node:
    """Return the tree as nodes at every level; raise BadArgument if it is too large."""
    tree = _read(given, "the tree", 1)
    many = sum(1 for _ in _all(tree))
    if many > MAX_JOBS:
        raise BadArgument(f"the tree has {many} jobs and a tree at most {MAX_JOBS}: add it as several trees")
    return tree


def _all(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _all(child)


def _read(given: Any, where: str, depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise BadArgument(f"{where} is more than {MAX_DEPTH} levels deep: does a node hold itself?")
    if isinstance(given, Node):
        own, children = given, given.children
    elif isinstance(given, Mapping):
        own, children = _read_mapping(given, where), given.get("children") or ()
    else:
        raise BadArgument(f"{where} is {given!r}: give a Node, or a dict with 'name', 'queue', 'data' and 'children'")
    if isinstance(children, str | Mapping) or not isinstance(children, Sequence):
        raise BadArgument(f"the children of {where} are {children!r}: give a list")
    read = [_read(child, f"child {n} of {where}", depth + 1) for n, child in enumerate(children, 1)]
    return _with_children(own, read)


def _with_children(node: Node, children: Sequence[Node]) -> Node:
    return Node(
        node.job, node.input, children, node.on_failure, node.name, node.id, node.delay, node.priority, node.retry
    )


def _read_mapping(given: Mapping[str, Any], where: str) -> Node:
    opts = given.get("opts") or {}
    try:
        check_keys(given, _KEYS, where)
        check_keys(opts, _OPTS, f"the opts of {where}")
    except DefinitionError as problem:
        raise BadArgument(str(problem)) from None
    queue = given.get("queueName", given.get("queue"))
    if not isinstance(queue, str):
        raise BadArgument(f"the queue of {where} is {queue!r}: give its name as 'queue'")
    delay = opts.get("delay")
    return Node(
        queue,
        given.get("data"),
        on_failure=_on_failure(opts, where),
        name=given.get("name"),
        id=opts.get("jobId"),
        # BullMQ counts milliseconds.
        delay=(ms_to_duration(delay) if isinstance(delay, int | float) else to_ms(delay) / 1000) if delay else None,
        priority=opts.get("priority"),
        retry=_retry(opts),
    )


def _on_failure(opts: Mapping[str, Any], where: str) -> OnFailure:
    chosen = [flag for flag in FLAGS if opts.get(flag)]
    if len(chosen) > 1:
        raise BadArgument(f"the opts of {where} have {' and '.join(chosen)}: give one of them")
    return FLAGS[chosen[0]] if chosen else OnFailure.WAIT


def _retry(opts: Mapping[str, Any]) -> RetryOption | None:
    attempts, backoff = opts.get("attempts"), opts.get("backoff")
    if attempts is None:
        return None
    if backoff is None:
        return {"attempts": attempts, "backoff": {"type": "fixed", "delayMs": 0, "jitter": False}}
    given = backoff if isinstance(backoff, Mapping) else {"type": "fixed", "delay": backoff}
    return {"attempts": attempts, "backoff": {"jitter": False, **given}}
