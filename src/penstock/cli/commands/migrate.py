"""`penstock migrate`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ...app import App
from ...app.store_urls import is_memory_url, mask, open_store, sqlite_path
from ...core.clock import SystemClock
from ...core.text import pluralize
from ...ports.store import Migratable
from ...settings import Settings
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import print_json, print_text
from ..session import build_store_app, refuse_server


def migrate(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Create or update the tables of a Postgres store. Requires a role with permission to do so.

    A command that starts work does the same unless its URL has `migrate=no`.
    Commands that read or change existing work never do. Other stores have no
    migrations.
    """
    refuse_server(common)
    url = Settings.load({"url": common.url}).url
    where = mask(url)
    is_new_file = url.startswith("sqlite:") and not is_memory_url(url) and not Path(sqlite_path(url)).exists()
    applied = None if is_new_file else asyncio.run(_migrate(build_store_app(common)))
    if common.json:
        print_json({"url": where, "applied": applied})
    elif applied is None:
        created = ": its tables are created when work is first started" if is_new_file else ""
        print_text(f"{where} needs no migrations{created}.")
    else:
        print_text(
            f"{where}: {pluralize(len(applied), 'migration')} applied." if applied else f"{where} is up to date."
        )
    return 0


async def _migrate(app: App) -> list[int] | None:
    store = open_store(app.settings.url, clock=SystemClock(), namespace=app.settings.namespace)
    if not isinstance(store, Migratable):
        async with app:  # report a store that cannot be opened
            return None
    try:
        return await store.migrate()
    finally:
        await store.close()
