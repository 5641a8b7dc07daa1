"""`penstock outbox create|sql|relay`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from cyclopts import App as Commands
from cyclopts import Parameter

from ...app import App
from ...app.store_urls import mask
from ...transactions.outbox import create_statement
from ...transactions.relay_source import RelaySource
from ..errors import warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import print_text
from ..parse import read_delay
from ..session import build_relay_app
from ..shutdown_signals import handle_stop_signals
from ..tables import pluralize, print_result

outbox = Commands(name="outbox", help="Relay work from a table in your own database to a store elsewhere.")
_URL_HELP = "Your database: sqlite:///file.db or postgresql://user@host/database."


@outbox.command
def create(
    *, database: Annotated[str, Parameter(name="--in", help=_URL_HELP)], common: CommonOptions = COMMON_DEFAULTS
) -> int:
    """Create the outbox table in your database, if it does not exist."""
    asyncio.run(_create(database))
    print_result(f"{mask(database)} has an outbox.", {"in": mask(database), "outbox": True}, json=common.json)
    return 0


@outbox.command
def sql(
    *,
    dialect: Annotated[Literal["postgresql", "sqlite"], Parameter(help="SQL dialect.")] = "postgresql",
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Print the statement that creates the outbox table, for your own migrations."""
    statement = f"{create_statement(dialect)};"
    print_result(statement, {"dialect": dialect, "sql": statement}, json=common.json)
    return 0


@outbox.command
def relay(
    *,
    database: Annotated[str, Parameter(name="--from", help=_URL_HELP)],
    every: Annotated[str, Parameter(help="Interval between polls.")] = "200ms",
    once: Annotated[bool, Parameter(negative="", help="Relay what is in the outbox now, then exit.")] = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Relay the outbox to the store, in order, until stopped (Ctrl-C or SIGTERM).

    Several relays can run at the same time; each row takes effect once.
    """
    interval = read_delay(every, "--every") or every
    app = build_relay_app(common)
    if not once:
        asyncio.run(_relay(app, database, interval))
        return 0
    count = asyncio.run(_drain(app, database))
    print_result(f"{pluralize(count, 'row')} relayed.", {"from": mask(database), "rows": count}, json=common.json)
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
        with handle_stop_signals(stopped.set):
            print_text(f"Relaying from {mask(url)} to {mask(app.settings.url)}. Stop with Ctrl-C.")
            await stopped.wait()
    warn("Stopped.")
