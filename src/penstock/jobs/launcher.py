"""The launcher: builds what a handler starts with `ctx.enqueue` and `ctx.start`, as jobs of its attempt's commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from ..commit.runtime import Runtime
from ..context.launch_requests import JobLaunch, RunLaunch
from ..core.argument_checks import check_optional_text, check_tags, resolve_due
from ..core.errors import DepthLimit
from ..core.ids import check_id, digest
from ..core.options import check_key, check_priority
from ..core.payload import pack, unpack
from ..core.retry import RetryPolicy
from ..core.schemas import convert_result
from ..durable.child_runs import ChildLaunch, ChildOutcome, ChildRequest
from ..handlers.registry import find_result_type
from ..ports.script_files import Deferred
from ..ports.unit import DELIVERIES, START, START_MANY, NewJob, RunParent
from ..worker.child_runs import ChildRuns, ManyStarts, RunStart
from ..worker.engines import RunDefinition
from ..worker.outcomes import Launch, Work, pack_record
from ..worker.routes import build_start_route
from .engine import JobOptions
from .job_builder import JobBuilder, public_id

PAGE_CHILDREN = 100  # of a call of many: one job starts them
PAGE_BYTES = 128 * 1024
WarnAboutQueue = Callable[[str, str | None], Awaitable[None]]


class Launcher:
    """Builds launches with the handlers of one App."""

    def __init__(
        self,
        runtime: Runtime,
        children: ChildRuns,
        find_definition: Callable[[Any], RunDefinition],
        warn_about_queue: WarnAboutQueue,
        max_depth: int,
    ) -> None:
        self._runtime = runtime
        self._children = children
        self._find_definition = find_definition
        self._max_depth = max_depth
        self._builder = JobBuilder(runtime)
        self._warn_about_queue = warn_about_queue

    def label(self, launch: JobLaunch | RunLaunch) -> str:
        """Return what is started, in words that a replay compares."""
        if isinstance(launch, RunLaunch):
            return _label(self._find_definition(launch.flow))
        queue, name = self._builder.resolve(launch.queue, launch.name)
        return f"queue {queue!r}" if name is None else f"job {name!r} of queue {queue!r}"

    def build(self, launch: JobLaunch | RunLaunch, work: Work, index: int) -> Launch:
        """Validate a launch and build its job. `index` counts the launches of the handler: it makes the id."""
        if isinstance(launch, RunLaunch):
            return self._build_run(launch, work, index)
        queue, name = self._builder.resolve(launch.queue, launch.name)
        options = JobOptions(
            check_optional_text(launch.correlation_id, "the correlation id") or work.correlation_id,
            RetryPolicy.parse(launch.retry) if launch.retry is not None else None,
            order_key=check_key(launch.order_key, "order_key") if launch.order_key is not None else None,
            trace=work.trace,
        )
        job = self._builder.build(
            queue,
            launch.input,
            options,
            name=name,
            key=launch.key,
            default_key=_make_id(queue, work, index),
            due=resolve_due(launch.delay, launch.at, self._runtime.clock),
            priority=launch.priority,
            parent=_parent(work),
        )
        return Launch(self.label(launch), public_id(job), job)

    async def warn(self, launches: Sequence[Launch]) -> None:
        """Warn about jobs that no handler takes: the queue is most likely misspelt."""
        for launch in launches:
            queue, name = launch.job.queue, launch.job.name
            if launch.is_run or queue == DELIVERIES or self._runtime.registry().job(queue, name) is not None:
                continue
            await self._warn_about_queue(queue, name if name != queue else None)

    def flow_name(self, flow: Any) -> str:
        """Return the name of a flow. Raise UnknownFlow if it is not loaded."""
        return self._find_definition(flow).name

    def build_children(self, request: ChildRequest, work: Work, key: str, call: str) -> ChildLaunch:
        """Validate a `ctx.call` or `ctx.call_many`, and build the jobs that start the children."""
        flow = self._find_definition(request.flow)
        up, run = work.parent, work.run_id
        assert run is not None
        depth = (up.depth if up is not None else 0) + 1
        if depth > self._max_depth:
            raise DepthLimit(
                f"{key} would start a run at depth {depth}; the setting max_depth allows {self._max_depth}. Check that "
                "the flow does not call itself without end"
            )
        link = RunParent(run, up.root if up is not None else run, depth, call)
        inputs = [_check_input(flow, one) for one in request.inputs]
        prefix = f"{flow.name}-{digest(b'%b %b %b' % (work.claim.scope.encode(), key.encode(), work.claim.payload))}"
        is_routed = False
        if not request.is_many:
            own, is_routed = _make_key(flow, request.key, inputs[0])
            prefix = check_id(own, "idempotency key") if own is not None else prefix
        start = RunStart(
            flow.name,
            prefix,
            inputs[0] if inputs and not request.is_many else None,
            check_optional_text(request.correlation_id, "the correlation id") or work.correlation_id,
            run,
            check_priority(request.priority) if request.priority else 0,
            0,
            check_tags(request.tags, "tags"),
            link,
            flow.kind,
            work.trace,
        )
        if is_routed:
            return ChildLaunch(flow.name, prefix, 1, [build_start_route(start, run, id=f"start.{call}")])
        if not request.is_many:
            return ChildLaunch(flow.name, prefix, 1, [NewJob(f"start.{call}", DELIVERIES, START, pack_record(start))])
        jobs = [
            NewJob(
                f"start.{call}.p{page}",
                DELIVERIES,
                START_MANY,
                pack_record(ManyStarts(start, part, first, page, work.claim.scope, key)),
            )
            for page, (first, part) in enumerate(_paginate(inputs))
        ]
        return ChildLaunch(flow.name, prefix, len(inputs), jobs)

    def convert_result(self, request: ChildRequest, value: Any, run: str) -> Any:
        """Return the result of a child as a value of its type. Raise SchemaViolation if it does not match."""
        type_ = request.result
        if type_ is None and callable(request.flow):
            type_ = find_result_type(self._runtime.registry(), request.flow)
        return convert_result(value, type_, f"the result of run {run!r}")

    async def read_outcomes(self, run: str, call: str, prefix: str, count: int) -> list[ChildOutcome]:
        """Return how the children of a call ended, in order."""
        return await self._children.read_outcomes(run, call, prefix, count)

    async def read_outcome(self, run: str) -> ChildOutcome | None:
        """Return how a child has ended by now; None if it is gone or open."""
        return await self._children.read_outcome(run)

    def _build_run(self, launch: RunLaunch, work: Work, index: int) -> Launch:
        runtime = self._runtime
        flow = self._find_definition(launch.flow)
        value = _check_input(flow, launch.input)
        (key, is_routed), up = _make_key(flow, launch.key, value), work.parent
        run = check_id(key, "idempotency key") if key is not None else _make_id(flow.name, work, index)
        link = RunParent(work.run_id, up.root if up is not None else work.run_id) if work.run_id is not None else None
        start = RunStart(
            flow.name,
            run,
            value,
            check_optional_text(launch.correlation_id, "the correlation id") or work.correlation_id,
            _parent(work),
            check_priority(launch.priority) if launch.priority else 0,
            resolve_due(launch.delay, launch.at, runtime.clock),
            check_tags(launch.tags, "tags"),
            link,
            flow.kind,
            work.trace,
        )
        if is_routed:
            return Launch(_label(flow), run, build_start_route(start, _parent(work)), is_run=True)
        job = NewJob(f"start.{_make_id(flow.name, work, index)}", DELIVERIES, START, pack_record(start))
        return Launch(_label(flow), run, job, is_run=True)


def _make_key(definition: RunDefinition, key: str | None, input: Any) -> tuple[str | None, bool]:
    """Return the key of a run, and whether a worker must evaluate it."""
    try:
        return key if key is not None else definition.make_key(input), False
    except Deferred:
        return None, True


def _make_id(name: str, work: Work, index: int) -> str:
    """Return the id of a launch: the same in every attempt, and another one if the job runs again with other input."""
    claim = work.claim
    return f"{name}-{digest(b'%b %d %b' % (claim.scope.encode(), index, claim.payload))}"


def _label(definition: RunDefinition) -> str:
    return f"{definition.kind} {definition.name!r}"


def _check_input(definition: RunDefinition, input: Any) -> Any:
    """Return the input of a run as it is stored. Raise if its flow does not accept it."""
    value = unpack(pack(input, f"the input of {_label(definition)}"))
    definition.check_start(value)
    return value


def _paginate(inputs: list[Any]) -> Iterator[tuple[int, list[Any]]]:
    """Yield the inputs of the children that one job starts, each page with the number of its first child."""
    page: list[Any] = []
    first = size = 0
    for n, one in enumerate(inputs):
        length = len(pack(one))
        if page and (len(page) == PAGE_CHILDREN or size + length > PAGE_BYTES):
            yield first, page
            page, first, size = [], n, 0
        page.append(one)
        size += length
    yield first, page


def _parent(work: Work) -> str:
    return work.run_id if work.run_id is not None else work.claim.job
