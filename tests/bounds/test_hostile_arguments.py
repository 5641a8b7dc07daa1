"""No public method of App ends in an internal error, whatever it is given: it succeeds or raises an error of ours.

Facets, methods and parameters are found by introspection, so a new one is covered.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from hostile import VALUES, complain

from penstock import App, flow, job
from penstock.app.entities import Emission
from penstock.settings import list_names

FULL = os.environ.get("PENSTOCK_FAULTS") == "full"
MIXED_CALLS = 1000 if FULL else 20  # of each method, with several bad arguments
HANG_S = 30.0  # a call that takes longer hangs
WAIT_S = 0.02  # for methods that wait until something happens
SEED = 2030
# Objects that implement a protocol of ours: a wrong one is a programming error that Python reports well.
PROTOCOLS = {"clock", "store", "runner"}
# Not for users, and what would end the App.
INTERNAL = {"app.open_claim", "app.open", "app.close", "events.close", "workers.close"}
WAITS = {"workers.run", "workers.background", "outbox.relay", "outbox.background"}
USUAL: dict[str, Any] = {
    "flow": "shop",
    "queue": "mail",
    "kind": "order.paid",
    "stream": "nq:global",
    "subject": "run-1",
    "key": "k-1",
    "handler": lambda _event: None,
    "change": lambda value: value,
    "inputs": [1],
    "tree": {"queue": "mail"},
    "event": "1-1",
    "action": "cancel",
    "every": "1m",
    "data": {"a": 1},
    "value": 1,
    "run": "run-1",
    "type": "trigger",
    "connection": object(),
    "group": "0123456789ab",
    "name": "ada",
    "path": "hooks/paid",
    "method": "POST",
    "headers": {},
    "body": b"{}",
    "reducer": lambda events: list(events),
    "text": "pst_0123_secret",
    "connect": "sqlite:///nowhere/nothing.db",
    "dag": {"id": "d", "nodes": [{"id": "a", "type": "transform"}]},
    "old": 1,
    "new": 2,
    "urn": "urn:order:7",
    "status": "paid",
    "emission": Emission("urn:order:7", "x.urn--order--7", "paid", 1),
}


@flow("shop")
async def shop(order: Any) -> None: ...


@job(queue="mail")
async def send(mail: Any) -> None: ...


def methods(app: App) -> dict[str, Callable[..., Any]]:
    """Return every public method of an App and of its facets."""
    facets = {"app": app, **{name: value for name, value in vars(app).items() if not name.startswith("_")}}
    found: dict[str, Callable[..., Any]] = {}
    for facet, value in facets.items():
        if type(value).__module__.startswith("penstock.app"):
            for name, method in inspect.getmembers(value, inspect.ismethod):
                if not name.startswith("_") and f"{facet}.{name}" not in INTERNAL:
                    found[f"{facet}.{name}"] = method
    return found


def usual_arguments(where: str, method: Callable[..., Any]) -> dict[str, Any]:
    """Return arguments with which a call gets beyond its first checks."""
    id = "mail-1" if where.startswith("jobs.") else "every" if where.startswith("schedules.") else "run-1"
    known = {**USUAL, "id": id, "token": "t-1.secret"}
    needed = [one.name for one in inspect.signature(method).parameters.values() if one.default is one.empty]
    if where == "schedules.add":
        needed += ["flow", "every"]
    return {name: known[name] for name in needed if name in known}


async def call(method: Callable[..., Any], is_waiting: bool, arguments: dict[str, Any]) -> None:
    """Call a method and use what it returns, for a moment if it waits for something to happen."""
    try:
        async with asyncio.timeout(WAIT_S if is_waiting else HANG_S):
            answer = method(**arguments)
            if inspect.isawaitable(answer):
                await answer
            elif isinstance(answer, AbstractAsyncContextManager):
                async with answer:
                    pass
            elif isinstance(answer, AsyncIterator):
                is_waiting = True
                async with asyncio.timeout(WAIT_S):
                    await anext(answer, None)
    except TimeoutError:
        assert is_waiting, "it hangs"


async def problems_of(app: App, where: str, method: Callable[..., Any], rng: random.Random) -> list[str]:
    """Call a method with one bad argument, then with several; return every answer that is not ours."""
    parameters = [one for one in inspect.signature(method).parameters.values() if one.kind is not one.VAR_KEYWORD]
    usual = usual_arguments(where, method)
    calls = [(f"{one.name}={name}", {**usual, one.name: value}) for one in parameters for name, value in VALUES.items()]
    for _ in range(MIXED_CALLS if parameters else 0):
        names = {
            one.name: rng.choice(sorted(VALUES)) for one in rng.sample(parameters, rng.randint(1, len(parameters)))
        }
        calls.append((str(names), {**usual, **{key: VALUES[name] for key, name in names.items()}}))
    is_waiting = where in WAITS or any(one.name == "timeout" for one in parameters)
    found = []
    for text, arguments in calls or [("", {})]:
        try:
            await call(method, is_waiting, arguments)
        except Exception as problem:
            if (complaint := complain(problem)) is not None:
                found.append(f"{where}({text}): {complaint}")
    return found


async def test_every_method(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, found = random.Random(SEED), []
    async with App(url, handlers=[shop, send]) as app:
        for where, method in methods(app).items():
            await app.start("shop", {"order": 1}, key="run-1")
            await app.enqueue("mail", 1, key="mail-1")
            await app.schedules.add("every", flow="shop", every="1h")
            found += await problems_of(app, where, method, rng)
        assert await app.start("shop", {"order": 2}, key="run-2") == "run-2"
    assert found == [], "\n".join(["", *found])


def test_every_argument_of_an_app() -> None:
    found = []
    names = [one for one in inspect.signature(App).parameters if one != "settings"]
    for parameter in sorted({*names, *list_names()} - PROTOCOLS):
        for name, value in VALUES.items():
            try:
                App(**{"url": ":memory:", "handlers": [shop], parameter: value})
            except Exception as problem:
                if (complaint := complain(problem)) is not None:
                    found.append(f"App({parameter}={name}): {complaint}")
    assert found == [], "\n".join(["", *found])


def test_the_methods_are_found() -> None:
    async def count() -> dict[str, Callable[..., Any]]:
        async with App(":memory:", handlers=[shop]) as app:
            return methods(app)

    found = asyncio.run(count())
    assert {"app.start", "runs.list", "jobs.enqueue_tree", "state.patch", "waits.fire", "schedules.add"} <= found.keys()
    assert len(found) > 50
