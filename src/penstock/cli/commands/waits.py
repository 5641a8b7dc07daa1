"""`penstock waits list|token`."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from ...app.waits import WaitView
from ...durable.triggers import trigger_url
from ..errors import warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import Reveal, SecretFilter, print_json, print_text
from ..parse import read_limit
from ..session import build_store_app
from ..tables import print_rows

waits = Commands(name="waits", help="List pending waits; create trigger tokens.")
_COLUMNS = ("run", "step", "kind", "for", "since", "until")


@waits.command(name="list")
@waits.default
def list_waits(
    *,
    run: Annotated[str | None, Parameter(help="Only waits of this run.")] = None,
    kind: Annotated[str | None, Parameter(help="Only waits of this kind: time, event or trigger.")] = None,
    after: Annotated[str | None, Parameter(help="Only waits after the wait with this id.")] = None,
    limit: Annotated[int, Parameter(help="Maximum number of rows.")] = 50,
    reveal: Reveal = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """List pending waits for a time, an event or a trigger; 'doctor RUN' explains how to resolve one."""
    found = asyncio.run(_list(common, run, kind, after, read_limit(limit)))
    empty = "No pending waits." if run is None else f"Run {run} has no pending waits."
    secrets = SecretFilter(common, reveal)
    rows = [_wait_to_dict(wait, secrets.redact_value("match", wait.match)) for wait in found]
    columns = (*_COLUMNS, "unreadable") if any(wait.unreadable for wait in found) else _COLUMNS
    print_rows(rows, columns, json=common.json, empty=empty)
    return 0


@waits.command(name="token")
def new_token(
    trigger: Annotated[str, Parameter(help="Id of a pending trigger, as 'waits list' shows it.")],
    /,
    *,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Create another token for a pending trigger; earlier tokens stay valid.

    Prints the token on one line: penstock fire $(penstock waits token ID)
    """
    token, public_url = asyncio.run(_token(common, trigger))
    url = trigger_url(public_url, token)
    print_json({"token": token, "url": url}) if common.json else print_text(token)
    if not common.json and sys.stderr.isatty():
        note = "" if public_url else " of your application (set public_url for the whole URL)"
        warn(f"As a URL: {url}{note}. Your application has to answer it: Penstock has no HTTP server yet.")
    return 0


async def _token(common: CommonOptions, trigger: str) -> tuple[str, str]:
    async with build_store_app(common) as app:
        return await app.waits.token(trigger), app.settings.public_url


async def _list(
    common: CommonOptions, run: str | None, kind: str | None, after: str | None, limit: int
) -> list[WaitView]:
    async with build_store_app(common) as app:
        if run is not None:
            await app.runs.get(run)  # an unknown run is an error, not one without waits
        return await app.waits.list(run=run, kind=kind, after=after, limit=limit)


def _wait_to_dict(wait: WaitView, match: Any) -> dict[str, Any]:
    shown = f" {msgspec.json.encode(match).decode()}" if match else ""
    fields = {field.encode_name: getattr(wait, field.name) for field in msgspec.structs.fields(wait)}
    named = f"{wait.name} {wait.id}" if wait.kind == "trigger" else wait.name
    return {**fields, "match": match, "for": f"{wait.event}{shown}" if wait.event is not None else named}
