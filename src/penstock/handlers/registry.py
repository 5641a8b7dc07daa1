"""The registry: all flows and jobs of a process, checked against each other and frozen."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as dataclass_replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec.structs import replace

from ..core.errors import ConfigError, DefinitionError, PenstockError, UnknownFlow
from ..core.ids import digest
from ..core.near_match import did_you_mean, near_matches
from ..core.schemas import UnknownFields, Validator, make_validator
from ..core.text import shorten
from ..ports.unit import FLOW
from ..schedules.spec import ScheduleSpec, Target
from .decorators import FlowDefinition, StepDefinition, read_definitions
from .discovery import Definition, DiscoveredHandler, LoadProblem
from .entities import EntityDefinition
from .fingerprint import compute_fingerprint, fingerprint_definition
from .handler import Handler, JobDefinition
from .nodes import NodeDefinition
from .source_hash import SourceHashes
from .trigger_table import TableStep, TriggerTable
from .webhooks import Webhook

H = TypeVar("H", bound=Handler)


@dataclass(frozen=True)
class Flow:
    """A flow ready to run: its trigger table and its steps."""

    definition: FlowDefinition
    table: TriggerTable
    steps: Mapping[str, StepDefinition]
    event_validators: Mapping[str, Validator]

    @property
    def kind(self) -> str:
        return FLOW

    @property
    def name(self) -> str:
        return self.definition.name

    def check_start(self, value: Any) -> None:
        """Raise SchemaViolation if a run cannot start with this input."""
        self.definition.entry.handler.check_start(value, f"flow {self.name!r}")

    def make_key(self, value: Any) -> str | None:
        """Return the id that the flow declares for a run with this input; None for a new one."""
        return self.definition.entry.handler.make_key(value, self.name)


def find_flow(registry: Registry, flow: str | Callable[..., Any], others: Iterable[str] = ()) -> Flow:
    """Return the flow of a name, or of a function marked with `@flow`. `others` may have been meant too."""
    if isinstance(flow, str):
        return registry.flow(flow, others)
    for definition in read_definitions(flow):
        if isinstance(definition, FlowDefinition):
            return registry.flow(definition.name)
    raise ConfigError(f"{shorten(getattr(flow, '__name__', flow))} is not a flow; decorate it with @flow")


def find_result_type(registry: Registry, flow: Callable[..., Any] | None) -> Any:
    """Return the type of a flow's result: the return annotation of its function if the flow has one step, else None."""
    if flow is None or len((known := find_flow(registry, flow)).steps) > 1:
        return None
    return read_return_type(known.definition.entry.handler.fn)


def read_return_type(fn: Callable[..., Any]) -> Any:
    """Return the return annotation of a function, None if it has none that can be read."""
    try:
        return typing.get_type_hints(fn).get("return")
    except Exception:  # a name only known to a type checker
        return None


@dataclass(frozen=True)
class Registry:
    """The flows and jobs this process knows. It never changes; a reload builds a new one."""

    flows: Mapping[str, Flow] = field(default_factory=dict)
    jobs: Mapping[tuple[str, str], JobDefinition] = field(default_factory=dict)
    found: tuple[DiscoveredHandler, ...] = ()
    problems: tuple[LoadProblem, ...] = ()
    schedules: Mapping[str, tuple[ScheduleSpec, Target]] = field(default_factory=dict)
    webhooks: Mapping[str, Webhook] = field(default_factory=dict)  # by path
    nodes: Mapping[str, NodeDefinition] = field(default_factory=dict)  # the executors of dags, by type
    entities: Mapping[str, EntityDefinition] = field(default_factory=dict)  # by name

    def flow(self, name: str, others: Iterable[str] = ()) -> Flow:
        """Return a flow by name, or raise UnknownFlow with the nearest of the known names and of `others`."""
        flow = self.flows.get(name)
        if flow is None:
            near = _nearest(name, [*self.flows, *others], "flows")
            raise UnknownFlow(f"no flow named {shorten(name)}; {near}{self._hint()}")
        return flow

    def job(self, queue: str, name: str) -> Handler | None:
        """Return the handler of a job, or None."""
        found = self.jobs.get((queue, name)) or self.jobs.get((queue, "*"))
        return found.handler if found is not None else None

    def step(self, flow: str, name: str) -> StepDefinition | None:
        """Return a step of a flow, or None."""
        known = self.flows.get(flow)
        return known.steps.get(name) if known is not None else None

    def handlers(self) -> list[Handler]:
        """Return every handler once."""
        steps = {id(s.handler): s.handler for flow in self.flows.values() for s in flow.steps.values()}
        jobs = {id(j.handler): j.handler for j in self.jobs.values()}
        nodes = [one.handler for one in self.nodes.values()]
        return [*steps.values(), *jobs.values(), *nodes, *(one.handler for one in self.entities.values())]

    def queues(self) -> list[str]:
        """Return the queues of all handlers."""
        return sorted({handler.queue_name for handler in self.handlers()})

    @cached_property
    def heard_kinds(self) -> frozenset[str]:
        """The kinds of events that steps, declared waits and flows listen to."""
        kinds: set[str] = set()
        for item in self.found:  # also those that no flow reaches
            if isinstance(item.definition, StepDefinition):
                kinds.update(item.definition.kinds)
        for flow in self.flows.values():
            kinds.update(flow.definition.accepts, (on.kind for on in flow.definition.start_on))
            for step in flow.steps.values():
                kinds.update(step.kinds, step.compensate_on)
                if step.handler.wait is not None and step.handler.wait.event is not None:
                    kinds.add(step.handler.wait.event)
        return frozenset(kinds)

    @cached_property
    def handler_fingerprints(self) -> Mapping[str, str]:
        """A fingerprint of each handler, by file and function: its source files and its options."""
        hashes, found = SourceHashes(), dict[str, list[str]]()
        for item in self.found:
            sources = item.sources or hashes.compute(Path(item.file)) or compute_fingerprint(_function_of(item))
            found.setdefault(handler_name(item), []).append(fingerprint_definition(item.definition, sources))
        return {name: digest("".join(sorted(found[name])).encode()) for name in sorted(found)}

    @cached_property
    def fingerprint(self) -> str:
        """A fingerprint of all handlers: the same in every process with the same code and options."""
        return digest("\0".join(f"{name}={found}" for name, found in self.handler_fingerprints.items()).encode())

    def _hint(self) -> str:
        found = len(self.problems)
        return f" ({found} problem{'s' if found > 1 else ''} found while loading: {self.problems[0]})" if found else ""


def handler_name(item: DiscoveredHandler) -> str:
    """Return the file and function of a handler, such as `orders/charge.charge`."""
    return item.worker_id if item.worker_id == item.export else f"{item.worker_id}.{item.export}"


def _function_of(item: DiscoveredHandler) -> Callable[..., Any]:
    definition = item.definition
    handler = definition.entry.handler if isinstance(definition, FlowDefinition) else definition.handler
    return handler.fn


def _nearest(name: str, known: Iterable[str], what: str) -> str:
    names = sorted(known)
    near = near_matches(name, names, 3)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"known {what}: {', '.join(names)}" if names else f"no {what} are defined"


def build_registry(
    found: list[DiscoveredHandler], problems: list[LoadProblem], unknown_fields: UnknownFields = "refuse"
) -> Registry:
    """Check definitions against each other. Invalid ones are left out and reported; the rest works.

    `unknown_fields` is for handlers that do not have the option.
    """
    problems = list(problems)
    if unknown_fields == "ignore":
        found = [dataclass_replace(item, definition=_ignore_unknown_fields(item.definition)) for item in found]
    flows, steps, jobs = _group(found, problems)
    ready: dict[str, Flow] = {}
    for name, definition in flows.items():
        try:
            ready[name] = _build_flow(definition, steps, problems)
        except PenstockError as problem:
            problems.append(_to_problem(problem, definition.entry.handler))
    _check_unreachable(steps, ready, problems)
    nodes, entities = _group_nodes(found, problems), _group_entities(found, ready, problems)
    others = [*(job.handler for job in jobs.values()), *(node.handler for node in nodes.values())]
    others += [one.handler for one in entities.values()]
    _check_limits([*_all_handlers(ready), *others], problems)
    schedules, webhooks = _schedules(ready, jobs, problems), _webhooks(ready, problems)
    return Registry(
        MappingProxyType(ready),
        MappingProxyType(jobs),
        tuple(found),
        tuple(problems),
        MappingProxyType(schedules),
        MappingProxyType(webhooks),
        MappingProxyType(nodes),
        MappingProxyType(entities),
    )


def _ignore_unknown_fields(definition: Definition) -> Definition:
    if isinstance(definition, FlowDefinition):
        entry = definition.entry
        return dataclass_replace(definition, entry=dataclass_replace(entry, handler=_make_lenient(entry.handler)))
    if isinstance(definition, NodeDefinition):
        return dataclass_replace(definition, handler=_make_lenient(definition.handler))
    return dataclass_replace(definition, handler=_make_lenient(definition.handler))


def _make_lenient(handler: H) -> H:
    return dataclass_replace(handler, unknown_fields="ignore") if handler.unknown_fields is None else handler


def _webhooks(flows: Mapping[str, Flow], problems: list[LoadProblem]) -> dict[str, Webhook]:
    """Return the declared webhooks by path."""
    found: dict[str, Webhook] = {}
    owners: dict[str, Handler] = {}
    for flow in flows.values():
        webhook, handler = flow.definition.webhook, flow.definition.entry.handler
        if webhook is None:
            continue
        if owners.setdefault(webhook.path, handler) is not handler:
            message = (
                f"webhook {webhook.path!r} is defined twice, first at {owners[webhook.path].where}; set a different "
                "path for one of them"
            )
            problems.append(LoadProblem("duplicate_webhook", message, handler.file, handler.line))
            continue
        found[webhook.path] = webhook
    return found


def _schedules(
    flows: Mapping[str, Flow], jobs: Mapping[tuple[str, str], JobDefinition], problems: list[LoadProblem]
) -> dict[str, tuple[ScheduleSpec, Target]]:
    """Return the schedules of the definitions; the default id is the name of the flow or job it starts."""
    starts = [flow.definition for flow in flows.values()]
    declared_schedules = [(flow.schedule, flow.entry.handler, Target(flow=flow.name)) for flow in starts]
    for job in jobs.values():
        target = Target(queue=job.handler.queue_name, name=None if job.any_name else job.handler.name)
        declared_schedules.append((job.schedule, job.handler, target))
    found: dict[str, tuple[ScheduleSpec, Target]] = {}
    owners: dict[str, Handler] = {}
    for declared, handler, target in declared_schedules:
        if declared is None:
            continue
        id = declared.id or target.flow or handler.name
        if owners.setdefault(id, handler) is not handler:
            message = (
                f"schedule {id!r} is defined twice, first at {owners[id].where}; set a different id for one of them"
            )
            problems.append(LoadProblem("duplicate_schedule", message, handler.file, handler.line))
            continue
        found[id] = (declared.spec, replace(target, input=declared.input, priority=declared.priority))
    return found


def _group(
    found: list[DiscoveredHandler], problems: list[LoadProblem]
) -> tuple[dict[str, FlowDefinition], list[StepDefinition], dict[tuple[str, str], JobDefinition]]:
    flows: dict[str, FlowDefinition] = {}
    steps: list[StepDefinition] = []
    jobs: dict[tuple[str, str], JobDefinition] = {}
    for item in found:
        match item.definition:
            case FlowDefinition() as definition:
                twin = flows.setdefault(definition.name, definition)
                if twin is not definition:
                    problems.append(_duplicate("flow", definition.name, definition.entry.handler, twin.entry.handler))
            case StepDefinition() as definition:
                steps.append(definition)
            case JobDefinition() as definition:
                key = (definition.handler.queue_name, "*" if definition.any_name else definition.handler.name)
                other = jobs.setdefault(key, definition)
                if other is not definition:
                    problems.append(_duplicate("job", "/".join(key), definition.handler, other.handler))
    return flows, _promote_entries(flows, steps, problems), jobs


def _group_nodes(found: list[DiscoveredHandler], problems: list[LoadProblem]) -> dict[str, NodeDefinition]:
    """Return the executors of dags by type."""
    nodes: dict[str, NodeDefinition] = {}
    for item in found:
        if isinstance(item.definition, NodeDefinition):
            definition = item.definition
            twin = nodes.setdefault(definition.type, definition)
            if twin is not definition:
                problems.append(_duplicate("node", definition.type, definition.handler, twin.handler))
    return nodes


def _group_entities(
    found: list[DiscoveredHandler], flows: Mapping[str, Flow], problems: list[LoadProblem]
) -> dict[str, EntityDefinition]:
    """Return the entities by name. A flow may not have the same name: lists of runs show both."""
    entities: dict[str, EntityDefinition] = {}
    for item in found:
        if not isinstance(item.definition, EntityDefinition):
            continue
        definition = item.definition
        twin = entities.setdefault(definition.name, definition)
        if twin is not definition:
            problems.append(_duplicate("entity", definition.name, definition.handler, twin.handler))
        elif definition.name in flows:
            message = f"entity {definition.name!r} has the name of a flow; rename one of them"
            problems.append(LoadProblem("duplicate_entity", message, definition.handler.file, definition.handler.line))
            del entities[definition.name]
    return entities


def _promote_entries(
    flows: dict[str, FlowDefinition], steps: list[StepDefinition], problems: list[LoadProblem]
) -> list[StepDefinition]:
    """Add a flow for each step that starts one, unless another step names it. Return the other steps."""
    members = [*steps, *(flow.entry for flow in flows.values())]
    named = {name for step in members for name in (step.compensation, step.on_timeout)}
    left: list[StepDefinition] = []
    for step in steps:
        if not step.can_start or (step.name in named and not step.start_on):
            left.append(step)
            continue
        definition = FlowDefinition(step.name, dataclass_replace(step, flow=step.name), start_on=step.start_on)
        twin = flows.setdefault(step.name, definition)
        if twin is not definition:
            problems.append(_duplicate("flow", step.name, step.handler, twin.entry.handler))
    return left


def _build_flow(definition: FlowDefinition, steps: list[StepDefinition], problems: list[LoadProblem]) -> Flow:
    members = _members(definition, steps, problems)
    _drop_unmet_joins(definition, members, problems)
    _check_named_steps(definition, members)
    checks = {kind: make_validator(schema, f"the data of {kind}") for kind, schema in definition.events.items()}
    steps_of_table = {name: _table_step(step) for name, step in members.items()}
    table = TriggerTable(definition.name, definition.entry.name, steps_of_table, definition.version)
    return Flow(definition, table, MappingProxyType(members), MappingProxyType(checks))


def _table_step(step: StepDefinition) -> TableStep:
    handler = step.handler
    return TableStep(
        handler.queue_name,
        step.kinds,
        step.mode,
        handler.priority,
        handler.delay_ms,
        step.compensation,
        step.compensate_on,
    )


def _members(
    definition: FlowDefinition, steps: list[StepDefinition], problems: list[LoadProblem]
) -> dict[str, StepDefinition]:
    """Return the first step, the steps that name this flow, and those reachable from them through emits."""
    members = {definition.entry.name: definition.entry}
    kinds = {*definition.accepts, *(definition.entry.emits or ())}
    named = {definition.entry.compensation, definition.entry.on_timeout}
    left = [step for step in steps if step.flow in (None, definition.name)]
    joined = True
    while joined:
        joined = False
        for step in left[:]:
            if step.flow is None and kinds.isdisjoint(step.kinds) and step.name not in named:
                continue
            left.remove(step)
            joined = True
            twin = members.setdefault(step.name, step)
            if twin is not step:
                problems.append(_duplicate(f"step of flow {definition.name!r}", step.name, step.handler, twin.handler))
                continue
            kinds.update(step.emits or ())
            named.update((step.compensation, step.on_timeout))
    return members


def _drop_unmet_joins(
    definition: FlowDefinition, members: dict[str, StepDefinition], problems: list[LoadProblem]
) -> None:
    if any(step.emits is None for step in members.values()):
        return  # a step that declares no emits may emit anything
    emitted = {*definition.accepts}.union(*(step.emits or () for step in members.values()))
    for name, step in list(members.items()):
        missing = [kind for kind in step.kinds if kind not in emitted]
        if step.mode == "all" and missing:
            message = (
                f"step {name!r} waits for all of {', '.join(step.kinds)}, but no step of flow {definition.name!r} "
                f"emits {', '.join(missing)}. Add it to the emits of a step, or to accepts=[…] of the flow if it "
                "is emitted from outside"
            )
            problems.append(LoadProblem("unmet_join", message, step.handler.file, step.handler.line))
            del members[name]


def _check_named_steps(definition: FlowDefinition, members: dict[str, StepDefinition]) -> None:
    for step in members.values():
        for other, what in ((step.compensation, "compensation"), (step.on_timeout, "on_timeout")):
            if other is not None and other not in members:
                raise DefinitionError(
                    f"step {step.name!r} has {what}={other!r}, but flow {definition.name!r} has no step {other!r}; "
                    f"{_nearest(other, members, 'steps')}",
                    code="unknown_step",
                    where=step.handler.where,
                )


def _check_unreachable(steps: list[StepDefinition], flows: Mapping[str, Flow], problems: list[LoadProblem]) -> None:
    used = {id(step) for flow in flows.values() for step in flow.steps.values()}
    known = {(p.file, p.line) for p in problems}
    for step in steps:
        handler = step.handler
        if id(step) in used or (handler.file, handler.line) in known:
            continue
        if step.flow is not None and step.flow not in flows:
            near = _nearest(step.flow, flows, "flows")
            message = f"step {step.name!r} has flow={step.flow!r}, but no @flow is named {step.flow!r}; {near}"
            problems.append(LoadProblem("unknown_flow", message, handler.file, handler.line))
        else:
            message = f"step {step.name!r} never starts: {_explain_unreachable(step, flows)}"
            problems.append(LoadProblem("unreachable_step", message, handler.file, handler.line))


def _explain_unreachable(step: StepDefinition, flows: Mapping[str, Flow]) -> str:
    if not step.kinds:
        return (
            "it has no on=, and no other step names it in compensation= or as on_timeout; add on= with the kind of "
            "the event that starts it"
        )
    emitted = {kind for flow in flows.values() for one in flow.steps.values() for kind in one.emits or ()}
    emitted.update(kind for flow in flows.values() for kind in flow.definition.accepts)
    near = next(filter(None, (did_you_mean(kind, emitted) for kind in step.kinds)), "")
    hint = (
        near or "add it to emits=[…] of the step that emits it, or to accepts=[…] of the flow if it comes from outside"
    )
    kinds = " or ".join(map(repr, step.kinds))
    return f"no step emits {kinds}; {hint}"


def _all_handlers(flows: Mapping[str, Flow]) -> list[Handler]:
    return [step.handler for flow in flows.values() for step in flow.steps.values()]


def _check_limits(handlers: list[Handler], problems: list[LoadProblem]) -> None:
    """Report handlers of one queue with different rate limits: a rate limit belongs to the queue."""
    seen: dict[str, Handler] = {}
    for handler in handlers:
        if handler.rate is None:
            continue
        first = seen.setdefault(handler.queue_name, handler)
        if first.rate != handler.rate:
            message = f"queue {handler.queue_name!r} has two different rate limits, the other at {first.where}; use one"
            problems.append(LoadProblem("rate_conflict", message, handler.file, handler.line))


def _duplicate(what: str, name: str, one: Handler, other: Handler) -> LoadProblem:
    code = "duplicate_step" if what.startswith("step") else f"duplicate_{what.split()[0]}"
    message = f"{what} {name!r} is defined twice, first at {other.where}; the first is used. Rename one of them"
    return LoadProblem(code, message, one.file, one.line)


def _to_problem(problem: PenstockError, handler: Handler) -> LoadProblem:
    code = problem.kind if isinstance(problem, DefinitionError) else problem.code
    return LoadProblem(code, str(problem), handler.file, handler.line)
