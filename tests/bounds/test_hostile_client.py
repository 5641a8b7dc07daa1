"""No public method of the HTTP client, of the sync classes and of a run's handle ends in an internal error, whatever it is given."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import httpx
from hostile import VALUES, complain
from hostile_world import HANDLERS, renew, send, settle, shop, usual_arguments
from test_hostile_arguments import FULL, INTERNAL, WAITS, call

from penstock import App, SyncApp
from penstock.client import Client
from penstock.http import asgi_app

WAIT_S = 0.1  # a call that waits longer than this waits for something to happen
SHARE = 1 if FULL else 4  # each argument receives one value of four; another argument receives the next ones
ADDRESS = "http://127.0.0.1:8765"


def methods(owner: Any, module: str) -> dict[str, Callable[..., Any]]:
    """Return every public method of an object and of its facets."""
    facets = {name: getattr(owner, name) for name in dir(owner) if not name.startswith("_")} | {"app": owner}
    found: dict[str, Callable[..., Any]] = {}
    for facet, value in facets.items():
        if type(value).__module__.startswith(module):
            for name, method in inspect.getmembers(value, inspect.ismethod):
                if not name.startswith("_") and f"{facet}.{name}" not in INTERNAL:
                    found[f"{facet}.{name}"] = method
    return found


def bad_calls(
    where: str, method: Callable[..., Any], values: dict[str, Any], chosen: dict[str, Any] | None = None
) -> list[tuple[str, dict[str, Any]]]:
    """Return calls with one bad argument each."""
    usual = usual_arguments(where, method, chosen)
    parameters = [one for one in inspect.signature(method).parameters.values() if one.kind is not one.VAR_KEYWORD]
    return [
        (f"{where}({one.name}={name})", {**usual, one.name: value})
        for n, one in enumerate(parameters, len(where))
        for name, value in list(values.items())[n % SHARE :: SHARE]
    ]


async def test_every_method_of_a_client() -> None:
    found = []
    async with App(":memory:", handlers=HANDLERS, blob_url="memory:") as app:
        transport = httpx.ASGITransport(asgi_app(app), client=("127.0.0.1", 1))
        async with Client(ADDRESS, transport=transport) as client:
            listed = methods(client, "penstock.client")
            assert {"runs.list", "events.subscribe", "tokens.add", "app.start"} <= listed.keys()
            chosen = await settle(app)
            for where, method in listed.items():
                for token in await app.tokens.list():  # with one, calls without a token are refused
                    await app.tokens.revoke(token.id)
                await renew(app)
                for text, arguments in bad_calls(where, method, VALUES, chosen):
                    found += await complaints(text, method, arguments)
    assert found == [], "\n".join(["", *found])


async def complaints(text: str, method: Callable[..., Any], arguments: dict[str, Any]) -> list[str]:
    try:
        async with asyncio.timeout(WAIT_S):
            await call(method, True, arguments)
    except TimeoutError:
        return []
    except Exception as problem:
        complaint = complain(problem)
        return [f"{text}: {complaint}"] if complaint is not None else []
    return []


async def test_every_method_of_a_handle(url: str) -> None:
    found = []
    async with App(url, handlers=[shop, send]) as app:
        run = await app.start("shop", {"order": 1}, key="run-1")
        listed = {name: getattr(run, name) for name in vars(type(run)) if not name.startswith("_")}
        for where, method in listed.items():
            if inspect.ismethod(method):
                for text, arguments in bad_calls(where, method, VALUES):
                    found += await complaints(text, method, arguments)
    assert found == [], "\n".join(["", *found])


def test_every_method_of_a_sync_app() -> None:
    found = []
    with SyncApp(":memory:", handlers=[shop, send]) as app:
        listed = methods(app, "penstock.app")
        assert {"runs.list", "app.start", "state.set"} <= listed.keys()
        for where, method in listed.items():
            if not waits(where, method):
                for text, arguments in bad_calls(where, method, VALUES):
                    found += sync_complaints(text, method, arguments)
    assert found == [], "\n".join(["", *found])


def waits(where: str, method: Callable[..., Any]) -> bool:
    """Return whether a method may wait for something to happen."""
    found = inspect.signature(method)
    names = {*WAITS, "app.run"}
    return where in names or "timeout" in found.parameters or "Iterator" in str(found.return_annotation)


def sync_complaints(text: str, method: Callable[..., Any], arguments: dict[str, Any]) -> list[str]:
    try:
        method(**arguments)
    except Exception as problem:
        complaint = complain(problem)
        return [f"{text}: {complaint}"] if complaint is not None else []
    return []
