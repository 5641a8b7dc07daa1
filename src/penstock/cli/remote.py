"""Commands against a server: `--url http://…` talks to the HTTP API instead of a store."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ..app.redrive import RedriveResult
from ..app.tokens import token_namespace
from ..client import Client
from ..commit.preview import Preview
from ..core.clock import Clock, SystemClock
from ..core.errors import NeedsStore, NotFound
from ..core.events import Event, EventBodies
from ..core.redaction import Redactor
from ..flows.run_record import OPEN
from ..flows.webhook_commands import WebhookReceipt
from ..handlers.registry import Registry
from ..jobs.dead_letters import DeadLetter
from ..settings import Settings
from .options import CommonOptions

PAGE_LETTERS = 100


def needs_store(what: str) -> NeedsStore:
    """Build the error of a command that has no route."""
    return NeedsStore(
        f"{what} needs direct access to the store, but --url points to a Penstock server; pass the URL of that "
        "server's store, such as sqlite:///penstock.db"
    )


class RemoteApp:
    """A client with what commands use of an App. What the API does not have raises NeedsStore."""

    def __init__(self, common: CommonOptions) -> None:
        settings = Settings.load({"url": common.url, "token": common.token})
        token = settings.token or os.environ.get("PENSTOCK_TOKEN") or None
        self._client = Client(settings.url, token=token)
        namespace = token_namespace(token) if token else ""
        self.settings = replace(settings, namespace=namespace or settings.namespace)
        self.clock: Clock = SystemClock()
        self.registry = _RemoteRegistry()
        self.store = _RemoteStore(self._client)
        self._bodies = EventBodies(self.settings.namespace, Redactor(settings.redact))

    async def __aenter__(self) -> RemoteApp:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    def __getattr__(self, name: str) -> Any:
        facet = getattr(self._client, name, None)
        if facet is None:
            raise needs_store("this command")
        return facet if callable(facet) else _FACETS.get(name, _Facet)(name, facet, self)

    async def list_settings(self) -> list[dict[str, Any]]:
        """Return the settings of the server, with their sources."""
        return await self._client._connection.get(list[dict[str, Any]], "/api/_settings")


class _RemoteRegistry(Registry):
    """No code: the server has it, and checks names and inputs."""

    def flow(self, name: str, others: Iterable[str] = ()) -> Any:  # noqa: ARG002
        return None


class _Facet:
    """A facet of the client."""

    def __init__(self, name: str, facet: Any, app: RemoteApp) -> None:
        self._name = name
        self._facet = facet
        self._app = app

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._facet, name, None)
        if found is None:
            raise needs_store(f"{self._name}.{name.lstrip('_')}")
        return found


class _RemoteWaits(_Facet):
    """Waits: the server records where a trigger was fired from."""

    async def fire(self, token: str, data: Any = None, *, signature: Any = None, source: str = "") -> str:  # noqa: ARG002
        """Fire a trigger by its token or its URL."""
        return str(await self._facet.fire(token, data, signature=signature))


class _RemoteDeadLetters(_Facet):
    """Dead letters: a function selects and changes them here, and the server redrives each."""

    async def redrive_all(
        self,
        queue: str,
        *,
        where: Callable[[DeadLetter], bool] | None = None,
        change: Callable[[Any], Any] | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> RedriveResult | Preview:
        """Redrive the dead letters of a queue that a function selects."""
        if where is None and change is None:
            return await self._facet.redrive_all(queue, limit=limit, dry_run=dry_run)  # type: ignore[no-any-return]
        if dry_run:
            raise needs_store("dlq redrive --all --dry-run with --error or --input")
        done, after = RedriveResult({}, {}), None
        while page := await self._facet.list(queue, after=after, limit=PAGE_LETTERS):
            after = page[-1][0]
            for id, letter in page:
                if limit is not None and len(done.sent) >= limit:
                    return done
                if where is None or where(letter):
                    more = {} if change is None else {"input": change(letter.original_data)}
                    one = await self._facet.redrive(id, **more)
                    done.sent.update(one.sent)
                    done.refused.update(one.refused)
        return done


class _RemoteWebhooks(_Facet):
    """Webhooks: a call goes to the address that others call too."""

    async def receive(
        self,
        path: str,
        method: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        source: str = "",  # noqa: ARG002
    ) -> WebhookReceipt:
        """Send one call to a webhook."""
        receipt: WebhookReceipt = await self._facet.receive(path, method, headers, body)
        return receipt


_FACETS: Mapping[str, type[_Facet]] = {
    "waits": _RemoteWaits,
    "dead_letters": _RemoteDeadLetters,
    "webhooks": _RemoteWebhooks,
}


class _RemoteStore:
    """The few reads that commands make past the facets."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        raise needs_store("this command")

    async def run(self, id: str) -> Any:
        try:
            view = await self._client.runs.get(id)
        except NotFound:
            return None
        return SimpleNamespace(id=id, kind="flow", flow=view.name, closed=view.status not in OPEN)

    async def job(self, id: str) -> Any:
        try:
            return await self._client.jobs.get(id)
        except NotFound:
            return None

    async def queues(self) -> Any:
        return await self._client.queues.list(internal=True)

    async def read(self, stream: str, **options: Any) -> list[Event]:
        return list(await self._client.events.read(stream, **options))

    async def tail(self, stream: str, *, after: str | None = None) -> AsyncIterator[Event]:
        async for event in self._client.events.subscribe(stream, after=after):
            yield event
