"""`app.tokens`: who may call the HTTP API. A token has a role; the store has only its hash."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import AsyncIterator
from typing import Annotated, Literal

import msgspec

from ..commit.runtime import Runtime
from ..core.api_errors import UnknownToken
from ..core.argument_checks import check_arguments
from ..core.clock import MAX_TIME_MS, to_iso
from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument
from ..core.ids import check_name
from ..core.payload import DECODE_ERRORS
from ..core.stored import describe_problem
from ..core.text import any_of, shorten
from ..ports.store import StateRow
from ..ports.unit import StateWrite
from ..settings import Settings
from .state import AppState

Role = Literal["viewer", "operator", "admin"]
VIEWER: Role = "viewer"
OPERATOR: Role = "operator"
ADMIN: Role = "admin"
ROLES: tuple[Role, ...] = (VIEWER, OPERATOR, ADMIN)

TOKEN_PREFIX = "pst_"  # noqa: S105
STATE_PREFIX = "auth/"
IN_USE = "in_use"  # a key that stays while there is a token: the list of keys may be damaged
# A revoked token works at most five seconds longer: a server asks the store again after this time, and asks as often
# for the callers of open streams and sockets (`http/admission.py`).
MIN_LIFETIME_MS = 1000
TOKEN_CACHE_MS = 2_500
TICKET_TTL_MS = 30_000
MAX_TOKEN_CHARS, MAX_TICKET_CHARS = 500, 100
PAGE = 100
log = logging.getLogger("penstock.tokens")


class Caller(msgspec.Struct, frozen=True):
    """Who makes a request. A predicate of your own returns one of these."""

    name: str
    role: Role = VIEWER
    token: str | None = None  # id of the token; None for a session of your own

    def may(self, role: Role) -> bool:
        """Return whether the caller's role includes another one: an admin may do everything."""
        return ROLES.index(self.role) >= ROLES.index(role)


class Token(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A token as lists show it: never its secret."""

    id: str
    name: str
    role: Role
    created_at: str
    expires_at: str | None = None
    unreadable: str | None = None  # why the rest is missing; nobody can use it, and `revoke` removes it


_Time = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME_MS)]


class _StoredToken(msgspec.Struct, frozen=True):
    name: str
    role: Role
    hash: str
    created: _Time
    expires: _Time | None = None


class _StoredTicket(msgspec.Struct, frozen=True, array_like=True):
    name: str
    role: Role
    token: str | None = None


_decode_token = msgspec.json.Decoder(_StoredToken).decode
_decode_ticket = msgspec.json.Decoder(_StoredTicket).decode


def _hash(secret: str) -> str:
    # A random secret of 256 bits needs no slow hash: it cannot be guessed.
    return hashlib.sha256(secret.encode()).hexdigest()


def token_namespace(text: str) -> str:
    """Return the namespace that a token names, so that a server of several finds its store. Empty: the default one."""
    return text.partition(".")[2] if text.startswith(TOKEN_PREFIX) and len(text) <= MAX_TOKEN_CHARS else ""


@check_arguments
class Tokens:
    """The tokens of one namespace, in its store."""

    def __init__(self, runtime: Runtime) -> None:
        self._state = AppState(runtime, STATE_PREFIX)
        self._store = runtime.store
        name = runtime.bodies.namespace.strip("{}")
        self._suffix = f".{name}" if name != Settings.namespace else ""
        self._clock = runtime.clock
        self._known: dict[str, tuple[int, _StoredToken | None]] = {}
        self._any: tuple[int, bool] = (0, False)

    async def add(self, name: str, role: Role = "viewer", *, expires: Duration | None = None) -> tuple[Token, str]:
        """Create a token. Return it with its text, which is stored nowhere.

        Args:
            name: Who will use it; commands record this name.
            role: "viewer" reads, "operator" also acts on runs and jobs, "admin" does everything.
            expires: How long it is valid, such as "30d". Default: until it is revoked.
        """
        check_name(name, "name of a token")
        if not isinstance(role, str) or role not in ROLES:
            raise BadArgument(f"role must be {any_of(ROLES)}, got {shorten(role)}")
        lifetime_ms = to_ms(expires) if expires is not None else None
        if lifetime_ms is not None and lifetime_ms < MIN_LIFETIME_MS:
            raise BadArgument(f"expires must be at least 1s, such as 30d, got {shorten(expires)}; omit it for no end")
        id, secret, now = secrets.token_hex(6), secrets.token_urlsafe(32), self._clock.now_ms()
        stored = _StoredToken(name, role, _hash(secret), now, now + lifetime_ms if lifetime_ms is not None else None)
        await self._state.set(IN_USE, True)
        await self._state.set(f"token/{id}", msgspec.to_builtins(stored))
        self._any = (now, True)
        return self._show(id, msgspec.json.encode(stored)), f"{TOKEN_PREFIX}{id}_{secret}{self._suffix}"

    async def list(self) -> list[Token]:
        """Return all tokens, by id. One whose record is damaged has `unreadable`."""
        return [self._show(id, row.value) async for id, row in self._rows()]

    async def revoke(self, id: str) -> Token:
        """Revoke a token. Servers refuse it within five seconds.

        Args:
            id: Id of the token, as `list` returns it.
        """
        row = await self._store.state(f"{STATE_PREFIX}token/{id}")
        if row is None:
            raise UnknownToken(f"no token with id {shorten(id)}; `penstock tokens list` prints them")
        await self._state.delete(f"token/{id}")
        self._known.pop(id, None)
        self._any = (0, False)
        if not await self._store.states(f"{STATE_PREFIX}token/", after=None, limit=1):
            await self._state.delete(IN_USE)
        return self._show(id, row.value)

    async def exist(self) -> bool:
        """Return whether there is a token: without one, only loopback may call the API."""
        now = self._clock.now_ms()
        checked, found = self._any
        if (not found and now - checked >= TOKEN_CACHE_MS) or now - checked >= 24 * TOKEN_CACHE_MS:
            found = await self._store.state(STATE_PREFIX + IN_USE) is not None
            found = found or bool(await self._store.states(f"{STATE_PREFIX}token/", after=None, limit=1))
            self._any = (now, found)
        return found

    async def check(self, text: str) -> Caller | None:
        """Return the caller that a token belongs to, or None if it is invalid or expired.

        Args:
            text: The text of the token.
        """
        id, _, secret = text.removeprefix(TOKEN_PREFIX).removesuffix(self._suffix).partition("_")
        if not text.startswith(TOKEN_PREFIX) or not secret or not id.isalnum() or len(text) > MAX_TOKEN_CHARS:
            return None
        stored = await self._find(id)
        if stored is None or not hmac.compare_digest(_hash(secret).encode(), stored.hash.encode()):
            return None
        return Caller(stored.name, stored.role, id)

    async def check_id(self, id: str) -> Caller | None:
        """Return the caller that a token belongs to, or None if it was revoked or has expired since it was checked.

        Args:
            id: Id of the token, as `Caller.token` has it.
        """
        stored = await self._find(id)
        return Caller(stored.name, stored.role, id) if stored is not None else None

    async def issue_ticket(self, caller: Caller) -> str:
        """Return a ticket: it opens one stream or socket within 30 s, from a browser that cannot send headers.

        Args:
            caller: Who will use it.
        """
        if not isinstance(caller, Caller):
            raise BadArgument(f"caller must be a Caller, got {shorten(caller)}")
        ticket = secrets.token_urlsafe(24)
        await self._state.set(
            f"ticket/{_hash(ticket)}", list(msgspec.structs.astuple(caller)), ttl=TICKET_TTL_MS / 1000
        )
        return ticket

    async def take_ticket(self, ticket: str) -> Caller | None:
        """Use a ticket up. Return its caller, or None if it is unknown, used or expired.

        Args:
            ticket: The text of the ticket.
        """
        if len(ticket) > MAX_TICKET_CHARS:
            return None
        key = f"{STATE_PREFIX}ticket/{_hash(ticket)}"
        row = await self._store.state(key)
        # Deleted by compare-and-set: of two requests with the same ticket, one wins.
        if row is None or not await self._state._write(StateWrite(key, None, row.version)):
            return None
        try:
            return Caller(*msgspec.structs.astuple(_decode_ticket(row.value)))
        except DECODE_ERRORS:
            return None

    async def _rows(self) -> AsyncIterator[tuple[str, StateRow]]:
        prefix, after = f"{STATE_PREFIX}token/", None
        while rows := await self._store.states(prefix, after=after, limit=PAGE):
            after = rows[-1].key
            for row in rows:
                yield row.key.removeprefix(prefix), row

    async def _find(self, id: str) -> _StoredToken | None:
        """Return a valid token by its id, from what was read lately or from the store."""
        now = self._clock.now_ms()
        checked, stored = self._known.get(id, (0, None))
        if stored is None or now - checked >= TOKEN_CACHE_MS:
            stored = await self._load(id)
            if stored is None:
                self._known.pop(id, None)
                return None
            self._known[id] = (now, stored)
        return stored if (stored.expires or now + 1) > now else None

    async def _load(self, id: str) -> _StoredToken | None:
        """Return a token; None for one that is damaged, so that nobody can use it."""
        row = await self._store.state(f"{STATE_PREFIX}token/{id}")
        try:
            return _decode_token(row.value) if row is not None else None
        except DECODE_ERRORS as problem:
            log.error("token %s cannot be read: %s; revoke it: `penstock tokens revoke %s`", id, problem, id)
            return None

    def _show(self, id: str, data: bytes) -> Token:
        try:
            stored = _decode_token(data)
        except DECODE_ERRORS as problem:
            return Token(id, "", VIEWER, "", unreadable=describe_problem(problem, data))
        expires = to_iso(stored.expires) if stored.expires is not None else None
        return Token(id, stored.name, stored.role, to_iso(stored.created), expires)
