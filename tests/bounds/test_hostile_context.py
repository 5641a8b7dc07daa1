"""No method of a handler's context ends in an internal error, whatever it is given: it succeeds or raises an error of ours.

Methods and parameters are found by introspection, so a new one is covered.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hostile import VALUES, complain

from penstock import Context, Permanent, SyncContext, flow, job
from penstock.testing import TestApp

USUAL: dict[str, Any] = {
    "name": "n",
    "fn": lambda: 1,
    "kind": "order.paid",
    "event": "order.paid",
    "data": {"a": 1},
    "key": "k",
    "value": 1,
    "flow": "child",
    "input": 1,
    "inputs": [1],
    "queue": "mail",
    "until": "1s",
    "message": "hello",
    "chunk": "c",
    "change": lambda value: value,
    "calls": [],
}
END = "nothing of this is recorded"
DURABLE = {"ctx.run", "ctx.call", "ctx.call_many", "ctx.all", "ctx.first"}
VARIABLE = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def methods(ctx: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Return every public method of a context and of what hangs on it."""
    for owner, part in (
        ("ctx", ctx),
        ("log", ctx.log),
        ("wait", ctx.wait),
        ("state", ctx.state),
        ("shared", ctx.shared),
    ):
        for name, _ in inspect.getmembers_static(type(part), inspect.isfunction):
            if not name.startswith("_"):
                yield f"{owner}.{name}", getattr(part, name)


def calls(method: Callable[..., Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the calls of a method with one bad argument each."""
    parameters = [one for one in inspect.signature(method).parameters.values() if one.kind not in VARIABLE]
    usual = {one.name: USUAL[one.name] for one in parameters if one.default is one.empty and one.name in USUAL}
    for one in parameters:
        for name, value in VALUES.items():
            yield f"{one.name}={name}", {**usual, one.name: value}


@flow("child")
async def child(_input: Any) -> None: ...


@job(queue="mail")
async def mail(_input: Any) -> None: ...


@pytest.fixture(params=["async", "sync"])
def probe(request: pytest.FixtureRequest) -> tuple[Any, list[str]]:
    """Return a handler that calls every method, and what it finds."""
    found: list[str] = []

    @flow("probe", emits=["order.paid"])
    async def probe_async(_input: Any, ctx: Context) -> None:
        for where, method in methods(ctx):
            for text, arguments in calls(method):
                try:
                    answer = method(**arguments)
                    if inspect.iscoroutine(answer):
                        await answer
                except Exception as problem:
                    if (complaint := complain(problem)) is not None:
                        found.append(f"{where}({text}): {complaint}")
        raise Permanent(END)

    @flow("probe", emits=["order.paid"])
    def probe_sync(_input: Any, ctx: SyncContext) -> None:
        for where, method in methods(ctx):
            if where.startswith("wait.") or where in DURABLE:
                continue  # they block until there is an answer; the checks are those of an `async def` handler
            for text, arguments in calls(method):
                try:
                    method(**arguments)
                except Exception as problem:
                    if (complaint := complain(problem)) is not None:
                        found.append(f"{where}({text}): {complaint}")
        raise Permanent(END)

    return (probe_async if request.param == "async" else probe_sync), found


async def test_every_method_of_the_context(probe: tuple[Any, list[str]]) -> None:
    handler, found = probe
    async with TestApp(":memory:", handlers=[handler, child, mail]) as app:
        run = await app.start("probe")
        await app.settle()
        assert END in str((await app.runs.get(run)).error)
    assert found == [], f"{len(found)} answers are not ours:\n" + "\n".join(found[:400])
