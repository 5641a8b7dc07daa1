"""`/api/_tokens` and `/api/_tickets`: who may call the API."""

from __future__ import annotations

import msgspec

from ...app.tokens import ADMIN, VIEWER, Role, Token
from ..endpoints import Body, Call, Routes

routes = Routes("tokens")


class TokenBody(Body):
    """A token to create."""

    name: str
    role: Role = VIEWER
    expires: float | str | None = None  # a duration such as 30d


class NewToken(msgspec.Struct):
    """A token with its text, which is shown once."""

    token: Token
    text: str


class Ticket(msgspec.Struct):
    """A ticket for one stream or socket: pass it as `?ticket=` within 30 seconds."""

    ticket: str


@routes.get("/api/_tokens", role=ADMIN)
async def list_tokens(call: Call) -> list[Token]:
    """List tokens, without their text."""
    return await call.services.app.tokens.list()


@routes.post("/api/_tokens", role=ADMIN, status=201, is_secret=True)
async def add_token(call: Call, body: TokenBody) -> NewToken:
    """Create a token. Its text is in the answer and nowhere else."""
    return NewToken(*await call.services.app.tokens.add(body.name, body.role, expires=body.expires))


@routes.delete("/api/_tokens/{id}", role=ADMIN)
async def revoke_token(call: Call, id: str) -> Token:
    """Revoke a token."""
    return await call.services.app.tokens.revoke(id)


@routes.post("/api/_tickets", role=VIEWER, status=201, is_command=False, is_secret=True)
async def create_ticket(call: Call) -> Ticket:
    """Create a ticket, for browsers: their event streams and sockets cannot send a header."""
    return Ticket(await call.services.app.tokens.issue_ticket(call.caller))
