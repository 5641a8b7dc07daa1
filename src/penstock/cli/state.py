"""`penstock state get|set|list|delete`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from cyclopts import App as Commands
from cyclopts import Parameter

from ..app.state import AppState
from ..app.store_urls import mask
from ..core.errors import NotFound, UnknownRun
from ..core.ids import check_id
from .confirm import NOT_DONE, Yes, confirmed
from .errors import UsageMistake
from .options import USUAL_PLACE, Common
from .output import print_json
from .parse import read_delay, read_input, read_limit
from .secrets import Reveal, Veil
from .session import looking_app
from .tables import cell, done, show_list

state = Commands(name="state", help="The state store: keys all handlers share, or with --run those of one run.")
OfRun = Annotated[str | None, Parameter(help="The keys of this run, instead of those all share.")]
_NOTHING: Any = object()


@state.command
def get(key: str, /, *, run: OfRun = None, reveal: Reveal = False, common: Common = USUAL_PLACE) -> int:
    """Print the value of a key.

    Parameters
    ----------
    key
        The key.
    """
    veil = Veil(common, reveal)
    value = veil.member(key, asyncio.run(_get(common, run, key)))
    print_json(value) if common.json or not isinstance(value, str) else print(cell(value))
    return 0


@state.command
def set(
    key: str,
    value: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    ttl: Annotated[str | None, Parameter(help="Forget it after so long: 30s, 1h.")] = None,
    run: OfRun = None,
    common: Common = USUAL_PLACE,
) -> int:
    """Write a key; it takes effect at once.

    Parameters
    ----------
    key
        The key.
    value
        The value as JSON; @FILE reads a file, - standard input.
    """
    read = read_input(value, "value")
    asyncio.run(_set(common, run, key, read, read_delay(ttl, "--ttl")))
    done(f"{key} is set.", {"key": key, "value": read}, json=common.json)
    return 0


@state.command(name="list")
@state.default
def list_keys(
    prefix: str = "",
    /,
    *,
    limit: Annotated[int, Parameter(help="At most so many.")] = 100,
    run: OfRun = None,
    reveal: Reveal = False,
    common: Common = USUAL_PLACE,
) -> int:
    """List keys and their values.

    Parameters
    ----------
    prefix
        Only keys that begin so.
    """
    found = asyncio.run(_list(common, run, prefix, read_limit(limit)))
    veil = Veil(common, reveal)
    rows = [{"key": key, "value": veil.member(key, value)} for key, value in found.items()]
    show_list(rows, ("key", "value"), json=common.json, none="No keys.")
    return 0


@state.command
def delete(key: str, /, *, run: OfRun = None, yes: Yes = False, common: Common = USUAL_PLACE) -> int:
    """Delete a key.

    Parameters
    ----------
    key
        The key.
    """
    if not confirmed(f"Delete {key}?", yes):
        return NOT_DONE
    asyncio.run(_delete(common, run, key))
    done(f"{key} is gone.", {"key": key, "deleted": True}, json=common.json)
    return 0


@asynccontextmanager
async def _keys(common: Common, run: str | None) -> AsyncIterator[AppState]:
    async with looking_app(common) as app:
        if run is not None and await app.store.run(check_id(run, "run id")) is None:
            raise UnknownRun(f"there is no run {run!r} in {mask(app.settings.url)}: check the id and the URL")
        try:
            yield app.state if run is None else app.state.of_run(run)
        except ValueError as problem:  # a key that cannot be one
            raise UsageMistake(str(problem)) from None


async def _get(common: Common, run: str | None, key: str) -> Any:
    async with _keys(common, run) as keys:
        value = await keys.get(key, _NOTHING)
    if value is _NOTHING:
        raise NotFound(f"there is no key {key!r}: `penstock state list` shows those there are")
    return value


async def _set(common: Common, run: str | None, key: str, value: Any, ttl: str | None) -> None:
    async with _keys(common, run) as keys:
        await keys.set(key, value, ttl=ttl)


async def _list(common: Common, run: str | None, prefix: str, limit: int) -> dict[str, Any]:
    async with _keys(common, run) as keys:
        return await keys.list(prefix, limit=limit)


async def _delete(common: Common, run: str | None, key: str) -> None:
    async with _keys(common, run) as keys:
        if await keys.get(key, _NOTHING) is _NOTHING:
            raise NotFound(f"there is no key {key!r}: `penstock state list` shows those there are")
        await keys.delete(key)
