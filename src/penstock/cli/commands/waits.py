"""`penstock waits list|show|resolve|cancel|token`."""

from __future__ import annotations

import asyncio
import getpass
import sys
from typing import Annotated, Any

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from ...app.waits import WaitView
from ...durable.trigger_waits import trigger_url
from ..errors import warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import Reveal, SecretFilter, print_json, print_text
from ..parse import read_ago, read_input, read_limit
from ..preview import DryRun, IfVersion, print_dry_run
from ..session import build_store_app
from ..tables import print_result, print_rows

waits = Commands(name="waits", help="List waits and triggers; resolve and cancel waits; create trigger tokens.")
_COLUMNS = ("id", "run", "step", "kind", "for", "since", "until")
_ENDED_COLUMNS = ("id", "run", "step", "kind", "for", "since", "ended")
Reason = Annotated[str | None, Parameter(help="Why, for the record.")]
By = Annotated[str | None, Parameter(help="Who does it, for the record. Default: the user of this machine.")]


@waits.command(name="list")
@waits.default
def list_waits(
    *,
    run: Annotated[str | None, Parameter(help="Only waits of this run.")] = None,
    kind: Annotated[str | None, Parameter(help="Only waits of this kind: time, event, trigger or call.")] = None,
    state: Annotated[
        str, Parameter(help="Waits in this state: pending, resolved (fired), expired or cancelled.")
    ] = "pending",
    since: Annotated[str | None, Parameter(help="Only waits registered after this time, or in the last 2h.")] = None,
    until: Annotated[str | None, Parameter(help="Only waits registered before this time, or over 2h ago.")] = None,
    before: Annotated[str | None, Parameter(help="Only waits older than the wait with this id.")] = None,
    limit: Annotated[int, Parameter(help="Maximum number of rows.")] = 50,
    reveal: Reveal = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """List waits for a time, an event, a trigger or a called run, newest first.

    Without --run, a --state other than pending lists triggers only.
    """
    times = {"since": read_ago(since, "--since"), "until": read_ago(until, "--until")}
    found = asyncio.run(_list(common, run, kind=kind, state=state, before=before, limit=read_limit(limit), **times))
    empty = f"No {state} waits." if run is None else f"Run {run} has no {state} waits."
    secrets = SecretFilter(common, reveal)
    rows = [_wait_to_dict(wait, secrets.redact_value("match", wait.match)) for wait in found]
    columns: tuple[str, ...] = _COLUMNS if state == "pending" else _ENDED_COLUMNS
    columns = (*columns, "unreadable") if any(wait.unreadable for wait in found) else columns
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
        note = f"As a URL: {url}" if public_url else f"Its path is {url}; set public_url for the whole URL."
        warn(f"{note}\n`penstock serve` answers it, and an application that mounts the API or has this route.")
    return 0


async def _token(common: CommonOptions, trigger: str) -> tuple[str, str]:
    async with build_store_app(common) as app:
        return await app.waits.token(trigger), app.settings.public_url


async def _list(common: CommonOptions, run: str | None, **which: Any) -> list[WaitView]:
    async with build_store_app(common) as app:
        if run is not None:
            await app.runs.get(run)  # an unknown run is an error, not one without waits
        return await app.waits.list(run=run, **which)


@waits.command(name="show")
def show_wait(
    id: Annotated[str, Parameter(help="Id of a wait, as 'waits list' shows it.")],
    /,
    *,
    reveal: Reveal = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Show a wait: what it waits for, and how it ended."""
    wait = asyncio.run(_get(common, id))
    secrets = SecretFilter(common, reveal)
    fields = {**msgspec.to_builtins(wait), "state": wait.state}
    shown = {name: secrets.redact_value(name, value) for name, value in fields.items()}
    if common.json:
        print_json(shown)
        return 0
    if shown.get("trigger") == "webhook":  # the default, which says nothing of who fires it
        del shown["trigger"]
    width = max(map(len, shown))
    for name, value in shown.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        print_text(f"{name:<{width}}  {text}")
    return 0


@waits.command(name="resolve")
def resolve_wait(
    id: Annotated[str, Parameter(help="Id of a pending wait, as 'waits list' shows it.")],
    /,
    *,
    data: Annotated[
        str | None,
        Parameter(allow_leading_hyphen=True, help="Data of the event or the trigger: JSON, @FILE or -."),
    ] = None,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    if_version: IfVersion = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Resolve a pending wait by hand: skip a sleep, supply an event's data, or fire a trigger."""
    value = read_input(data, "--data")
    options: Any = {"reason": reason, "by": by or _user(), "version": if_version}
    if dry_run:
        return print_dry_run(common, lambda app: app.waits.resolve(id, value, dry_run=True, **options))
    run = asyncio.run(_resolve(common, id, value, options))
    print_result(f"Resolved. Run {run} resumes.", {"id": id, "run": run}, json=common.json)
    return 0


@waits.command(name="cancel")
def cancel_wait(
    id: Annotated[str, Parameter(help="Id of a pending wait, as 'waits list' shows it.")],
    /,
    *,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    if_version: IfVersion = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Cancel a pending wait: it raises WaitCancelled in its handler, which may catch it."""
    options: Any = {"reason": reason, "by": by or _user(), "version": if_version}
    if dry_run:
        return print_dry_run(common, lambda app: app.waits.cancel(id, dry_run=True, **options))
    run = asyncio.run(_cancel(common, id, options))
    print_result(f"Cancelled. Run {run} resumes.", {"id": id, "run": run}, json=common.json)
    return 0


async def _get(common: CommonOptions, id: str) -> WaitView:
    async with build_store_app(common) as app:
        return await app.waits.get(id)


async def _resolve(common: CommonOptions, id: str, data: Any, options: Any) -> str:
    async with build_store_app(common) as app:
        return str(await app.waits.resolve(id, data, **options))


async def _cancel(common: CommonOptions, id: str, options: Any) -> str:
    async with build_store_app(common) as app:
        return str(await app.waits.cancel(id, **options))


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        return None


def _wait_to_dict(wait: WaitView, match: Any) -> dict[str, Any]:
    shown = f" {msgspec.json.encode(match).decode()}" if match else ""
    fields = {field.encode_name: getattr(wait, field.name) for field in msgspec.structs.fields(wait)}
    return {**fields, "match": match, "for": f"{wait.event}{shown}" if wait.event is not None else wait.name}
