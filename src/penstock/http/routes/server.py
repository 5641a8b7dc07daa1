"""`/health`, `/ready`, `/api/_registry`, `/api/_settings` and `/api/_doctor`: the server itself."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from ... import __version__
from ...app.app import App
from ...app.bridges import BridgeView
from ...app.diagnosis import Check
from ...app.store_urls import mask
from ...app.tokens import ADMIN, Role
from ...app.views import WorkerView
from ...core.errors import StoreUnavailable
from ...core.events import Event
from ...core.redaction import REDACTED
from ...settings import list_names
from ..audit import audit_stream
from ..dispatch import SECURITY_HEADERS
from ..endpoints import Call, Limit, Query, Routes
from ..metrics import CONTENT_TYPE

routes = Routes("server")
SECRET_SETTINGS = ("token", "alert_webhook")


class Health(msgspec.Struct):
    """Whether the server runs."""

    status: str
    version: str


class Ready(msgspec.Struct):
    """Whether the server can serve: the store and the systems of its bridges answer."""

    status: str
    store: dict[str, Any]
    bridges: list[BridgeView] = []


@routes.get("/health", is_public=True)
async def check_health() -> Health:
    """Return that the process serves. It asks no store."""
    return Health("ok", __version__)


@routes.get("/ready", is_public=True)
async def check_ready(app: App) -> Ready:
    """Return that the store and the systems of the bridges answer, or 503."""
    await app.store.queues()
    bridges = list(await app.check_bridges())
    down = [f"{one.name} ({one.problem})" for one in bridges if not one.up]
    if down:
        raise StoreUnavailable(f"the systems of these bridges do not answer: {', '.join(down)}")
    return Ready("ok", {"url": app.settings.url.partition(":")[0] or "memory"}, bridges)


@routes.get("/api/_registry")
async def get_registry(app: App) -> dict[str, Any]:
    """Return everything that was found in the worker files."""
    return app.describe()


class Setting(msgspec.Struct):
    """A setting, its value and where the value comes from."""

    setting: str
    value: Any
    source: str


class Session(msgspec.Struct):
    """Who makes a request, in which namespace, and the version of the server."""

    name: str
    role: Role
    namespace: str
    version: str


class AuditQuery(Query):
    """Which commands to list."""

    before: str | None = None
    limit: Limit = 50


class AuditPage(msgspec.Struct):
    """A page of commands, newest first. `next` is the `before` of the next page, or null."""

    items: list[Event]
    next: str | None = None


@routes.get("/api/_session")
async def get_session(app: App, call: Call) -> Session:
    """Return the name and the role of the caller, the namespace and the version of the server."""
    return Session(call.caller.name, call.caller.role, app.settings.namespace, __version__)


@routes.get("/api/_workers")
async def list_workers(app: App) -> list[WorkerView]:
    """List the workers that are alive."""
    return list(await app.workers.list())


@routes.get("/api/_settings", role=ADMIN)
async def list_settings(app: App) -> list[Setting]:
    """List every setting with its source. Passwords are hidden."""
    values = app.settings
    return [Setting(name, hide_secret(name, getattr(values, name)), values.source(name)) for name in list_names()]


def hide_secret(name: str, value: Any) -> Any:
    """Return the value of a setting without the password of the store and without the token."""
    if name == "url":
        return mask(value)
    return REDACTED if name in SECRET_SETTINGS and value else value


@routes.get("/api/_audit", role=ADMIN)
async def list_commands(app: App, query: AuditQuery) -> AuditPage:
    """List the commands that came over HTTP, newest first."""
    found = await app.events.read(audit_stream(app), before=query.before, limit=query.limit, backward=True)
    return AuditPage(found, found[-1].id if len(found) == query.limit else None)


@routes.get("/api/_metrics", media=CONTENT_TYPE)
async def read_metrics(call: Call) -> str:
    """Return metrics in the format of Prometheus."""
    services = call.services
    body = await services.metrics.render(services.app, services.readers.clients)
    return Response(body, headers={**SECURITY_HEADERS, "content-type": CONTENT_TYPE})  # type: ignore[return-value]


@routes.get("/api/_doctor", role=ADMIN)
async def run_doctor(app: App) -> list[Check]:
    """Run the health checks of `penstock doctor`."""
    return list(await app.diagnose())
