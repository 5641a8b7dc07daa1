"""`app.add_flow`: trees of jobs, added in one write."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..core.durations import to_ms
from ..core.errors import BadArgument, ConfigError
from ..core.retry import RetryPolicy
from ..flows.definition import definitions_in
from ..jobs.committer import Committer, Intent
from ..jobs.definition import Handler, JobDefinition
from ..jobs.engine import JobOptions
from ..jobs.tree import JobTree, Node, read_tree
from ..ports.unit import NewJob, OnFailure, Parent, Refused, Unit
from .enqueuing import Enqueuing
from .given import text


class Families:
    """Adds parents with their children."""

    def __init__(
        self,
        enqueuing: Enqueuing,
        committer: Committer,
        unit_id: Callable[[], str],
        handlers: Callable[[], Sequence[Handler]],
    ) -> None:
        self._enqueuing = enqueuing
        self._committer = committer
        self._unit_id = unit_id
        self._handlers = handlers

    async def add(self, given: Node | Mapping[str, Any], correlation_id: str | None) -> JobTree:
        """Adds the whole tree; nothing of it if a job of the root's id is there already."""
        jobs: list[NewJob] = []
        tree = self._plan(read_tree(given), None, None, text(correlation_id, "the correlation id"), jobs)
        _check_ids(jobs)
        unit = Unit(self._unit_id(), jobs=jobs)
        receipt = await self._committer.submit(Intent(lambda _v, _r: unit))
        if isinstance(receipt, Refused):
            raise BadArgument(
                f"there is a job {receipt.key!r} already, so the tree was not added: give that child another id or none"
            )
        for queue in dict.fromkeys(job.queue for job in jobs):
            await self._enqueuing.doubt(queue)
        return tree

    def _plan(
        self, node: Node, id: str | None, parent: Parent | None, correlation: str | None, jobs: list[NewJob]
    ) -> JobTree:
        """Parents come before their children. Ids of children follow from their parent's, so that a tree with an id is
        the same tree when it is added again."""
        queue, name = self.place(node.job, node.name)
        policy = RetryPolicy.of(node.retry) if node.retry is not None else None
        options = JobOptions(correlation, policy, waits=bool(node.children), parent=parent)
        job = self._enqueuing.job(
            queue,
            node.input,
            options,
            name=name,
            id=node.id if node.id is not None else id,
            delay_ms=to_ms(node.delay) if node.delay is not None else 0,
            priority=node.priority,
        )
        jobs.append(msgspec.structs.replace(job, waits=bool(node.children), parent=parent))
        children = [
            self._plan(child, f"{job.id}-c{n}", Parent(job.id, queue, OnFailure(child.on_failure)), correlation, jobs)
            for n, child in enumerate(node.children, 1)
        ]
        return JobTree(job.id, queue, job.name, children)

    def place(self, job: str | Callable[..., Any], name: str | None) -> tuple[str, str | None]:
        """The queue and the name of a job, given its queue or the function that handles it."""
        if not callable(job):
            return job, name
        fn = inspect.unwrap(job)
        given = [one.handler for one in definitions_in(job) if isinstance(one, JobDefinition)]
        known = [handler for handler in self._handlers() if handler.fn is fn or handler.fn is job]
        for handler in [*known, *given]:
            return handler.home, name or handler.name
        shown = getattr(job, "__name__", job)
        raise ConfigError(f"{shown!r} is not marked with @job, so no job can be made of it: mark it, or name a queue")


def _check_ids(jobs: Sequence[NewJob]) -> None:
    counts = Counter(job.id for job in jobs)
    for id, count in counts.items():
        if count > 1:
            raise BadArgument(f"the tree has {count} jobs with the id {id!r}: give each an id of its own, or none")
