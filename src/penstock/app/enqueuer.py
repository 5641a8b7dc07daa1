"""Enqueuing jobs and trees of jobs: validate the input, apply the handler's options, command the enqueue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from ..commit.command_sink import CommandSink
from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.argument_checks import check_optional_text, resolve_due
from ..core.errors import BadArgument, PenstockError
from ..core.options import check_key
from ..core.retry import RetryOption, RetryPolicy
from ..handlers.options import KeepOption, read_keep
from ..jobs.engine import JobOptions
from ..jobs.job_builder import JobBuilder, JobPlan, build_route, public_id
from ..jobs.job_trees import JobTree, Node, read_tree
from ..ports.unit import Committed, Dedupe, NewJob, OnFailure, Parent, Refused, Unit
from .advice import Advice
from .arguments import check_list

MAX_JOBS_PER_COMMIT = 200
MAX_JOBS_IN_MEMORY = 10_000  # of one call; with more, each job is built twice: to check them all, then to add a few


class EnqueuedJob(str):
    """The id of a job. `existing` is True if its `key` or its `dedupe` key was used before: nothing was added.

    Commands and routes show it. `app.enqueue` returns a plain `str`, which every encoder accepts."""

    __slots__ = ("existing",)
    existing: bool

    def __new__(cls, id: str, existing: bool = False) -> EnqueuedJob:
        job = super().__new__(cls, id)
        job.existing = existing
        return job


class JobEnqueuer:
    """Enqueues jobs through one sink, with the options of their handler if it is known here."""

    def __init__(self, runtime: Runtime, sink: CommandSink, advice: Advice) -> None:
        self._runtime = runtime
        self._builder = JobBuilder(runtime)
        self.build = self._builder.build
        self._sink = sink
        self._advice = advice

    async def enqueue(
        self,
        queue: str | Callable[..., Any],
        inputs: Sequence[Any],
        *,
        name: str | None = None,
        key: str | None = None,
        default_key: str | None = None,
        due: int = 0,
        priority: int | None = None,
        retry: RetryOption | None = None,
        correlation_id: str | None = None,
        keep_completed: KeepOption | None = None,
        keep_failed: KeepOption | None = None,
        dedupe: Dedupe | None = None,
        order_key: str | None = None,
    ) -> list[str]:
        """Enqueue a job for each input and return the ids in order.

        A key that exists adds nothing. For a job whose dedupe key is taken, the id is that of the job that holds it.
        """
        queue, name = self.resolve(queue, name)
        options = JobOptions(
            check_optional_text(correlation_id, "the correlation id"),
            RetryPolicy.parse(retry) if retry is not None else None,
            keep_completed=read_keep(keep_completed, "keep_completed") if keep_completed is not None else None,
            keep_failed=read_keep(keep_failed, "keep_failed") if keep_failed is not None else None,
            order_key=check_key(order_key, "order_key") if order_key is not None else None,
        )
        make = partial(
            self.build, name=name, key=key, default_key=default_key, due=due, priority=priority, dedupe=dedupe
        )
        build = partial(_build_each, build=lambda input: make(queue, input, options))
        given = check_list(inputs, "inputs")
        with self._runtime.produce("enqueue", queue) as span:
            jobs = build(given, 0, len(given)) if len(given) <= MAX_JOBS_IN_MEMORY else None
            if jobs is None:
                await self._check_many(given, build)
            ids: list[str] = []
            for start in range(0, len(given), MAX_JOBS_PER_COMMIT):
                end = min(start + MAX_JOBS_PER_COMMIT, len(given))
                ids += await self._add(jobs[start:end] if jobs is not None else build(given, start, end))
            if len(ids) == 1:
                span.set("messaging.message.id", ids[0])
            else:
                span.set("messaging.batch.message_count", len(ids))
        await self.warn_if_unhandled(queue, name)
        return ids

    async def _check_many(self, given: list[Any], build: Callable[[list[Any], int, int], list[NewJob]]) -> None:
        """Check all inputs before the first job is added, and let other tasks run meanwhile."""
        if self._sink.is_deferred:
            raise BadArgument(
                f"with tx=, a call takes at most {MAX_JOBS_IN_MEMORY:,} inputs, got {len(given):,}; call it several "
                "times"
            )
        for start in range(0, len(given), MAX_JOBS_PER_COMMIT):
            build(given, start, min(start + MAX_JOBS_PER_COMMIT, len(given)))
            await asyncio.sleep(0)

    async def _add(self, jobs: list[NewJob]) -> list[str]:
        """Add jobs with one commit, and return their ids: for a job whose dedupe key is taken, that of the holder."""
        ids, unit = [public_id(job) for job in jobs], Unit(self._runtime.new_unit_id(), jobs=jobs)
        receipt = await self._sink.submit(CommitRequest(lambda _v, _r: unit))
        if isinstance(receipt, Committed):
            for position, is_new in enumerate(receipt.added):
                if not is_new:
                    ids[position] = EnqueuedJob(receipt.deduplicated.get(position, ids[position]), existing=True)
        return ids

    async def warn_if_unhandled(self, queue: str, name: str | None = None) -> None:
        """Warn about a job that no handler takes: its queue or its name is most likely misspelt."""
        if self._runtime.registry().job(queue, name or "*") is None:
            await self._advice.warn_about_queue(queue, name)

    def resolve(self, job: str | Callable[..., Any], name: str | None) -> tuple[str, str | None]:
        """Return the queue and the name of a job, from a queue's name or from the function marked with `@job`."""
        return self._builder.resolve(job, name)

    async def enqueue_tree(self, tree: Node | Mapping[str, Any], correlation_id: str | None) -> JobTree:
        """Enqueue a whole tree; nothing of it if a job with the root's id exists."""
        plans: list[JobPlan] = []
        root, correlation = read_tree(tree), check_optional_text(correlation_id, "the correlation id")
        with self._runtime.produce("enqueue", self.resolve(root.job, root.name)[0]) as span:
            planned = self._plan(root, None, None, correlation, plans)
            _check_ids(plans)
            span.set("messaging.batch.message_count", len(plans))
            is_routed = any(plan.is_routed for plan in plans)
            jobs = [build_route(plans)] if is_routed else [plan.build(self._runtime.bodies) for plan in plans]
            unit = Unit(self._runtime.new_unit_id(), jobs=jobs)
            receipt = await self._sink.submit(CommitRequest(lambda _v, _r: unit))
        if isinstance(receipt, Refused):
            raise BadArgument(
                f"job tree not added: a job with key {receipt.key!r} already exists. Use another key for it, or "
                "omit the key"
            )
        for queue in dict.fromkeys(plan.queue for plan in plans):
            await self.warn_if_unhandled(queue)
        return planned

    def _plan(
        self, node: Node, id: str | None, parent: Parent | None, correlation: str | None, plans: list[JobPlan]
    ) -> JobTree:
        """Add the jobs of a node, parents before children.

        The ids of children follow from their parent's, so that a tree with a key is the same tree when it is added
        again.
        """
        queue, name = self.resolve(node.job, node.name)
        policy = RetryPolicy.parse(node.retry) if node.retry is not None else None
        options = JobOptions(correlation, policy, has_children=bool(node.children), parent=parent)
        plan = self._builder.plan(
            queue,
            node.input,
            options,
            name=name,
            key=node.key,
            default_key=id,
            due=resolve_due(node.delay, None, self._runtime.clock),
            priority=node.priority,
        )
        if plan.options.order_key is not None:
            raise BadArgument(
                f"job {plan.name!r} of queue {queue!r} has an order_key and cannot be part of a job tree; enqueue it "
                "alone, or use a handler without order_key"
            )
        plans.append(msgspec.structs.replace(plan, waits_for_children=bool(node.children)))
        children = []
        for n, child in enumerate(node.children, 1):
            up = Parent(plan.id, queue, OnFailure(child.on_failure))
            children.append(self._plan(child, f"{plan.id}-c{n}", up, correlation, plans))
        return JobTree(plan.id, queue, plan.name, children)


def _build_each(inputs: list[Any], start: int, end: int, build: Callable[[Any], NewJob]) -> list[NewJob]:
    """Build a job for each of some inputs; an error names the item it is about."""
    jobs: list[NewJob] = []
    for n in range(start, end):
        try:
            jobs.append(build(inputs[n]))
        except PenstockError as problem:
            if len(inputs) > 1:
                problem.args = (f"item {n} of {len(inputs)}: {problem} (no job was added)", *problem.args[1:])
            raise
    return jobs


def _check_ids(plans: Sequence[JobPlan]) -> None:
    counts = Counter(plan.id for plan in plans)
    for id, count in counts.items():
        if count > 1:
            raise BadArgument(
                f"the tree has {count} jobs with the key {id!r}; use a different key for each, or omit the keys"
            )
