"""`penstock outbox create|sql|relay|list|retry`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from cyclopts import App as Commands
from cyclopts import Parameter

from ...app import App
from ...app.store_urls import mask
from ...core.text import pluralize
from ...settings import Settings
from ...transactions.outbox import create_statement
from ...transactions.outbox_database import RelaySource
from ...transactions.relay import FailedRow
from ..errors import warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import print_text
from ..parse import read_delay, read_limit
from ..session import build_relay_app, open_app
from ..shutdown_signals import handle_stop_signals
from ..tables import print_result, print_rows

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

    Several relays can run at the same time; each row takes effect once. A row that
    cannot be delivered is set aside with its error. A store that is not reachable
    is retried, for up to a minute at startup.
    """
    interval = read_delay(every, "--every") or every
    app = build_relay_app(common)
    if not once:
        asyncio.run(_relay(app, database, interval))
        return 0
    count = asyncio.run(_drain(app, database))
    if count is not None:
        print_result(f"{pluralize(count, 'row')} relayed.", {"from": mask(database), "rows": count}, json=common.json)
    return 0


@outbox.command(name="list")
def list_failed(
    *,
    database: Annotated[str, Parameter(name="--in", help=_URL_HELP)],
    after: Annotated[int, Parameter(help="Number of the last row of the page before.")] = 0,
    limit: Annotated[int, Parameter(help="Maximum number of rows.")] = 50,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """List the rows that cannot be delivered and were set aside, with their errors."""
    rows = asyncio.run(_failed(database, common, after, read_limit(limit)))
    empty = "No row was set aside."
    print_rows([row._asdict() for row in rows], FailedRow._fields, json=common.json, empty=empty)
    return 0


@outbox.command
def retry(
    *seqs: int,
    database: Annotated[str, Parameter(name="--in", help=_URL_HELP)],
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Let the relay deliver rows again that were set aside.

    Parameters
    ----------
    seqs
        Numbers of the rows; default all.
    """
    asyncio.run(_retry(database, common, seqs))
    print_result("The relay tries them again.", {"in": mask(database), "retried": True}, json=common.json)
    return 0


async def _create(url: str) -> None:
    source = RelaySource(url)
    try:
        connection = await source.open()
        await source.execute(create_statement(connection.dialect))
        await source.commit()
    finally:
        await source.close()


async def _drain(app: App, url: str) -> int | None:
    async with open_app(app) as is_open:
        if not is_open:
            return None
        count = await app.outbox.drain(url)
        if await app.outbox.failed(url, limit=1):
            warn(f"Rows that cannot be delivered were set aside: `penstock outbox list --in {mask(url)}`")
        return count


async def _failed(url: str, common: CommonOptions, after: int, limit: int) -> list[FailedRow]:
    async with _without_store(common) as app:
        return await app.outbox.failed(url, after=after, limit=limit)


async def _retry(url: str, common: CommonOptions, seqs: tuple[int, ...]) -> None:
    async with _without_store(common) as app:
        await app.outbox.retry(url, seqs or None)


def _without_store(common: CommonOptions) -> App:
    """Build an App in the namespace of the settings: the rows are in another database than the store."""
    return App(":memory:", handlers=(), namespace=Settings.load({"url": common.url}).namespace)


async def _relay(app: App, url: str, every: str) -> None:
    stopped = asyncio.Event()
    async with open_app(app) as is_open:
        if is_open:
            async with app.outbox.background(url, every=every):
                with handle_stop_signals(stopped.set):
                    print_text(f"Relaying from {mask(url)} to {mask(app.settings.url)}. Stop with Ctrl-C.")
                    await stopped.wait()
    warn("Stopped.")
