"""The client has the facets, methods and parameters of App; every command of the command line has a route."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cyclopts import App as Parser

from command_routes import NO_ROUTE, ROUTES
from penstock import App
from penstock.app.alerts import Alerts
from penstock.app.blobs import Blobs
from penstock.app.dags import Dags
from penstock.app.dead_letters import DeadLetters
from penstock.app.entities import Entities
from penstock.app.events import Events
from penstock.app.flows import Flows
from penstock.app.jobs import Jobs
from penstock.app.queues import Queues
from penstock.app.runs import Runs
from penstock.app.schedules import Schedules
from penstock.app.state import AppState
from penstock.app.tokens import Tokens
from penstock.app.waits import Waits
from penstock.app.webhooks import Webhooks
from penstock.app.workers import Workers
from penstock.cli.command_table import COMMANDS, build_parser
from penstock.client import Client, SyncClient
from penstock.http.routes import ALL_ROUTES

FACETS: dict[str, type] = {
    "runs": Runs,
    "jobs": Jobs,
    "queues": Queues,
    "dead_letters": DeadLetters,
    "schedules": Schedules,
    "waits": Waits,
    "events": Events,
    "state": AppState,
    "blobs": Blobs,
    "webhooks": Webhooks,
    "alerts": Alerts,
    "flows": Flows,
    "dags": Dags,
    "entities": Entities,
    "workers": Workers,
    "tokens": Tokens,
}
# What App has and the client has not, with the reason.
NOT_IN_CLIENT = {
    "entities.data": "`get` returns the data as JSON",
    "state.patch": "its argument is a function",
    "workers.run": "a worker runs in the process of the App",
    "workers.background": "a worker runs in the process of the App",
    "workers.run_until_idle": "a worker runs in the process of the App",
    "workers.stop": "a worker runs in the process of the App",
    "workers.refresh": "a worker runs in the process of the App",
    "workers.close": "internal",
    "tokens.check": "the server checks tokens",
    "tokens.check_id": "the server checks tokens",
    "tokens.exist": "the server checks tokens",
    "tokens.issue_ticket": "POST /api/_tickets is for browsers",
    "tokens.take_ticket": "the server checks tickets",
}
# Parameters that only a process with the store or the code can pass.
NOT_OVER_HTTP = {
    "tx": "a transaction belongs to a connection of the caller",
    "on_run": "a function",
    "reducer": "a function",
    "initial": "goes with reducer",
    "where": "a function",
    "change": "a function",
    "source": "the server records where a call came from; a caller cannot choose it",
    "ip": "the server records the address of the caller; a caller cannot choose it",
}
FUNCTIONS = {"dead_letters.redrive_all": {"where", "change"}}


def methods(cls: type) -> dict[str, Callable[..., Any]]:
    found = inspect.getmembers(cls, lambda member: inspect.isfunction(member) or inspect.ismethod(member))
    return {name: function for name, function in found if not name.startswith("_")}


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default) for one in found if one.name != "self"]


PAIRS = [(facet, name) for facet, cls in FACETS.items() for name in methods(cls)]


@pytest.mark.parametrize(("facet", "name"), PAIRS, ids=[".".join(pair) for pair in PAIRS])
async def test_the_client_has_every_method_of_app(facet: str, name: str) -> None:
    async with Client("http://127.0.0.1:1") as client:
        there = getattr(getattr(client, facet), name, None)
    if f"{facet}.{name}" in NOT_IN_CLIENT:
        assert there is None, "it exists now: remove it from the list"
        return
    assert there is not None, f"client.{facet}.{name} is missing"
    left_out = FUNCTIONS.get(f"{facet}.{name}", set(NOT_OVER_HTTP) - {"where"})
    wanted = [one for one in parameters(methods(FACETS[facet])[name]) if one[0] not in left_out]
    assert parameters(there) == wanted


def test_the_client_has_nothing_that_app_has_not() -> None:
    with SyncClient("http://127.0.0.1:1") as client:
        for facet, cls in FACETS.items():
            ours = {*methods(type(getattr(client.client, facet)))}
            assert ours <= {*methods(cls)}, facet
            assert {*methods(type(getattr(client, facet)))} == ours - {"close"}, facet
    shortcuts = {"start", "emit", "enqueue", "result", "diagnose", "describe"}
    assert {*methods(Client)} - {"close"} == shortcuts <= {*methods(App)}
    assert shortcuts <= {*methods(SyncClient)}
    for name in shortcuts:
        wanted = [one for one in parameters(methods(App)[name]) if one[0] not in NOT_OVER_HTTP]
        assert parameters(methods(Client)[name]) == wanted, name


async def test_the_facets_of_app_are_all_compared() -> None:
    async with App(":memory:", handlers=()) as app:
        named = {name: getattr(app, name) for name in dir(app) if not name.startswith("_")}
    rooms = {name for name, value in named.items() if type(value).__module__.startswith("penstock.app.")}
    assert rooms - {"outbox"} == set(FACETS)  # the outbox is a table in the caller's database


def commands(parser: Parser, words: tuple[str, ...] = ()) -> Iterator[str]:
    for name in parser:
        if name.startswith("-"):
            continue
        if parser[name].default_command is not None:
            yield " ".join((*words, name))
        yield from commands(parser[name], (*words, name))


def test_every_command_has_a_route_or_a_reason() -> None:
    found = set(commands(build_parser()))
    assert {name.split()[0] for name in found} == set(COMMANDS)
    assert found == {*ROUTES, *NO_ROUTE}
    operations = {endpoint.function.__name__ for routes in ALL_ROUTES for endpoint in routes.endpoints}
    assert {word for words in ROUTES.values() for word in words.split()} <= operations
