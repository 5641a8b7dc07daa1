"""`penstock tokens list|add|revoke`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import print_json, print_text
from ..session import build_relay_app, build_store_app
from ..tables import print_rows

tokens = Commands(name="tokens", help="List the tokens of the HTTP API; add or revoke one.")
COLUMNS = ("id", "name", "role", "createdAt", "expiresAt")


@tokens.default
@tokens.command(name="list")
def list_tokens(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """List the tokens of the HTTP API; never their text."""
    return asyncio.run(_list(common))


@tokens.command
def add(
    name: Annotated[str, Parameter(help="Who will use it; commands record this name.")],
    /,
    *,
    role: Annotated[
        Literal["viewer", "operator", "admin"],
        Parameter(help="A viewer reads, an operator also acts on runs and jobs, an admin does everything."),
    ] = "viewer",
    expires: Annotated[str | None, Parameter(help="How long it is valid: 30d. Default: until it is revoked.")] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Create a token and print its text, which is stored nowhere."""
    return asyncio.run(_add(name, role, expires, common))


@tokens.command
def revoke(
    id: Annotated[str, Parameter(help="Id of the token, as `penstock tokens list` prints it.")],
    /,
    *,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Revoke a token. Servers refuse it within five seconds."""
    return asyncio.run(_revoke(id, common))


async def _list(common: CommonOptions) -> int:
    async with build_store_app(common) as app:
        rows: list[dict[str, Any]] = [msgspec.to_builtins(token) for token in await app.tokens.list()]
    columns = (*COLUMNS, "unreadable") if any("unreadable" in row for row in rows) else COLUMNS
    print_rows(rows, columns, json=common.json, empty="No tokens: only this machine may call the API.")
    return 0


async def _add(
    name: str, role: Literal["viewer", "operator", "admin"], expires: str | None, common: CommonOptions
) -> int:
    async with build_relay_app(common) as app:
        token, text = await app.tokens.add(name, role, expires=expires)
    if common.json:
        print_json({**msgspec.to_builtins(token), "text": text})
    else:
        print_text(text)
    return 0


async def _revoke(id: str, common: CommonOptions) -> int:
    async with build_store_app(common) as app:
        token = await app.tokens.revoke(id)
    if common.json:
        print_json(msgspec.to_builtins(token))
    else:
        print_text(f"Revoked token {token.id} of {token.name}.")
    return 0
