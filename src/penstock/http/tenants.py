"""Tenants: one server for many namespaces. Each has a store, tokens and streams of its own.

A request names its namespace with the path prefix `/ns/{namespace}`, the header `Penstock-Namespace`, or a token, which
ends in its namespace. The App of a namespace is opened by the first request and closed when none has come for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

from starlette.requests import HTTPConnection

from ..app.app import App
from ..app.tokens import token_namespace
from ..core.api_errors import ApiError, ServerBusy, UnknownNamespace
from ..core.clock import Clock, SystemClock
from ..core.durations import Duration, to_ms
from ..core.ids import BadId, check_name
from ..core.text import shorten
from .auth import MAX_BAD_TRIGGERS, BadTokenLimit, bearer
from .router import Router
from .services import ServerOptions, Services

log = logging.getLogger("penstock.http")
PATH_PREFIX = "/ns/"
HEADER = "penstock-namespace"
CONNECT_TIMEOUT_S = 10.0

IsKnown = Callable[[str], Awaitable[bool]]
NamespaceFrom = Callable[[HTTPConnection], str | None]


class Tenants:
    """The namespaces that a server serves, and how to make their Apps.

        shared = SharedConnections()
        tenants = Tenants(lambda name: App(url, "workers", namespace=name, connections=shared), ["acme", "globex"])
        application = asgi_app(tenants)

    Args:
        make_app: A function that makes the App of a namespace; it is opened and closed here.
        known: The namespaces, or an async function that says whether one exists. Others are refused.
        namespace_from: A function of the request that returns its namespace, such as by its host name, or None. It is
            asked besides the path, the header and the token; two that differ are refused.
        max_open: Maximum number of Apps open at once. The one that was idle longest is closed for another.
        idle: Close an App after this long without a request.
        clock: Where time comes from.
    """

    def __init__(
        self,
        make_app: Callable[[str], App],
        known: Collection[str] | IsKnown,
        *,
        namespace_from: NamespaceFrom | None = None,
        max_open: int = 100,
        idle: Duration = "10m",
        clock: Clock | None = None,
    ) -> None:
        self._make_app = make_app
        self._known = known
        self._namespace_from = namespace_from
        self._max_open = max_open
        self._idle_ms = to_ms(idle)
        self._clock = clock or SystemClock()
        self._open: dict[str, _Tenant] = {}
        self._is_closed = False
        self._limit = BadTokenLimit(self._clock, MAX_BAD_TRIGGERS)
        self._sweeping: asyncio.Task[None] | None = None
        self._router: Router
        self._options: ServerOptions

    def prepare(self, router: Router, options: ServerOptions) -> None:
        """Set what the services of all namespaces share. `asgi_app` calls it."""
        self._router, self._options = router, options

    def find_namespace(self, connection: HTTPConnection, path: str) -> tuple[str, str]:
        """Return the namespace that a request names, and the path without it."""
        return find_namespace(connection, path, self._namespace_from)

    @property
    def names(self) -> list[str]:
        """The namespaces whose Apps are open."""
        return sorted(self._open)

    @asynccontextmanager
    async def use(self, namespace: str, address: str = "") -> AsyncIterator[Services]:
        """Yield the services of a namespace; its App stays open meanwhile. Raise UnknownNamespace or ServerBusy.

        An address that tries many unknown ones is refused."""
        self._limit.check(address)
        try:
            await self._check_known(namespace)
        except UnknownNamespace:
            self._limit.count(address)
            raise
        tenant = await self._acquire(namespace)
        try:
            yield await tenant.open()
        finally:
            tenant.users -= 1
            tenant.used_ms = self._clock.now_ms()
            if tenant.has_failed and not tenant.users:
                self._open.pop(namespace, None)

    async def close_idle(self) -> None:
        """Close the Apps that nobody used for a while."""
        limit = self._clock.now_ms() - self._idle_ms
        for tenant in [one for one in self._open.values() if not one.users and one.used_ms <= limit]:
            await self._close(tenant)

    async def close(self) -> None:
        """Close every App."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait((self._sweeping,))
        while self._open:
            await self._close(next(iter(self._open.values())))

    async def _check_known(self, namespace: str) -> None:
        try:
            check_name(namespace, "namespace")
        except BadId as problem:
            raise UnknownNamespace(str(problem)) from None
        known = self._known
        if not (await known(namespace) if callable(known) else namespace in known):
            raise UnknownNamespace(f"no namespace {shorten(namespace)} here; check its name with the operator")

    async def _acquire(self, namespace: str) -> _Tenant:
        """Return the tenant, counted as used. Close another one if there are too many."""
        if self._is_closed:
            raise ServerBusy("the server shuts down; try again later")
        while (tenant := self._open.get(namespace)) is None and len(self._open) >= self._max_open:
            idle = [one for one in self._open.values() if not one.users and not one.is_closing]
            if not idle:
                raise ServerBusy(f"{self._max_open} namespaces are in use here, which is the limit; try again later")
            await self._close(min(idle, key=lambda one: one.used_ms))
        if tenant is None or tenant.is_closing:
            if tenant is not None:
                await tenant.closed.wait()
                return await self._acquire(namespace)
            tenant = self._open[namespace] = _Tenant(namespace, self._make_app, self._router, self._options)
        tenant.users += 1
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep(), name="penstock-idle-namespaces")
        return tenant

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._idle_ms / 2000)
            await self.close_idle()

    async def _close(self, tenant: _Tenant) -> None:
        if tenant.is_closing:
            await tenant.closed.wait()
            return
        try:
            await tenant.close()
        except Exception as problem:
            log.warning("closing namespace %s failed", tenant.namespace, exc_info=problem)
        finally:
            if self._open.get(tenant.namespace) is tenant:
                del self._open[tenant.namespace]
            tenant.closed.set()


class _Tenant:
    """One namespace: its services, and who uses them."""

    def __init__(self, namespace: str, make_app: Callable[[str], App], router: Router, options: ServerOptions) -> None:
        self.namespace = namespace
        self.users = 0
        self.used_ms = 0
        self.is_closing = False
        self.has_failed = False
        self.closed = asyncio.Event()
        self._make_app = make_app
        self._router = router
        self._options = options
        self._services: Services | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> Services:
        async with self._opening:
            if self._services is None:
                try:
                    app = self._make_app(self.namespace)
                    services = Services(app, self._router, self._options, allow_loopback=False)
                    await app.open(connect_timeout=CONNECT_TIMEOUT_S)
                except BaseException:
                    self.has_failed = True
                    raise
                self._services, self.has_failed = services, False
            return self._services

    async def close(self) -> None:
        self.is_closing = True
        if self._services is not None:
            await self._services.close()
            await self._services.app.close()


def find_namespace(
    connection: HTTPConnection, path: str, namespace_from: NamespaceFrom | None = None
) -> tuple[str, str]:
    """Return the namespace that a request names, and the path without it.

    The path, the header, the token and your own function must not name different ones."""
    named: dict[str, str] = {}
    if path.startswith(PATH_PREFIX):
        name, slash, rest = path.removeprefix(PATH_PREFIX).partition("/")
        named["path"], path = name, slash + rest
    if (header := connection.headers.get(HEADER)) is not None:
        named["header"] = header
    if (token := bearer(connection)) is not None and (of_token := token_namespace(token)):
        named["token"] = of_token
    if namespace_from is not None and (found := namespace_from(connection)) is not None:
        named["request"] = found
    if not named:
        raise ApiError(
            "this server has several namespaces: name one with the path /ns/<namespace>/api/…, the header "
            "Penstock-Namespace, or a token of it"
        )
    if len(set(named.values())) > 1:
        raise UnknownNamespace("the path, the header, the token and the host of this request name different namespaces")
    return next(iter(named.values())), path
