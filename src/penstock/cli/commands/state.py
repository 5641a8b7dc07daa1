"""`penstock state get|set|list|delete`."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from cyclopts import App as Commands
from cyclopts import Parameter

from ...app.state import AppState
from ...app.store_urls import shown_url
from ...context.state import StatePage
from ...core.errors import NotFound, UnknownRun
from ...core.ids import check_id
from ..errors import EXIT_FAILED, UsageError, warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import Reveal, SecretFilter, Yes, confirm, print_json, print_text
from ..parse import read_delay, read_input, read_limit
from ..session import build_store_app
from ..tables import format_cell, print_result, print_rows

state = Commands(name="state", help="The state store: keys that all handlers share, or with --run the keys of one run.")
Run = Annotated[str | None, Parameter(help="Use the keys of this run instead of the shared ones.")]
_MISSING: Any = object()


@state.command
def get(key: str, /, *, run: Run = None, reveal: Reveal = False, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Print the value of a key.

    Parameters
    ----------
    key
        The key.
    """
    secrets = SecretFilter(common, reveal)
    value = secrets.redact_value(key, asyncio.run(_get(common, run, key)))
    print_json(value) if common.json or not isinstance(value, str) else print_text(format_cell(value))
    return 0


@state.command
def set(
    key: str,
    value: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    ttl: Annotated[str | None, Parameter(help="Delete the key after this time: 30s, 1h.")] = None,
    run: Run = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Set a key.

    Parameters
    ----------
    key
        The key.
    value
        The value as JSON; @FILE reads a file, - standard input.
    """
    parsed = read_input(value, "value")
    asyncio.run(_set(common, run, key, parsed, read_delay(ttl, "--ttl")))
    print_result(f"{key} is set.", {"key": key, "value": parsed}, json=common.json)
    return 0


@state.command(name="list")
@state.default
def list_keys(
    prefix: str = "",
    /,
    *,
    after: Annotated[str | None, Parameter(help="Only keys after this key.")] = None,
    limit: Annotated[int, Parameter(help="Maximum number of rows.")] = 100,
    run: Run = None,
    reveal: Reveal = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """List keys with their values.

    Parameters
    ----------
    prefix
        Only keys with this prefix.
    """
    found = asyncio.run(_list(common, run, prefix, after, read_limit(limit)))
    secrets = SecretFilter(common, reveal)
    rows = [{"key": key, "value": secrets.redact_value(key, value)} for key, value in found.items()]
    print_rows(rows, ("key", "value"), json=common.json, empty="No keys." if not found.unreadable else "")
    for problem in found.unreadable.values():
        warn(problem)
    if found.next is not None:
        warn(f"There are more keys. The next page: --after {shlex.quote(found.next)}")
    return 0


@state.command
def delete(key: str, /, *, run: Run = None, yes: Yes = False, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Delete a key.

    Parameters
    ----------
    key
        The key.
    """
    if not confirm(f"Delete {key}?", yes):
        return EXIT_FAILED
    asyncio.run(_delete(common, run, key))
    print_result(f"{key} is deleted.", {"key": key, "deleted": True}, json=common.json)
    return 0


@asynccontextmanager
async def _keys(common: CommonOptions, run: str | None) -> AsyncIterator[AppState]:
    async with build_store_app(common) as app:
        if run is not None and await app.store.run(check_id(run, "run id")) is None:
            raise UnknownRun(f"no run with id {run!r} in {shown_url(app.settings.url)}; check the id and the URL")
        try:
            yield app.state if run is None else app.state.of_run(run)
        except ValueError as problem:  # an invalid key
            raise UsageError(str(problem)) from None


async def _get(common: CommonOptions, run: str | None, key: str) -> Any:
    async with _keys(common, run) as keys:
        value = await keys.get(key, _MISSING)
    if value is _MISSING:
        raise NotFound(f"no such key: {key!r}; run `penstock state list` to see the keys")
    return value


async def _set(common: CommonOptions, run: str | None, key: str, value: Any, ttl: str | None) -> None:
    async with _keys(common, run) as keys:
        await keys.set(key, value, ttl=ttl)


async def _list(common: CommonOptions, run: str | None, prefix: str, after: str | None, limit: int) -> StatePage:
    async with _keys(common, run) as keys:
        return await keys.list(prefix, after=after, limit=limit)


async def _delete(common: CommonOptions, run: str | None, key: str) -> None:
    async with _keys(common, run) as keys:
        if await keys.get(key, _MISSING) is _MISSING:
            raise NotFound(f"no such key: {key!r}; run `penstock state list` to see the keys")
        await keys.delete(key)
