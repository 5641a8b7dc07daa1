"""Who makes a request: by your own session, a token or a ticket. Without any token, only this machine may call."""

from __future__ import annotations

import ipaddress
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from ..app.tokens import ADMIN, Caller, Tokens
from ..core.api_errors import ApiError, Forbidden, TooManyRequests, Unauthorized
from ..core.clock import Clock
from ..core.text import shorten

MAX_BAD_TOKENS = 10  # of one address
MAX_BAD_TRIGGERS = 100  # others call from the same address too
BAD_TOKEN_WINDOW_MS = 60_000
MAX_SESSION_TICKET_MS = 3_600_000  # a connection by a ticket of your own session; it cannot be checked again
MAX_ADDRESSES = 10_000

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?")

Authenticate = Callable[[HTTPConnection], Awaitable[Caller | None]]
"""Returns the caller of a request from your own session, or None if there is none."""


class BadTokenLimit:
    """Refuses addresses that send wrong tokens again and again."""

    def __init__(self, clock: Clock, limit: int = MAX_BAD_TOKENS) -> None:
        self._clock = clock
        self._max = limit
        self._failures: OrderedDict[str, list[int]] = OrderedDict()

    def check(self, address: str) -> None:
        """Raise TooManyRequests if the address has sent too many wrong tokens."""
        since = self._clock.now_ms() - BAD_TOKEN_WINDOW_MS
        recent = [at for at in self._failures.get(address, ()) if at > since]
        if len(recent) >= self._max:
            raise TooManyRequests(f"{self._max} wrong names or tokens came from {address}; wait a minute and try again")

    def count(self, address: str) -> None:
        """Count a wrong token."""
        failures = self._failures.setdefault(address, [])
        failures.append(self._clock.now_ms())
        del failures[: -self._max]
        self._failures.move_to_end(address)
        while len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)


class Guard:
    """Finds the caller of a request, or refuses it."""

    def __init__(
        self,
        tokens: Tokens,
        clock: Clock,
        authenticate: Authenticate | None = None,
        allowed_origins: Collection[str] = (),
        *,
        allow_loopback: bool = True,
    ) -> None:
        self._tokens = tokens
        self._clock = clock
        self._allowed_origins = allowed_origins
        self._allow_loopback = allow_loopback  # without a token, while there are none
        self._authenticate = authenticate
        self._limit = BadTokenLimit(clock)

    async def identify(self, connection: HTTPConnection, *, allow_ticket: bool = False) -> Caller:
        """Return the caller. Tickets are for streams and sockets. Raise Unauthorized, Forbidden or TooManyRequests."""
        check_origin(connection, self._allowed_origins)
        if self._authenticate is not None and (caller := await self._authenticate(connection)) is not None:
            return caller
        address = address_of(connection)
        if (text := bearer(connection)) is not None:
            return await self._check(address, await self._checked(address, text, self._tokens.check))
        if allow_ticket and (ticket := connection.query_params.get("ticket")) is not None:
            return await self._check(address, await self._checked(address, ticket, self._tokens.take_ticket))
        if self._authenticate is not None or not self._allow_loopback or await self._tokens.exist():
            raise Unauthorized(
                "a token is required; `penstock tokens add NAME` creates one. Send it in the header Authorization, "
                "after the word Bearer; the command line takes --token or PENSTOCK_TOKEN"
            )
        check_loopback(connection)
        return Caller("local", ADMIN)

    async def recheck(self, connection: HTTPConnection, caller: Caller, since_ms: int) -> Caller:
        """Return the caller of a connection that has been open since a time. Raise Unauthorized or Forbidden if the
        token was revoked or has expired, your own session has ended, or the first token was created meanwhile."""
        if caller.token is not None:
            found = await self._tokens.check_id(caller.token)
        elif self._authenticate is not None:
            found = await self._authenticate(connection)
            if found is None and "ticket" in connection.query_params:
                age_ms = self._clock.now_ms() - since_ms
                found = caller if age_ms < MAX_SESSION_TICKET_MS else None
        else:
            found = None if not self._allow_loopback or await self._tokens.exist() else caller
        if found is None:
            raise Unauthorized("the token or the session of this connection has ended; connect again with a valid one")
        return found

    async def _checked(
        self, address: str, text: str, check: Callable[[str], Awaitable[Caller | None]]
    ) -> Caller | None:
        self._limit.check(address)
        return await check(text)

    async def _check(self, address: str, caller: Caller | None) -> Caller:
        if caller is None:
            self._limit.count(address)
            raise Unauthorized(
                "the token or ticket is unknown, used, revoked or expired; `penstock tokens list` prints the tokens"
            )
        return caller


def bearer(connection: HTTPConnection) -> str | None:
    """Return the token of a request, if it has one."""
    scheme, _, text = connection.headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" and text.strip() else None


def address_of(connection: HTTPConnection) -> str:
    """Return the address of the caller, or an empty string for a socket without one."""
    return connection.client.host if connection.client is not None else ""


def check_headers(connection: HTTPConnection) -> None:
    """Raise ApiError for a request that says two things at once: a proxy before this server may read the other one."""
    headers = connection.headers
    for name in ("host", "origin", "authorization", "penstock-namespace"):
        if len(found := headers.getlist(name)) > 1:
            raise ApiError(f"the request has {len(found)} headers {name.title()}; send one")
    if connection.scope.get("http_version") == "1.1" and not headers.get("host"):
        raise ApiError("the request has no header Host; send the name or the address that you call")


def check_loopback(connection: HTTPConnection) -> None:
    """Raise Forbidden unless both the caller and the Host header are of this machine.

    A page of another site can make a browser call this server under a name of its own (DNS rebinding); the Host header
    has that name then."""
    host = connection.headers.get("host", "")
    if not is_loopback(address_of(connection)) or not is_loopback(_host_name(host)):
        raise Forbidden(
            f"without tokens, only this machine may call the API, as localhost or 127.0.0.1; got a request from "
            f"{shorten(address_of(connection))} for {shorten(host)}. `penstock tokens add NAME` creates a token"
        )


def check_origin(connection: HTTPConnection, allowed: Collection[str]) -> None:
    """Raise Forbidden if a page of another site makes the request."""
    origin = connection.headers.get("origin")
    if origin is None or origin in allowed:
        return
    if _place_of(origin) != connection.headers.get("host", "").lower():
        raise Forbidden(f"a page of {shorten(origin)} may not call this API; add the origin to allowed_origins")


def _host_name(host: str) -> str:
    """Return the name in a header Host; an empty string if it is no name or address with a port."""
    found = _HOST.fullmatch(host)
    return found[1].strip("[]") if found is not None else ""


def _place_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # such as http://[::1
        return ""


@lru_cache(256)
def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
