"""`/api/_webhooks`: standing webhooks; `/api/webhooks/{path}`: where others call them, with their own signature."""

from __future__ import annotations

from typing import Any

import msgspec

from ...app.app import App
from ...flows.webhook_commands import WebhookReceipt
from ...handlers.webhooks import KEY_HEADER, Webhook
from ..auth import address_of
from ..endpoints import Body, Call, Routes
from .jobs import Done

routes = Routes("webhooks")


class WebhookBody(Body):
    """What calls of a webhook do, and which calls it accepts."""

    flow: str | None = None  # each call starts this flow
    event: str | None = None  # or emits an event of this kind
    method: str | list[str] = "POST"
    schema: dict[str, Any] | None = None  # JSON schema of the body
    signed: str | None = None  # environment variable with the secret of signed calls
    key_header: str = KEY_HEADER


class WebhookChange(Body):
    """What to change. Fields that are left out stay as they are."""

    flow: str | msgspec.UnsetType | None = msgspec.UNSET
    event: str | msgspec.UnsetType | None = msgspec.UNSET
    method: str | list[str] | msgspec.UnsetType = msgspec.UNSET
    schema: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    signed: str | msgspec.UnsetType | None = msgspec.UNSET
    key_header: str | msgspec.UnsetType = msgspec.UNSET


@routes.get("/api/_webhooks")
async def list_webhooks(app: App) -> list[Webhook]:
    """List webhooks."""
    return await app.webhooks.list()


@routes.get("/api/_webhooks/{path:path}")
async def get_webhook(app: App, path: str) -> Webhook:
    """Return a webhook."""
    return await app.webhooks.get(path)


@routes.patch("/api/_webhooks/{path:path}")
async def change_webhook(app: App, path: str, body: WebhookChange) -> Webhook:
    """Change a part of a webhook. A new flow replaces its event, and a new event its flow."""
    now = await app.webhooks.get(path)
    options: dict[str, Any] = {
        "flow": now.flow,
        "event": now.event,
        "method": list(now.methods),
        "schema": now.schema,
        "signed": now.signed,
        "key_header": now.key_header,
    }
    given = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not msgspec.UNSET}
    for name, other in (("flow", "event"), ("event", "flow")):
        if given.get(name) is not None:
            options[other] = None
    return await app.webhooks.register(path, **options | given)


@routes.put("/api/_webhooks/{path:path}")
async def register_webhook(app: App, path: str, body: WebhookBody) -> Webhook:
    """Register or replace a webhook."""
    return await app.webhooks.register(path, **msgspec.structs.asdict(body))


@routes.delete("/api/_webhooks/{path:path}")
async def remove_webhook(app: App, path: str) -> Done:
    """Remove a webhook."""
    return Done(await app.webhooks.remove(path))


async def receive(app: App, call: Call, path: str) -> WebhookReceipt:
    """Pass a call to its webhook: method, headers and the raw body."""
    request = call.request
    return await app.webhooks.receive(
        path,
        call.method,
        request.headers.raw,
        call.body,
        source="http",
        ip=address_of(request) or None,
    )


# One function for each method: an operation of the API has one name.


@routes.post("/api/webhooks/{path:path}", is_public=True, is_command=False)
async def receive_webhook(app: App, call: Call, path: str) -> WebhookReceipt:
    """Receive a call of a webhook: it starts a run or emits an event, once for each idempotency key."""
    return await receive(app, call, path)


@routes.put("/api/webhooks/{path:path}", is_public=True, is_command=False)
async def receive_webhook_put(app: App, call: Call, path: str) -> WebhookReceipt:
    """Receive a PUT of a webhook that accepts it."""
    return await receive(app, call, path)


@routes.patch("/api/webhooks/{path:path}", is_public=True, is_command=False)
async def receive_webhook_patch(app: App, call: Call, path: str) -> WebhookReceipt:
    """Receive a PATCH of a webhook that accepts it."""
    return await receive(app, call, path)


@routes.get("/api/webhooks/{path:path}", is_public=True)
async def receive_webhook_get(app: App, call: Call, path: str) -> WebhookReceipt:
    """Receive a GET of a webhook that accepts it."""
    return await receive(app, call, path)


@routes.delete("/api/webhooks/{path:path}", is_public=True, is_command=False)
async def receive_webhook_delete(app: App, call: Call, path: str) -> WebhookReceipt:
    """Receive a DELETE of a webhook that accepts it."""
    return await receive(app, call, path)
