"""`penstock waits list|token`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from ..app.waits import WaitView
from .options import USUAL_PLACE, Common
from .parse import read_limit
from .session import looking_app
from .tables import show_list

waits = Commands(name="waits", help="List what runs wait for, and make tokens.")
_SHOWN = ("run", "step", "kind", "for", "since", "until")


@waits.command(name="list")
@waits.default
def list_waits(
    *,
    run: Annotated[str | None, Parameter(help="Only those of this run.")] = None,
    kind: Annotated[str | None, Parameter(help="Only time, event or trigger.")] = None,
    after: Annotated[str | None, Parameter(help="Those after the wait of this id.")] = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 50,
    common: Common = USUAL_PLACE,
) -> int:
    """List what runs wait for: a time, an event or a trigger; 'doctor RUN' says how to let one go on."""
    found = asyncio.run(_list(common, run, kind, after, read_limit(limit)))
    none = "Nothing is waited for." if run is None else f"Run {run} waits for nothing."
    show_list([_object(wait) for wait in found], _SHOWN, json=common.json, none=none)
    return 0


@waits.command(name="token")
def new_token(
    trigger: Annotated[str, Parameter(help="The id of an open trigger, as 'waits list' shows it.")],
    /,
    *,
    common: Common = USUAL_PLACE,
) -> int:
    """Make another token for an open trigger, to be fired with 'penstock fire'; the others go on working."""
    token, url = asyncio.run(_token(common, trigger))
    print(msgspec.json.encode({"token": token, "url": url}).decode() if common.json else f"{token}\n{url}")
    return 0


async def _token(common: Common, trigger: str) -> tuple[str, str]:
    async with looking_app(common) as app:
        token = await app.waits.token(trigger)
        return token, f"{app.settings.public_url.rstrip('/')}/api/triggers/{token}"


async def _list(common: Common, run: str | None, kind: str | None, after: str | None, limit: int) -> list[WaitView]:
    async with looking_app(common) as app:
        if run is not None:
            await app.runs.get(run)  # a run that is not there is a mistake, not one that waits for nothing
        return await app.waits.list(run=run, kind=kind, after=after, limit=limit)


def _object(wait: WaitView) -> dict[str, Any]:
    match = f" {msgspec.json.encode(wait.match).decode()}" if wait.match else ""
    fields = {field.encode_name: getattr(wait, field.name) for field in msgspec.structs.fields(wait)}
    named = f"{wait.name} {wait.id}" if wait.kind == "trigger" else wait.name
    return {**fields, "for": f"{wait.event}{match}" if wait.event is not None else named}
