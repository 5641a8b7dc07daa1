"""`penstock migrate`."""

from __future__ import annotations

import asyncio

from ..app import App
from ..app.store_urls import mask, open_store
from ..core.clock import SystemClock
from ..ports.store import Migratable
from .options import USUAL_PLACE, Common
from .output import print_json
from .session import looking_app
from .tables import counted


def migrate(*, common: Common = USUAL_PLACE) -> int:
    """Create or update the tables of a Postgres store, with a role that may.

    Opening a store does the same, unless its URL says `migrate=no`. Other stores need none of this.
    """
    app = looking_app(common)
    applied = asyncio.run(_migrate(app))
    where = mask(app.settings.url)
    if common.json:
        print_json({"url": where, "applied": applied})
    elif applied is None:
        print(f"{where} needs no migrations.")
    else:
        print(f"{where}: {counted(len(applied), 'migration')} applied." if applied else f"{where} is up to date.")
    return 0


async def _migrate(app: App) -> list[int] | None:
    store = open_store(app.settings.url, clock=SystemClock(), namespace=app.settings.namespace)
    if not isinstance(store, Migratable):
        async with app:  # what is wrong with it is said all the same
            return None
    try:
        return await store.migrate()
    finally:
        await store.close()
