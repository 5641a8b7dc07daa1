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
from hostile_world import HANDLERS, SPENT, renew, settle, shop, usual_arguments

from penstock import App, PenstockError
from penstock.core.errors import BadArgument, ConfigError, DefinitionError, NotFound, UnknownTrigger
from penstock.settings import list_names

FULL = os.environ.get("PENSTOCK_FAULTS") == "full"
MIXED_CALLS = 1000 if FULL else 8  # of each method, with several bad arguments
SHARE = 1 if FULL else 3  # each argument receives one value of three; another argument receives the next ones
HANG_S = 100.0  # a call that takes longer hangs
WAIT_S = 0.02  # for methods that wait until something happens
SEED = 2030
# Objects that implement a protocol of ours: a wrong one is a programming error that Python reports well.
PROTOCOLS = {"clock", "store", "runner"}
# Not for users, and what would end the App.
INTERNAL = {"app.open_claim", "app.open", "app.close", "events.close", "workers.close"}
WAITS = {"workers.run", "workers.background", "outbox.relay", "outbox.background"}


def methods(app: App) -> dict[str, Callable[..., Any]]:
    """Return every public method of an App and of its facets."""
    facets = {"app": app, **{name: getattr(app, name) for name in dir(app) if not name.startswith("_")}}
    found: dict[str, Callable[..., Any]] = {}
    for facet, value in facets.items():
        if type(value).__module__.startswith("penstock.app"):
            for name, method in inspect.getmembers(value, inspect.ismethod):
                if not name.startswith("_") and f"{facet}.{name}" not in INTERNAL:
                    found[f"{facet}.{name}"] = method
    return found


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


async def problems_of(where: str, method: Callable[..., Any], rng: random.Random, usual: dict[str, Any]) -> list[str]:
    """Call a method with one bad argument, then with several; return every answer that is not ours."""
    parameters = [one for one in inspect.signature(method).parameters.values() if one.kind is not one.VAR_KEYWORD]
    single = [
        (f"{one.name}={name}", {**usual, one.name: value}) for one in parameters for name, value in VALUES.items()
    ]
    calls = single[rng.randrange(SHARE) :: SHARE]
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


async def worlds(app: App) -> AsyncIterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Yield every method of an App with the arguments of a call that finds something."""
    last, chosen = "", {}
    for n, (where, method) in enumerate(methods(app).items()):
        facet, _, name = last.partition(".")
        if facet != where.partition(".")[0] or name in SPENT:
            chosen = await settle(app, n)
        await renew(app)
        yield where, method, usual_arguments(where, method, chosen)
        last = where


async def test_every_method(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, found = random.Random(SEED), []
    async with App(url, handlers=HANDLERS, blob_url="memory:") as app:
        async for where, method, usual in worlds(app):
            found += await problems_of(where, method, rng, usual)
        assert await app.start("shop", {"order": 2}, key="run-2") == "run-2"
    assert found == [], "\n".join(["", *found])


# They need another process, a file, a database or an error of the run.
ELSEWHERE = {"app.listen", "app.register", "runs.import_", "runs.fork", "jobs.inspect", "alerts.test"}


async def test_the_usual_call_of_every_method_gets_beyond_its_first_checks() -> None:
    """A new method fails here until `hostile_world` has what it needs: else its other arguments are never reached."""
    refused = []
    async with App(":memory:", handlers=HANDLERS, blob_url="memory:") as app:
        async for where, method, usual in worlds(app):
            try:
                await call(method, True, usual)
            except (NotFound, UnknownTrigger, BadArgument, DefinitionError, ConfigError, TypeError) as problem:
                refused += [f"{where}({usual}): {problem}"] if where not in ELSEWHERE and "outbox." not in where else []
            except PenstockError:
                pass  # such as: the run has ended
    assert refused == [], "\n".join(["", *refused])


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
