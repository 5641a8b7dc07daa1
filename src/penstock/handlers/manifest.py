"""The registry as JSON, for tools and other processes. It contains no functions and no secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.schemas import to_json_schema
from .decorators import FlowDefinition, StepDefinition
from .discovery import DiscoveredHandler
from .registry import Registry, handler_name
from .subscriptions import Subscription

FORMAT_VERSION = 1  # of this JSON
NODE = "node"  # the runner of TypeScript and JavaScript files: a child process


def describe(
    registry: Registry, *, compiled_at: str, version: str, store: str, namespace: str, runner: str, log_level: str
) -> dict[str, Any]:
    """Return the registry in the JSON form of the spec. `version` is Penstock's, `compiled_at` when it was loaded."""
    index: dict[str, list[dict[str, str]]] = {}
    flows: dict[str, Any] = {}
    worker_of = _worker_ids(registry)
    workers = [_worker(item, registry.handler_fingerprints, runner) for item in registry.found]
    for name, flow in registry.flows.items():
        entry = flow.definition.entry
        steps: dict[str, Any] = {}
        for step_name, step in flow.steps.items():
            target = {"queue": step.handler.queue_name, "workerId": worker_of.get(id(step.handler), "")}
            if step is not entry:
                steps[step_name] = {**target, "triggers": list(step.kinds), "mode": step.mode, **_await(step)}
            for kind in step.kinds:
                index.setdefault(kind, []).append({"flowId": name, "step": step_name, **target})
        main = {"step": entry.name, "queue": entry.handler.queue_name, "workerId": worker_of.get(id(entry.handler), "")}
        flows[name] = {"main": {**main, **_await(entry)}, "steps": steps}
        if flow.definition.start_on:
            flows[name]["startOn"] = [_subscription(on) for on in flow.definition.start_on]
    return {
        "version": FORMAT_VERSION,
        "fingerprint": registry.fingerprint,
        "penstock": version,
        "compiledAt": compiled_at,
        "provider": {"name": store},
        "logger": {"name": "console", "level": log_level},
        "state": {"name": store, "namespace": namespace},
        "eventStore": {"name": store},
        "runner": _runners(workers, runner),
        "workers": workers,
        "flows": flows,
        "eventIndex": index,
        "problems": [{"code": p.code, "message": p.message, "file": p.file, "line": p.line} for p in registry.problems],
    }


def _runners(workers: Sequence[Mapping[str, Any]], default: str) -> dict[str, Any]:
    """Return by language whether handlers of it were found, and where they run; each worker names its own runner."""
    used = {kind: {one["runner"] for one in workers if one["kind"] == kind} for kind in ("py", "ts")}
    python = used["py"].pop() if len(used["py"]) == 1 else default
    return {
        "py": {"enabled": True, "isolate": python},
        "ts": {"enabled": bool(used["ts"]), "isolate": NODE},
    }


def _await(step: StepDefinition) -> dict[str, Any]:
    return {"await": step.handler.wait.describe()} if step.handler.wait is not None else {}


def _subscription(on: Subscription) -> dict[str, Any]:
    """Return an event that starts a flow; a function is shown as True."""
    shown: dict[str, Any] = {"eventKind": on.kind}
    if on.when is not None:
        shown["when"] = dict(on.when) if isinstance(on.when, Mapping) else True
    if on.map is not None:
        shown["map"] = True
    return shown


def _worker_ids(registry: Registry) -> dict[int, str]:
    out: dict[int, str] = {}
    for item in registry.found:
        definition = item.definition
        handler = definition.entry.handler if isinstance(definition, FlowDefinition) else definition.handler
        out[id(handler)] = item.worker_id
    return out


def _worker(item: DiscoveredHandler, fingerprints: Mapping[str, str], runner: str) -> dict[str, Any]:
    definition = item.definition
    step = definition.entry if isinstance(definition, FlowDefinition) else definition
    out: dict[str, Any] = {
        "id": item.worker_id,
        "kind": "py" if item.file.endswith(".py") or not item.file else "ts",
        "filePath": item.file,
        "line": step.handler.line,
        "exportName": item.export,
        "queue": step.handler.queue_name,
        "runner": step.handler.runner or runner,
        "fingerprint": fingerprints[handler_name(item)],
    }
    if step.handler.input_schema is not None:
        out["inputSchema"] = to_json_schema(step.handler.input_schema)
    if isinstance(step, StepDefinition):
        flow: dict[str, Any] = {
            "id": step.flow,
            "role": "main" if step is not definition else "step",
            "step": step.name,
        }
        if step.emits is not None:
            flow["emits"] = list(step.emits)
        if step.kinds:
            flow["triggers"] = list(step.kinds)
        flow.update(_await(step))
        if any(s.when is not None or s.map is not None for s in step.subscriptions):
            flow["subscriptionsRef"] = {"filePath": item.file, "exportName": item.export}
        if isinstance(definition, FlowDefinition) and definition.version is not None:
            flow["version"] = definition.version
        out["flow"] = flow
    return out
