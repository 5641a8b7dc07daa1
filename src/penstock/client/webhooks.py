"""`client.webhooks`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..app.arguments import check_list
from ..core.argument_checks import check_arguments
from ..core.errors import BadArgument
from ..core.signatures import read_headers
from ..core.text import shorten
from ..flows.webhook_commands import WebhookReceipt
from ..handlers.webhooks import KEY_HEADER, Webhook
from .connection import Connection

WEBHOOK = "/api/_webhooks/{}"


@check_arguments
class Webhooks:
    """Addresses that start a flow or emit an event each time they are called."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def register(
        self,
        path: str,
        *,
        flow: str | None = None,
        event: str | None = None,
        method: str | Sequence[str] = "POST",
        schema: Mapping[str, Any] | None = None,
        signed: str | None = None,
        key_header: str = KEY_HEADER,
    ) -> Webhook:
        """Register a webhook, or replace the one with this path, and return it.

        Args:
            path: Its path, such as "shop/orders".
            flow: The flow that each call starts, with the body as its input.
            event: Or the kind of event that each call emits globally, with the body as its data.
            method: The HTTP method it accepts, or a list of methods.
            schema: JSON schema the body must match.
            signed: Environment variable of the server with the secret that callers sign with.
            key_header: Header with the idempotency key of a call.
        """
        body = {
            "flow": flow,
            "event": event,
            "method": method if isinstance(method, str) else check_list(method, "method"),
            "schema": schema,
            "signed": signed,
            "keyHeader": key_header,
        }
        return await self._connection.request("PUT", Webhook, WEBHOOK, path, body=body)

    async def list(self) -> list[Webhook]:
        """Return all webhooks, by path."""
        return await self._connection.get(list[Webhook], "/api/_webhooks")

    async def get(self, path: str) -> Webhook:
        """Return a webhook.

        Args:
            path: Its path.
        """
        return await self._connection.get(Webhook, WEBHOOK, path)

    async def receive(
        self,
        path: str,
        method: str = "POST",
        headers: Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]] = (),
        body: bytes = b"",
    ) -> WebhookReceipt:
        """Call a webhook as others do, with the client's own connection.

        Args:
            path: The webhook's path.
            method: The HTTP method of the call.
            headers: The call's headers: a mapping, or pairs as in ASGI.
            body: The call's body: JSON or a form.
        """
        if not isinstance(body, bytes):
            raise BadArgument(f"body must be bytes, got {shorten(body)}")
        return await self._connection.send(
            str(method).upper(), WebhookReceipt, "/api/webhooks/{}", path, content=body, headers=read_headers(headers)
        )

    async def remove(self, path: str) -> bool:
        """Remove a webhook. Return False if there is none.

        Args:
            path: Its path.
        """
        return (await self._connection.delete(dict[str, bool], WEBHOOK, path))["ok"]
