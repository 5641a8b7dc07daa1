"""`penstock webhooks list|add|remove|receive`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from ...handlers.webhooks import KEY_HEADER
from ..errors import UsageError
from ..options import COMMON_DEFAULTS, CommonOptions
from ..parse import read_input
from ..session import build_admin_app
from ..tables import print_result, print_rows

webhooks = Commands(name="webhooks", help="List webhooks that start flows or emit events; add, remove, receive.")
_COLUMNS = ("path", "methods", "flow", "event", "signed", "declared")


@webhooks.command(name="list")
@webhooks.default
def list_webhooks(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """List the webhooks of the store, and those that the worker files declare."""

    async def read() -> list[Any]:
        async with build_admin_app(common) as app:
            return await app.webhooks.list()

    rows = [{**msgspec.to_builtins(one), "methods": " ".join(one.methods)} for one in asyncio.run(read())]
    columns = (*_COLUMNS, "unreadable") if any("unreadable" in row for row in rows) else _COLUMNS
    print_rows(rows, columns, json=common.json, empty="No webhooks.")
    return 0


@webhooks.command(name="add")
def add_webhook(
    path: Annotated[str, Parameter(help="Path of the webhook, such as shop/orders.")],
    /,
    *,
    flow: Annotated[str | None, Parameter(help="The flow that each call starts.")] = None,
    event: Annotated[str | None, Parameter(help="Or the kind of event that each call emits.")] = None,
    method: Annotated[list[str] | None, Parameter(help="HTTP methods it accepts. Default: POST.")] = None,
    schema: Annotated[str | None, Parameter(help="JSON schema of the body: JSON, @FILE or -.")] = None,
    signed: Annotated[str | None, Parameter(help="Environment variable with the secret of signed calls.")] = None,
    key_header: Annotated[str, Parameter(help="Header with the idempotency key of a call.")] = KEY_HEADER,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Add a webhook, or replace the one with this path."""
    options: Any = {"flow": flow, "event": event, "signed": signed, "key_header": key_header}
    rules = read_input(schema, "--schema")

    async def register() -> Any:
        async with build_admin_app(common) as app:
            return await app.webhooks.register(path, method=method or "POST", schema=rules, **options)

    webhook = asyncio.run(register())
    does = f"starts flow {webhook.flow}" if webhook.flow is not None else f"emits {webhook.event}"
    print_result(f"Added webhook {webhook.path}: it {does}.", msgspec.to_builtins(webhook), json=common.json)
    return 0


@webhooks.command(name="remove")
def remove_webhook(
    path: Annotated[str, Parameter(help="Path of the webhook.")], /, *, common: CommonOptions = COMMON_DEFAULTS
) -> int:
    """Remove a webhook from the store."""

    async def remove() -> bool:
        async with build_admin_app(common) as app:
            if not await app.webhooks.remove(path):
                await app.webhooks.get(path)  # an unknown path is an error
                raise UsageError(f"webhook {path!r} is declared in a worker file; remove it there")
            return True

    asyncio.run(remove())
    print_result(f"Removed webhook {path}.", {"path": path, "removed": True}, json=common.json)
    return 0


@webhooks.command(name="receive")
def receive_webhook(
    path: Annotated[str, Parameter(help="Path of the webhook.")],
    /,
    *,
    data: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help="Body of the call: JSON, @FILE or -.")
    ] = None,
    method: Annotated[str, Parameter(help="HTTP method of the call.")] = "POST",
    header: Annotated[list[str] | None, Parameter(help="A header of the call, as 'Name: value'.")] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Receive one call, as a web server would pass it on: to try a webhook."""
    body = msgspec.json.encode(read_input(data, "--data")) if data is not None else b""
    headers = dict(_read_header(one) for one in header or ())

    async def receive() -> Any:
        async with build_admin_app(common) as app:
            return await app.webhooks.receive(path, method, headers, body, source="cli")

    receipt = asyncio.run(receive())
    done = f"Started run {receipt.run}." if receipt.run is not None else f"Emitted {receipt.event} (global)."
    before = "the idempotency key was used before" + (", by a call with another body" if receipt.differs else "")
    text = done if receipt.is_new else f"Nothing was done: {before}."
    print_result(text, {**msgspec.to_builtins(receipt), "isNew": receipt.is_new}, json=common.json)
    return 0


def _read_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageError(f"--header must be 'Name: value', got {text!r}")
    return name.strip(), value.strip()
