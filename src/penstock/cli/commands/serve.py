"""`penstock serve`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ...app import App
from ...app.shared_connections import SharedConnections
from ...core.errors import ConfigError
from ...durable.trigger_waits import trigger_url
from ...settings import Settings
from ..errors import warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import print_json, print_text
from ..service_manager import ServiceReports
from ..session import build_worker_app, open_app, refuse_memory_store, run_event_loop
from ..shutdown_signals import handle_stop_signals, stop_message

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from ...http import Tenants

HOST_HELP = "Address to listen on; others than loopback require a token. Default: the setting 'host', 127.0.0.1."
PORT_HELP = "Port to listen on; 0 chooses a free one. Default: the setting 'port', 8765."


def serve(
    *,
    host: Annotated[str | None, Parameter(help=HOST_HELP)] = None,
    port: Annotated[int | None, Parameter(help=PORT_HELP)] = None,
    worker: Annotated[bool, Parameter(negative="", help="Run a worker in this process too.")] = False,
    namespaces: Annotated[
        str | None, Parameter(help="Serve these namespaces, a,b; the URL of the store contains {namespace}.")
    ] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Serve the HTTP API and the web console until stopped (Ctrl-C or SIGTERM).

    Without tokens it listens only on this machine. 'penstock tokens add NAME'
    creates one. Workers run elsewhere, or here with --worker.
    """
    require_http()
    refuse_memory_store(common)
    options = {"host": host, "port": port, "namespaces": namespaces}
    settings = Settings.load({"url": common.url, "dir": common.dir, **options})
    if settings.namespaces:
        return run_event_loop(_serve_tenants(settings, options, worker, common))
    return run_event_loop(_serve(settings, options, worker, common))


async def _serve(settings: Settings, options: dict[str, Any], worker: bool, common: CommonOptions) -> int:
    listener, address = bind_address(settings)
    with listener:
        return await _serve_one(settings, listener, address, options, worker, common)


async def _serve_one(
    settings: Settings,
    listener: socket.socket,
    address: str,
    options: dict[str, Any],
    worker: bool,
    common: CommonOptions,
) -> int:
    app = build_worker_app(common, verbose=True, **options, **own_public_url(settings, address))
    application = build_application(app, settings)  # before the App is open: its metrics listen to the App
    async with open_app(app) as is_open:
        if is_open:
            await check_host(app, settings.host)
            await _serve_until_stopped(
                app, application, listener, worker, partial(_announce, app, address, worker, common)
            )
    warn("Stopped.")
    return 0


async def _serve_tenants(settings: Settings, options: dict[str, Any], worker: bool, common: CommonOptions) -> int:
    if worker:
        raise ConfigError("--worker cannot be used with namespaces; start `penstock worker` for each of them")
    check_namespace_url(common)
    build_worker_app(common, verbose=True, **options)  # reports problems of the worker files once
    listener, address = bind_address(settings)
    shared = SharedConnections()

    def make_app(namespace: str) -> App:
        return App(common.url, common.dir, namespace=namespace, connections=shared)

    from ...http import Tenants

    application = build_application(Tenants(make_app, settings.namespaces), settings)
    names = list(settings.namespaces)

    def announce() -> None:
        if common.json:
            print_json({"address": address, "namespaces": names})
        else:
            print_text(f"Serving {', '.join(names)} on {address}/ns/NAMESPACE", "Stop with Ctrl-C.")

    with listener:
        await _serve_until_stopped(None, application, listener, False, announce)
    warn("Stopped.")
    return 0


def check_namespace_url(common: CommonOptions) -> None:
    """Raise ConfigError if two namespaces would have the same SQLite file or Postgres schema."""
    urls = {Settings.load({"url": common.url, "namespace": name}).url for name in ("a", "b")}
    if len(urls) == 1 and not next(iter(urls)).startswith("redis"):
        raise ConfigError(
            "namespaces require a URL with {namespace}, so that each has a store of its own, such as "
            "sqlite:///data/{namespace}.db"
        )


def own_public_url(settings: Settings, address: str) -> dict[str, Any]:
    """Return this server's address as the setting `public_url`, if that is not set and callers can use the address."""
    return {} if settings.public_url or _is_unspecified(settings.host) else {"public_url": address}


def _is_unspecified(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:  # a name
        return False


def bind_address(settings: Settings) -> tuple[socket.socket, str]:
    """Return a socket on the address of the settings, and the address as a URL."""
    from ...http.server import bind

    host = settings.host
    listener = bind(host, settings.port)
    return listener, f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


async def check_host(app: App, host: str) -> None:
    """Raise BadAddress for an address that others can reach while no token protects the API."""
    from ...http.server import check_address

    check_address(host, await app.tokens.exist())


def build_application(app: App | Tenants, settings: Settings) -> ASGIApp:
    """Build the HTTP API with the settings."""
    from ...http import asgi_app

    return asgi_app(
        app,
        allowed_origins=settings.allowed_origins,
        heartbeat_s=settings.heartbeat / 1000,
        buffer_limit=settings.buffer_limit,
    )


def console_address(address: str) -> str | None:
    """Return the address of the console, or None if this installation has none."""
    from ...http.console import describe_console, has_console

    return describe_console(address) if has_console() else None


def require_http() -> None:
    """Raise ConfigError if the extra `http` is not installed."""
    try:
        from ... import http  # noqa: F401
    except ImportError as problem:
        raise ConfigError(f"the HTTP API needs the extra `http`: pip install 'penstock[http]' ({problem})") from None


async def _serve_until_stopped(
    app: App | None, application: ASGIApp, listener: socket.socket, worker: bool, announce: Callable[[], None]
) -> None:
    """Serve until a stop signal, with a worker beside it if requested."""
    from ...http.server import Server

    server = Server(application, listener)
    working = asyncio.create_task(app.workers.run()) if app is not None and worker else None

    def stop() -> None:
        warn(stop_message(app) if app is not None and worker else "Stopping.")
        server.stop()
        if app is not None and working is not None:
            app.workers.stop()

    reports = ServiceReports()

    def announce_ready() -> None:
        announce()
        reports.ready()

    with handle_stop_signals(stop):
        await server.run(announce_ready)
        reports.close()
        if app is not None and working is not None:
            app.workers.stop()
            await working


def _announce(app: App, address: str, worker: bool, common: CommonOptions) -> None:
    from ...http.console import describe_console

    public_url = app.settings.public_url
    if common.json:
        console = console_address(address)
        print_json({"address": address, "console": console, "worker": worker, "publicUrl": public_url or None})
        return
    print_text(
        f"Serving on {address}",
        f"  console   {describe_console(address)}",
        f"  API       {address}/api/openapi.json",
        f"  worker    {'in this process' if worker else 'none here; start one with penstock worker'}",
        f"  triggers  {_describe_triggers(app, worker)}",
        "Stop with Ctrl-C.",
    )


def _describe_triggers(app: App, worker: bool) -> str:
    public_url = app.settings.public_url
    where = trigger_url(public_url, "TOKEN")
    if not public_url:
        return f"{where}; set PENSTOCK_PUBLIC_URL to the address that callers reach"
    is_default = app.settings.source("public_url").startswith("argument")
    elsewhere = "in other workers" if worker else "where workers run"
    return where + (f"; set PENSTOCK_PUBLIC_URL={public_url} {elsewhere}" if is_default else "")
