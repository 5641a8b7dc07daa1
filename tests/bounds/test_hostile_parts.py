"""Arguments that have parts: each part of a good one is replaced by a value that nobody expects, or gets another name.

`test_hostile_arguments` replaces whole arguments. A definition that is accepted, such as a dag, must also be usable.
"""

from __future__ import annotations

import copy
import inspect
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hostile import VALUES, complain
from hostile_world import HANDLERS

from penstock import App, flow, job, step
from penstock.entities import make_entity
from penstock.handlers.nodes import node

SHARE = 1 if os.environ.get("PENSTOCK_FAULTS") == "full" else 20
NODES: list[dict[str, Any]] = [
    {
        "id": "a", "type": "transform", "config": {"template": {"x": "{{ input.a }}", "y": [1]}}, "timeout": "5s", "delay": "1s",
        "retry": {"attempts": 3, "backoff": {"type": "fixed", "delay": "1s"}}, "continueOnFail": False, "rateLimit": "5/1s",
    },
    {"id": "b", "type": "http", "inputs": ["a"], "config": {
        "url": "http://127.0.0.1:1/", "method": "POST", "headers": {"a": "b"}, "body": {"x": "{{ nodes.a.data }}"}}},
    {"id": "g", "type": "delay", "inputs": ["b"], "outputs": ["h"], "config": {"duration": "1s"}},
    {"id": "h", "type": "transform"},
]  # fmt: skip
TRIGGERS = [
    {"schedule": {"every": "1h", "tz": "UTC", "input": {"a": 1}}},
    {"webhook": {"path": "hook", "method": "POST"}},
    {"event": {"kind": "a.b", "match": {"a": 1}}},
    {"type": "schedule", "config": {"cron": "0 8 * * *", "timezone": "UTC"}},
]
DAG = {
    "id": "d",
    "name": "D",
    "priority": 1,
    "delay": "1s",
    "entryNodeId": "a",
    "maxConcurrency": 3,
    "triggers": TRIGGERS,
    "nodes": NODES,
}
TREE = {
    "queueName": "mail", "name": "send", "data": {"a": [1]}, "opts": {"jobId": "k1", "priority": 3, "delay": 1, "attempts": 2},
    "children": [{"queueName": "mail", "data": 1, "children": []}],
}  # fmt: skip
SCHEMA = {
    "type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"items": {"enum": [1]}, "minItems": 1}},
    "$defs": {"x": {"pattern": "^a", "minLength": 1, "format": "date", "$anchor": "y"}}, "unevaluatedProperties": False,
    "allOf": [{"if": True, "then": {}, "not": {"const": 1}}], "dependentRequired": {"a": ["b"]},
    "patternProperties": {"^z": {"multipleOf": 2}}, "dependentSchemas": {"q": {}}, "prefixItems": [{"maximum": 3}],
    "$schema": "https://json-schema.org/draft/2020-12/schema", "contains": {}, "propertyNames": {"maxLength": 9},
}  # fmt: skip
ENTITY = {
    "name": "order", "urn": "order:", "states": {"initial": "open", "idles": ["open"], "finals": ["done"], "failed": "broken"},
    "transitions": [
        {"event": ["add", "plus"], "from": "open", "to": "open", "actions": ["act"], "conditions": ["act"]},
        {"event": "finish", "from": ["open"], "to": "done"},
    ],
    "events": {"add": {"type": "integer"}}, "on_rejected": "refuse",
    "hooks": [{"event": "add", "order": 1, "call": "act"}, {"from": "open", "to": "done", "call": "act"}],
    "options": {"retry": {"attempts": 2}, "rate_limit": "5/1s", "timeout": "5s", "priority": 3, "unknown_fields": "ignore"},
}  # fmt: skip
# An argument of a method, as it is used.
SAMPLES: dict[str, tuple[Any, Callable[[App, Any], Any]]] = {
    "dag": (DAG, lambda app, value: app.dags.register(value)),
    "tree": (TREE, lambda app, value: app.jobs.enqueue_tree(value)),
    "input": ({"a": {"b": [1]}}, lambda app, value: app.start("shop", value)),
    "where": ({"a": {"b": [1]}}, lambda app, value: app.runs.list(where=value)),
    "match": ({"a": {"b": [1]}}, lambda app, value: app.events.append("nq:global", "noted", value, meta=value)),
    "state": ({"a": {"b": [1]}}, lambda app, value: app.state.set("k", value)),
    "schema": (SCHEMA, lambda app, value: app.webhooks.register("hook", event="a.b", schema=value)),
    "entity": (ENTITY, lambda _app, value: make_entity(value, {"act": len})),
    "retry": (
        {"attempts": 3, "backoff": {"type": "exponential", "delay": "1s", "max": "5s"}, "retriable_errors": ["OSError"]},
        lambda _app, value: job(queue="q", retry=value),
    ),
    "subscriptions": (
        [{"eventKind": "a.b", "when": {"a": 1}, "stream": "global"}],
        lambda _app, value: step(subscriptions=value)(_handle),
    ),
    "breaker": ({"failures": 3, "open_for": "1s", "key": "input.shop"}, lambda _app, value: node("t", breaker=value)(_handle)),
}  # fmt: skip


def _handle(input: Any, ctx: Any) -> None: ...


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield from places(one, (*path, key))


def replace(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = copy.copy(value)
    changed[path[0]] = replace(value[path[0]], path[1:], new)
    return changed


def rename(value: Any, path: tuple[Any, ...], name: Any) -> Any:
    if len(path) == 1:
        return {name if key == path[0] else key: one for key, one in value.items()}
    return replace(value, path[:1], rename(value[path[0]], path[1:], name))


def mutants(sample: Any) -> Iterator[tuple[str, Any]]:
    values = list(VALUES.items())
    for n, path in enumerate(places(sample)):
        for name, value in values[n % SHARE :: SHARE]:
            yield f"{path} is {name}", replace(sample, path, value)
        if path and isinstance(path[-1], str):
            for name, value in values[-n % SHARE :: SHARE]:
                if isinstance(value, str | int | None):
                    yield f"{path} is named {name}", rename(sample, path, value)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SAMPLES)
async def test_every_part(name: str) -> None:
    sample, use = SAMPLES[name]
    found = []
    async with App(":memory:", handlers=HANDLERS) as app:
        await call(use, app, sample)  # it is good
        for text, value in mutants(sample):
            try:
                await call(use, app, value)
            except Exception as problem:
                if (complaint := complain(problem)) is not None:
                    found.append(f"{text}: {complaint}")
        assert await app.start("shop", {"order": 1}, key="run-1") == "run-1"
    assert found == [], "\n".join(["", *found])


async def call(use: Callable[[App, Any], Any], app: App, value: Any) -> None:
    answer = use(app, value)
    if inspect.isawaitable(answer):
        await answer


@pytest.mark.parametrize("decorator", [flow, step, job, node], ids=lambda one: one.__name__)
def test_every_argument_of_a_decorator(decorator: Callable[..., Any]) -> None:
    usual = {"flow": {"name": "f"}, "step": {"on": "a.b"}, "job": {"queue": "q"}, "node": {"type": "t"}}
    found = []
    share = 1 if SHARE == 1 else 3
    for n, parameter in enumerate(inspect.signature(decorator).parameters.values()):
        for name, value in list(VALUES.items())[n % share :: share]:
            options = {**usual[decorator.__name__], parameter.name: value}
            options = {"subscriptions": value} if parameter.name == "subscriptions" else options
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    App(":memory:", handlers=[decorator(**options)(_handle)])
            except Exception as problem:
                if (complaint := complain(problem)) is not None:
                    found.append(f"{parameter.name}={name}: {complaint}")
    assert found == [], "\n".join(["", *found])
