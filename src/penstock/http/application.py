"""The ASGI application of an App, to serve it or to mount it in another application."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from .. import __version__
from ..app.app import App
from ..core.errors import PenstockError
from .auth import Authenticate, address_of
from .console import has_console, is_console_path, serve_console, wants_console
from .cors import allow_origin, answer_preflight, is_preflight
from .dispatch import JsonResponse, answer, error_response, internal_error
from .endpoints import Endpoint
from .openapi import build_openapi
from .router import Router
from .services import ServerOptions, Services
from .sockets import refuse_socket, serve_socket
from .tenants import Tenants

log = logging.getLogger("penstock.http")
DOCUMENT_PATH = "/api/openapi.json"
SERVER_PATHS = ("/health", "/ready")  # without a namespace: the process itself
_SERVER_STATUS = msgspec.json.encode({"status": "ok", "version": __version__})


def asgi_app(
    app: App | Tenants,
    *,
    authenticate: Authenticate | None = None,
    allowed_origins: Sequence[str] = (),
    heartbeat_s: float = 15.0,
    buffer_limit: int = 128_000,
    console: bool = True,
) -> Application:
    """Return the HTTP API of an App as an ASGI application, to serve it or to mount it in another one.

    The App owns its start and stop: open it before the first request and close it after the last, in the lifespan of
    your own application. The lifespan of a mounted application does not run.

    Args:
        app: The App, or `Tenants` for a server of several namespaces. Served alone, the application opens and closes
            it if it is not open.
        authenticate: Returns the `Caller` of a request from your own session, or None. Default: tokens only.
        allowed_origins: Origins of web pages that may call the API, such as "https://ops.example.com".
        heartbeat_s: Send a comment on an idle event stream after this many seconds.
        buffer_limit: Hold at most about this many bytes for each client of a stream; a client that is further behind is
            served from the store, and disconnected if it takes nothing for 30 seconds.
        console: Serve the web console below `/console/`, if this installation contains it.
    """
    from .routes import ALL_ROUTES

    endpoints = [endpoint for routes in ALL_ROUTES for endpoint in routes.endpoints]
    options = ServerOptions(authenticate, tuple(allowed_origins), heartbeat_s, buffer_limit, console)
    router = Router([*endpoints, document_endpoint(build_openapi(endpoints))])
    if isinstance(app, Tenants):
        app.prepare(router, options)
        return Application(app, options)
    return Application(Services(app, router, options), options)


def document_endpoint(document: dict[str, Any]) -> Endpoint:
    """Return the endpoint that serves the document of the API. The document does not list itself."""
    encoded = msgspec.json.encode(document)

    async def get_openapi() -> Response:
        return JsonResponse(encoded, 200)

    return Endpoint("GET", DOCUMENT_PATH, get_openapi, "Return the OpenAPI document.", "server")


class Application:
    """The ASGI application: it finds the services of a request and answers it."""

    def __init__(self, source: Services | Tenants, options: ServerOptions) -> None:
        self._source = source
        self._options = options
        self._lifespan = Starlette(lifespan=_lifespan(source))

    @property
    def services(self) -> Services:
        """The services of a server with one namespace."""
        assert isinstance(self._source, Services), "a server of several namespaces has services for each"
        return self._source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve_request(Request(scope, receive, send))
        elif scope["type"] == "websocket":
            await self._serve_socket(WebSocket(scope, receive, send))
        else:
            await self._lifespan(scope, receive, send)

    async def _serve_request(self, request: Request) -> None:
        path = route_path(request.scope)
        if isinstance(self._source, Services):
            await self._respond(request, await self._answer(self._source, request, path))
            return
        try:
            if path in SERVER_PATHS:
                await self._respond(request, JsonResponse(_SERVER_STATUS, 200))
                return
            whole = path
            namespace, path = self._source.find_namespace(request, path)
            if self._is_console(request, path):
                await self._respond(request, self._serve_console(request, path, whole.removesuffix(path), namespace))
                return
            async with self._source.use(namespace, address_of(request)) as services:
                await self._respond(request, await self._answer(services, request, path))
        except PenstockError as problem:
            await self._respond(request, error_response(None, problem))

    async def _respond(self, request: Request, response: Response) -> None:
        allow_origin(request, response, self._options.allowed_origins)
        await response(request.scope, request.receive, request._send)

    async def _answer(self, services: Services, request: Request, path: str) -> Response:
        try:
            if is_preflight(request):
                return answer_preflight(request, services.router.methods(path), self._options.allowed_origins)
            if self._is_console(request, path):
                return self._serve_console(request, path, "", services.app.settings.namespace)
            return await answer(services, request, path)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except PenstockError as problem:
            return error_response(services, problem)
        except Exception as problem:
            # The path may hold a token: only its template is logged.
            endpoint, _ = services.router.find(request.method, path)
            log.error("%s %s failed", endpoint.method, endpoint.path, exc_info=problem)
            return JsonResponse(msgspec.json.encode(internal_error()), 500)

    def _is_console(self, request: Request, path: str) -> bool:
        return self._options.console and (is_console_path(path) or (has_console() and wants_console(request, path)))

    def _serve_console(self, request: Request, path: str, tenant: str, namespace: str) -> Response:
        root = request.scope.get("root_path", "") + tenant
        return serve_console(request, path, root, namespace)

    async def _serve_socket(self, websocket: WebSocket) -> None:
        path = route_path(websocket.scope)
        services = self._source if isinstance(self._source, Services) else None
        try:
            if isinstance(self._source, Services):
                await serve_socket(self._source, websocket, path)
                return
            namespace, path = self._source.find_namespace(websocket, path)
            async with self._source.use(namespace, address_of(websocket)) as services:
                await serve_socket(services, websocket, path)
        except PenstockError as problem:
            await refuse_socket(services, websocket, problem)


def route_path(scope: Scope) -> str:
    """Return the path below the place where the application is mounted.

    Without a slash that the framework around it added; Litestar does."""
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or b"/"
    if path.endswith("/") and len(path) > 1 and not raw.partition(b"?")[0].endswith((b"/", b"%2F", b"%2f")):
        path = path[:-1]
    root: str = scope.get("root_path", "")
    if root and (path == root or path.startswith(f"{root}/")):
        return path[len(root) :]
    return path


def _lifespan(source: Services | Tenants) -> Callable[[Starlette], contextlib.AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        opened = isinstance(source, Services) and not source.app._is_open
        if isinstance(source, Services) and opened:
            await source.app.open(connect_timeout="1m")
        try:
            yield
        finally:
            await source.close()
            if isinstance(source, Services) and opened:
                await source.app.close()

    return lifespan
