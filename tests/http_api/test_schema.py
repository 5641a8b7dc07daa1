"""Generated requests to every operation of the OpenAPI document: no server error, no answer that it does not describe."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import postgres_server
import redis_server
from http_server import serve_app
from penstock import App, Context, flow, job
from penstock.core.durations import to_ms
from penstock.errors import PenstockError
from penstock.http.openapi import build_openapi
from penstock.http.routes import ALL_ROUTES

ENDPOINTS = {e.function.__name__: e for routes in ALL_ROUTES for e in routes.endpoints}
OPERATIONS = sorted(name for name, endpoint in ENDPOINTS.items() if not endpoint.is_stream)
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 2
STORE_URLS = {"memory": lambda: ":memory:", "postgres": postgres_server.url, "redis": redis_server.url}
pytestmark = pytest.mark.xdist_group("schema")  # one server for all of them

schemathesis.serializer.alias("application/x-ndjson", "application/json")  # one line of an import
DOCUMENT = build_openapi(list(ENDPOINTS.values())) | {"security": []}  # each request has the same token
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT, config=SchemathesisConfig())
WAITING = {"wait_for_handler"} | {
    operation["operationId"]
    for path in DOCUMENT["paths"].values()
    for operation in path.values()
    if any(parameter["name"] == "timeout" for parameter in operation.get("parameters", []))
}


@flow("order")
async def order(_input: Any, ctx: Context) -> None:
    await ctx.wait.trigger("approval")


@job(queue="mail")
async def mail(_input: Any) -> None: ...


def is_refused(timeout: Any) -> bool:
    """Return whether the API refuses this timeout. It would wait for any other."""
    try:
        to_ms(timeout)
    except (PenstockError, TypeError, ValueError):
        return True
    return False


class ServerThread:
    """An App and its server in a thread of their own: generated requests are sent without an event loop."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ready = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),))
        self.address = ""
        self.known: dict[str, list[str]] = {}
        self.headers: dict[str, str] = {}
        self.session = requests.Session()
        self.statuses: Counter[int] = Counter()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
        self.session.close()

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        async with App(self._url, handlers=[order, mail], blob_url="memory:") as app, serve_app(app) as client:
            _, text = await app.tokens.add(
                "fuzz", "admin"
            )  # a generated request may create one and lock the others out
            self.headers = {"authorization": f"Bearer {text}"}
            self.known = await self._fill(app)
            self.address = str(client.base_url).rstrip("/")
            self._ready.set()
            await self._stopped.wait()

    async def _fill(self, app: App) -> dict[str, list[str]]:
        """Create one of each thing, so that generated requests also meet what exists."""
        run = await app.start(order, {"n": 1}, key="run-1")
        added = await app.enqueue(mail, {"to": "ada"}, key="job-1")
        await app.schedules.add("hourly", queue="mail", every="1h")
        await app.state.set("cart/1", {"items": []})
        await app.events.append("nq:entity:e-1", "thing.happened", {"n": 1})
        return {
            "id": [str(run), str(added), "hourly", "e-1"],
            "queue": ["mail"],
            "flow": ["order"],
            "key": ["cart/1"],
            "type": ["flow", "entity", "trigger"],
            "stream": ["nq:flow:run-1", "nq:global"],
        }


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, ServerThread]]:
    started: dict[str, ServerThread] = {}
    yield started
    for server in started.values():
        server.stop()
        assert server.statuses[200] + server.statuses[201] > 50  # many requests are accepted


def serve(servers: dict[str, ServerThread], kind: str) -> ServerThread:
    """Return the server of a store; the first test of the store starts it."""
    if kind not in servers:
        servers[kind] = ServerThread(STORE_URLS[kind]())
        servers[kind].start()
    return servers[kind]


def has_invalid_requests(name: str) -> bool:
    """Return whether a request can be invalid. Any text is a valid part of a path."""
    operation = SCHEMA.find_operation_by_id(name)
    return bool(len(operation.query) or len(operation.body))


# Invalid requests are refused before a store is asked: one store is enough for them.
CASES = [
    pytest.param(kind, name, mode, id=f"{kind}-{name}-{mode.value}")
    for kind in STORE_URLS
    for name in OPERATIONS
    for mode in (GenerationMode if kind == "memory" else (GenerationMode.POSITIVE,))
    if mode is GenerationMode.POSITIVE or has_invalid_requests(name)
]


@pytest.mark.parametrize(("kind", "name", "mode"), CASES)
def test_every_operation_answers_as_described(
    servers: dict[str, ServerThread], kind: str, name: str, mode: GenerationMode
) -> None:
    server = serve(servers, kind)
    operation = SCHEMA.find_operation_by_id(name)
    count = 0

    @seed(1)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=False, suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        nonlocal count
        count += 1
        if count % 2:  # half of the requests are about something that exists
            for part, known in server.known.items():
                if part in case.path_parameters:
                    case.path_parameters[part] = known[count // 2 % len(known)]
        if name in WAITING:
            for given in (case.query, case.body):
                if isinstance(given, dict) and not is_refused(given.get("timeout", "30s")):
                    given["timeout"] = "10ms"
        for word in ("name", "kind"):
            if isinstance(case.body, dict) and isinstance(case.body.get(word), str) and count % 2:
                case.body[word] = f"word.{count}"
        response = case.call(server.address, server.session, server.headers, timeout=20)
        server.statuses[response.status_code] += 1
        is_late = name in WAITING and response.status_code == 504
        case.validate_response(response, checks=CHECKS[1:] if is_late else CHECKS)

    send()
