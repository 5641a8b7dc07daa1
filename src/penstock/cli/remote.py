"""Commands against a server: `--url http://…` talks to the HTTP API instead of a store."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ..app.tokens import token_namespace
from ..client import Client
from ..core.clock import Clock, SystemClock
from ..core.errors import NeedsStore, NotFound
from ..core.events import Event, EventBodies
from ..core.redaction import Redactor
from ..flows.run_record import OPEN
from ..handlers.registry import Registry
from ..settings import Settings
from .options import CommonOptions


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
        return facet if callable(facet) else _Facet(name, facet, self)


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

    async def _start(self, flow: str, input: Any, *, key: str | None = None, **options: Any) -> tuple[str, bool]:
        """Start a run and return its id, and whether it is new."""
        exists = key is not None and await self._app.store.run(key) is not None
        return str(await self._facet.start(flow, input, key=key, **options)), not exists


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
