"""`app.webhooks`: standing webhooks, registered in the store or declared in the code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.argument_checks import check_arguments
from ..core.errors import BadArgument, UnknownWebhook, UnreadableRecord
from ..core.near_match import near_matches
from ..core.stored import read_stored
from ..core.text import shorten
from ..durable.wait_records import CallOrigin
from ..flows.webhook_commands import WebhookCommands, WebhookReceipt
from ..handlers.webhooks import KEY_HEADER, Webhook, check_webhook, decode_webhook
from ..ports.store import StateRow
from ..ports.unit import StateWrite, Unit

PREFIX = "webhook/"
PAGE = 200


@check_arguments
class Webhooks:
    """Addresses that start a flow or emit an event each time they are called. `receive` takes the calls."""

    def __init__(self, runtime: Runtime, commands: WebhookCommands) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._commands = commands

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
            flow: The flow or dag that each call starts, with the body as its input.
            event: Or the kind of event that each call emits globally, with the body as its data.
            method: The HTTP method it accepts, or a list of methods.
            schema: JSON schema the body must match.
            signed: Environment variable with the secret that callers sign with, as in Standard Webhooks.
            key_header: Header with the idempotency key of a call. The signed id `webhook-id` goes first.
        """
        webhook = check_webhook(
            path, flow=flow, event=event, method=method, schema=schema, signed=signed, key_header=key_header
        )
        registry = self._runtime.registry()
        if webhook.path in registry.webhooks:
            raise BadArgument(
                f"webhook {webhook.path!r} is declared by flow {registry.webhooks[webhook.path].flow!r}; change it "
                "there, or use another path"
            )
        if flow is not None and registry.flows and not await self._commands.is_dag(flow):
            registry.flow(flow)
        await self._write(StateWrite(PREFIX + webhook.path, msgspec.json.encode(webhook)))
        return webhook

    async def list(self) -> list[Webhook]:
        """Return all webhooks, by path: those of the store, and those that the loaded code declares.

        One whose record is damaged has `unreadable`."""
        found = {webhook.path: webhook for webhook in await self._stored()}
        found.update(self._runtime.registry().webhooks)
        return [found[path] for path in sorted(found)]

    async def get(self, path: str) -> Webhook:
        """Return a webhook. Raise UnknownWebhook if there is none.

        Args:
            path: Its path.
        """
        name = path.strip("/")
        declared = self._runtime.registry().webhooks.get(name)
        if declared is not None:
            return declared
        row = await self._store.state(PREFIX + name)
        if row is None:
            near = near_matches(name, [webhook.path for webhook in await self.list()], 1)
            hint = f"did you mean {near[0]!r}?" if near else "run `penstock webhooks` to see all"
            raise UnknownWebhook(f"no webhook with the path {shorten(path)}; {hint}")
        return _read(row)

    async def remove(self, path: str) -> bool:
        """Remove a webhook from the store. Return False if there is none; a declared one is removed in the code.

        Args:
            path: Its path.
        """
        key = PREFIX + path.strip("/")
        if await self._store.state(key) is None:
            return False
        await self._write(StateWrite(key, None))
        return True

    async def receive(
        self,
        path: str,
        method: str = "POST",
        headers: Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]] = (),
        body: bytes = b"",
        *,
        source: str = "app",
        ip: str | None = None,
    ) -> WebhookReceipt:
        """Receive a call: validate it, record it as `webhook.received`, and start the run or emit the event, all in
        one commit. A call with an idempotency key that was used before changes nothing.

        Args:
            path: The webhook's path.
            method: The HTTP method of the call.
            headers: The call's headers: a mapping, or pairs as in ASGI.
            body: The call's body as received: JSON or a form.
            source: Where the call came from, such as `http`; recorded.
            ip: Address of the caller; recorded.
        """
        webhook = await self.get(path)
        return await self._commands.receive(webhook, method, headers, body, CallOrigin(source, ip))

    async def _stored(self) -> Sequence[Webhook]:
        found: Sequence[Webhook] = ()
        after: str | None = None
        while rows := await self._store.states(PREFIX, after=after, limit=PAGE):
            after = rows[-1].key
            found = [*found, *map(_show, rows)]
        return found

    async def _write(self, write: StateWrite) -> None:
        unit = Unit(self._runtime.new_unit_id(), state=[write])
        await self._runtime.committer.submit(CommitRequest(lambda _v, _r: unit))


def _show(row: StateRow) -> Webhook:
    try:
        return _read(row)
    except UnreadableRecord as problem:
        return Webhook(row.key.removeprefix(PREFIX), unreadable=problem.reason)


def _read(row: StateRow) -> Webhook:
    path = row.key.removeprefix(PREFIX)
    return read_stored(decode_webhook, row.value, f"webhook {path!r}", "register it again: `penstock webhooks add`")
