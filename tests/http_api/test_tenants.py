"""One server for several namespaces: a token of one reads nothing of another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import postgres_server
import redis_server
from http_server import serve_app
from penstock import App, flow
from penstock.app.shared_connections import SharedConnections
from penstock.core.api_errors import ServerBusy, UnknownNamespace
from penstock.http import Tenants
from penstock.http.auth import BadTokenLimit
from penstock.http.routes import ALL_ROUTES
from penstock.testing.clock import FakeClock

STORES = ("file", "postgres", "redis")
SECRET = "acme-only-3141592653"
READS = [
    endpoint
    for routes in ALL_ROUTES
    for endpoint in routes.endpoints
    if endpoint.method == "GET" and not endpoint.is_public and not endpoint.is_stream
]


@flow("note")
async def note(_input: Any) -> None:
    return None


def own_stores(kind: str, tmp_path: Path) -> str:
    """Return a URL that names another store for each namespace."""
    if kind == "redis":
        return redis_server.url()
    if kind == "postgres":
        return postgres_server.server().url(f"t{os.urandom(3).hex()}_{{namespace}}")
    return f"sqlite:///{tmp_path}/{{namespace}}.db"


class Server:
    """A server of the namespaces acme and globex."""

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url
        self._shared = SharedConnections()
        self.tenants = Tenants(self.app, ["acme", "globex"], **options)

    def app(self, namespace: str) -> App:
        return App(self._url, handlers=[note], namespace=namespace, connections=self._shared)

    async def add_token(self, namespace: str) -> str:
        async with self.tenants.use(namespace) as services:
            _, text = await services.app.tokens.add("ada", "admin")
        return text

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[httpx.AsyncClient]:
        async with serve_app(self.tenants) as client:  # type: ignore[arg-type]
            yield client


def bearer(text: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}", **more}


@pytest.mark.spec("000-3.12")
@pytest.mark.parametrize("kind", STORES)
async def test_a_token_of_one_namespace_reads_nothing_of_another(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BadTokenLimit, "check", lambda *_: None)  # each request must be refused on its own
    server = Server(own_stores(kind, tmp_path))
    async with server.serve() as client:
        acme, globex = await server.add_token("acme"), await server.add_token("globex")
        for path, body in (
            ("/api/_flow/note/runs", {"input": SECRET, "key": SECRET, "tags": {"of": SECRET}}),
            (f"/api/_queue/{SECRET}/jobs", {"input": SECRET}),
            ("/api/_events", {"kind": "order.paid", "data": SECRET}),
        ):
            assert (await client.post(path, json=body, headers=bearer(acme))).status_code == 201
        await client.put(f"/api/_state/{SECRET}", json={"value": SECRET}, headers=bearer(acme))
        assert SECRET in (await client.get(f"/api/_run/{SECRET}", headers=bearer(acme))).text
        for endpoint in READS:
            path = endpoint.path.replace(":path", "").replace("{flow}", "note").replace("{type}", "flow")
            for name in endpoint.path_names:
                path = path.replace(f"{{{name}}}", SECRET)
            own = await client.get(path, headers=bearer(globex))
            text = own.text.replace(path, "")
            assert own.status_code == 404 or f'"{SECRET}"' not in text, endpoint.path
            # The token of one namespace is no token of another, however the other is named.
            for headers, place in (
                (bearer(globex, **{"penstock-namespace": "acme"}), path),
                (bearer(globex), f"/ns/acme{path}"),
                (bearer(globex.removesuffix(".globex"), **{"penstock-namespace": "acme"}), path),
                (bearer(globex.replace(".globex", ".acme")), path),
            ):
                answer = await client.get(place, headers=headers)
                assert answer.status_code in (401, 404), (endpoint.path, answer.text)
                assert "items" not in answer.text
        for name, token in (("acme", acme), ("globex", globex)):
            runs = await client.get("/api/_run", headers=bearer(token))
            assert [row["id"] for row in runs.json()["items"]] == ([SECRET] if name == "acme" else [])


async def test_a_namespace_is_named_by_path_header_or_token(tmp_path: Path) -> None:
    server = Server(own_stores("file", tmp_path))
    async with server.serve() as client:
        text = await server.add_token("acme")
        assert text.endswith(".acme")
        plain = text.removesuffix(".acme")
        assert (await client.get("/api/_queue", headers=bearer(text))).status_code == 200
        assert (await client.get("/ns/acme/api/_queue", headers=bearer(text))).status_code == 200
        assert (
            await client.get("/api/_queue", headers=bearer(text, **{"penstock-namespace": "acme"}))
        ).status_code == 200
        unnamed = await client.get("/api/_queue", headers=bearer(plain))
        assert (unnamed.status_code, unnamed.json()["error"]["code"]) == (400, "bad_request")
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ns/acme/health")).status_code == 200


async def test_an_unknown_namespace_is_refused_and_not_created(tmp_path: Path) -> None:
    server = Server(own_stores("file", tmp_path))
    async with server.serve() as client:
        for path in ("/ns/initech/api/_queue", "/ns/..%2Facme/api/_queue", "/ns//api/_queue", "/ns/initech/health"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_namespace"), path
        assert list(tmp_path.iterdir()) == []
        codes = {(await client.get(f"/ns/n{n}/health")).status_code for n in range(100)}
        assert codes == {404, 429}


async def test_without_a_token_not_even_this_machine_may_call(tmp_path: Path) -> None:
    server = Server(own_stores("file", tmp_path))
    async with server.serve() as client:
        assert (await client.get("/ns/acme/api/_queue")).status_code == 401


async def test_apps_are_opened_on_demand_and_closed_when_idle(tmp_path: Path, clock: FakeClock) -> None:
    tenants = Server(own_stores("file", tmp_path), clock=clock, idle="10m").tenants
    async with serve_app(tenants):  # type: ignore[arg-type]
        assert tenants.names == []
        async with tenants.use("acme") as services:
            assert tenants.names == ["acme"]
            clock.advance("1h")
            await tenants.close_idle()
            assert services.app._is_open  # in use
        app = services.app
        clock.advance("11m")
        await tenants.close_idle()
        assert tenants.names == []
        assert not app._is_open
        async with tenants.use("acme") as services:
            assert services.app is not app


async def test_the_number_of_open_apps_is_bounded(tmp_path: Path, clock: FakeClock) -> None:
    tenants = Server(own_stores("file", tmp_path), clock=clock, max_open=1).tenants
    async with serve_app(tenants):  # type: ignore[arg-type]
        async with tenants.use("acme") as services:
            with pytest.raises(ServerBusy, match="1 namespaces are in use"):
                async with tenants.use("globex"):
                    pass
        async with tenants.use("globex"):
            assert tenants.names == ["globex"]
            assert not services.app._is_open


async def test_many_first_requests_open_one_app(tmp_path: Path) -> None:
    server = Server(own_stores("file", tmp_path))
    made: list[str] = []
    make = server.tenants._make_app
    server.tenants._make_app = lambda name: made.append(name) or make(name)  # type: ignore[func-returns-value]
    async with server.serve() as client:
        await asyncio.gather(*(client.get("/ns/acme/health") for _ in range(20)))
        assert made == ["acme"]


async def test_a_store_that_does_not_open_is_tried_again(tmp_path: Path) -> None:
    server = Server(f"sqlite:///{tmp_path}/none/{{namespace}}.db")
    (tmp_path / "none").write_text("in the way")
    async with server.serve() as client:
        assert (await client.get("/ns/acme/api/_queue")).status_code >= 400
        assert server.tenants.names == []
        (tmp_path / "none").unlink()
        (tmp_path / "none").mkdir()
        assert (await client.get("/ns/acme/api/_queue")).status_code == 401


async def test_an_async_function_says_which_namespaces_exist(tmp_path: Path) -> None:
    async def is_known(name: str) -> bool:
        return name.startswith("customer")

    async def use(name: str) -> None:
        async with tenants.use(name):
            pass

    tenants = Tenants(Server(own_stores("file", tmp_path)).app, is_known)
    async with serve_app(tenants):  # type: ignore[arg-type]
        await use("customer1")
        with pytest.raises(UnknownNamespace, match="no namespace 'other'"):
            await use("other")


@pytest.mark.spec("000-3.40")
async def test_a_function_of_the_request_names_the_namespace(tmp_path: Path) -> None:
    def by_host(connection: Any) -> str | None:
        name, dot, _ = connection.headers.get("host", "").partition(".ops.example")
        return name if dot else None

    server = Server(own_stores("file", tmp_path), namespace_from=by_host)
    async with server.serve() as client:
        acme = await server.add_token("acme")
        there = await client.get("/api/_queue", headers=bearer(acme, host="acme.ops.example"))
        other = await client.get("/api/_queue", headers=bearer(acme, host="globex.ops.example"))
        unknown = await client.get("/api/_queue", headers=bearer("pst_x_y", host="initech.ops.example"))
        without = await client.get("/api/_queue", headers={"host": "localhost"})
    assert [one.status_code for one in (there, other, unknown, without)] == [200, 404, 404, 400]
