"""`penstock outbox create|sql|relay`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from cyclopts import App as Commands
from cyclopts import Parameter

from ..app import App
from ..app.store_urls import mask
from ..transactions.outbox import create_statement
from ..transactions.relay_source import RelaySource
from .errors import warn
from .options import USUAL_PLACE, Common
from .parse import read_delay
from .session import bare_app
from .shutdown_signals import on_stop
from .tables import counted, done

outbox = Commands(
    name="outbox", help="The table in your own database by which your transactions reach a store that is elsewhere."
)
_WHERE = "Your database: sqlite:///file.db or postgresql://user@host/database."


@outbox.command
def create(*, where: Annotated[str, Parameter(name="--in", help=_WHERE)], common: Common = USUAL_PLACE) -> int:
    """Create the table in your database, if it is not there."""
    asyncio.run(_create(where))
    done(f"{mask(where)} has an outbox.", {"in": mask(where), "outbox": True}, json=common.json)
    return 0


@outbox.command
def sql(
    *,
    dialect: Annotated[Literal["postgresql", "sqlite"], Parameter(help="For which database.")] = "postgresql",
    common: Common = USUAL_PLACE,
) -> int:
    """Print the statement that creates the table, for a migration of your own."""
    statement = f"{create_statement(dialect)};"
    done(statement, {"dialect": dialect, "sql": statement}, json=common.json)
    return 0


@outbox.command
def relay(
    *,
    where: Annotated[str, Parameter(name="--from", help=_WHERE)],
    every: Annotated[str, Parameter(help="How often to look for something new.")] = "200ms",
    once: Annotated[bool, Parameter(negative="", help="Hand over what is there now, and end.")] = False,
    common: Common = USUAL_PLACE,
) -> int:
    """Hand what is in an outbox over to the store, in order, until stopped (Ctrl-C or SIGTERM).

    Any number of relays may run at once; each row has its effect once.
    """
    looks = read_delay(every, "--every") or every
    app = bare_app(common)
    if not once:
        asyncio.run(_relay(app, where, looks))
        return 0
    count = asyncio.run(_drain(app, where))
    done(f"{counted(count, 'row')} handed over.", {"from": mask(where), "rows": count}, json=common.json)
    return 0


async def _create(url: str) -> None:
    source = RelaySource(url)
    try:
        connection = await source.open()
        await source.execute(create_statement(connection.dialect))
        await source.commit()
    finally:
        await source.close()


async def _drain(app: App, url: str) -> int:
    async with app:
        return await app.outbox.drain(url)


async def _relay(app: App, url: str, every: str) -> None:
    stopped = asyncio.Event()
    async with app, app.outbox.background(url, every=every):
        with on_stop(stopped.set):
            print(f"Relaying from {mask(url)} to {mask(app.settings.url)}. Ctrl-C stops it.", flush=True)
            await stopped.wait()
    warn("Stopped.")
