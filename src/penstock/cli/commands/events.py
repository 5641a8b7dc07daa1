"""`penstock events STREAM` and `penstock events --all`."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Annotated

import msgspec
from cyclopts import Parameter

from ...app import App
from ...app.store_urls import shown_url
from ...app.tagged_events import select_tagged
from ...core.errors import UnknownRun
from ...core.event_tags import check_event_tags
from ...core.events import Event, encode_event
from ...core.ids import check_id, event_seq
from ...core.text import escape_json, escape_line
from ...ports.store import FeedItem
from ..errors import EXIT_INTERRUPTED, UsageError, warn
from ..live import follow_until_end
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import has_unicode_output, print_text
from ..parse import read_limit
from ..run_view import error_lines, one_line
from ..session import build_store_app
from ..shutdown_signals import handle_stop_signals

PAGE_SIZE = 500
_FAILURES = ("step.failed", "job.failed")


def events(
    stream: str | None = None,
    /,
    *,
    all: Annotated[
        bool, Parameter(negative="", show_default=False, help="Events of all streams, in the order of commits.")
    ] = False,
    follow: Annotated[
        bool, Parameter(negative="", show_default=False, help="Keep printing new events until the run ends.")
    ] = False,
    after: Annotated[
        str | None, Parameter(help="Only events after the event with this id; with --all, after this cursor.")
    ] = None,
    limit: Annotated[int | None, Parameter(help="Maximum number of events, oldest first.")] = None,
    tag: Annotated[
        list[str] | None, Parameter(help="Only events with this tag. Repeated: with all of them.", negative="")
    ] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Print the events of a run, of any other stream, or of all streams, oldest first.

    With --json, each line is one event as it is stored; with --all also its stream and its cursor, which --after
    continues at. '--after latest' prints new events only.

    Parameters
    ----------
    stream
        A run's id, or a stream's name: nq:flow:ID, nq:queue:NAME, nq:global.
    """
    if (stream is None) != all:
        raise UsageError("pass either a run's id or a stream's name, or --all for the events of all streams")
    if limit is not None:
        read_limit(limit)
    tags = check_event_tags(tag)
    if stream is None:
        return asyncio.run(_feed(follow, after, limit, tags, common))
    if after is not None:
        event_seq(after)
    return asyncio.run(_events(stream, follow, after, limit, tags, common))


async def _events(
    stream: str, follow: bool, after: str | None, limit: int | None, tags: list[str], common: CommonOptions
) -> int:
    async with build_store_app(common) as app:
        source = await _open_source(app, stream, follow, after)
        printing = asyncio.create_task(_print(select_tagged(source, tags) if tags else source, limit, common.json))
        with handle_stop_signals(lambda: printing.cancel()):
            await asyncio.wait((printing,))
        if printing.cancelled():
            return EXIT_INTERRUPTED
        if not printing.result() and after is None:
            warn(f"No events in {stream}{_of_tags(tags)}.")
        return 0


def _of_tags(tags: list[str]) -> str:
    return f" with the tag{'s' if len(tags) > 1 else ''} {', '.join(tags)}" if tags else ""


async def _feed(follow: bool, after: str | None, limit: int | None, tags: list[str], common: CommonOptions) -> int:
    async with build_store_app(common) as app:
        items = app.events.feed(after=after, follow=follow, tags=tags)
        printing = asyncio.create_task(_print_feed(items, limit, common.json))
        with handle_stop_signals(lambda: printing.cancel()):
            await asyncio.wait((printing,))
        if printing.cancelled():
            return EXIT_INTERRUPTED
        if not printing.result() and after is None:
            warn(f"No events{_of_tags(tags)}.")
        return 0


async def _print_feed(source: AsyncIterator[FeedItem], limit: int | None, json: bool) -> int:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    count = 0
    async with aclosing(source) as items:  # type: ignore[type-var]
        async for item in items:
            if json:
                head = f'{{"cursor":"{item.cursor}","stream":{msgspec.json.encode(item.stream).decode()},'
                print_text(head + _json(item.event)[1:])
            else:
                print_text(_cut(f"{escape_line(item.stream):<30}  {_line(item.event, None)}", width))
            count += 1
            if count == limit:
                break
    return count


async def _open_source(app: App, stream: str, follow: bool, after: str | None) -> AsyncIterator[Event]:
    flows = f"{app.settings.namespace}:flow:"
    run = stream.removeprefix(flows) if ":" not in stream.removeprefix(flows) else None
    if run is None:
        return app.events.subscribe(stream, after=after) if follow else _read_pages(app.events.read, stream, after)
    row = await app.store.run(check_id(run, "run id"))
    if row is None:
        raise UnknownRun(f"no run with id {run!r} in {shown_url(app.settings.url)}; check the id and the URL")
    if follow:
        return follow_until_end(app, run, after)
    return _read_pages(app.store.read, f"{app.settings.namespace}:{row.kind}:{run}", after)


async def _read_pages(
    read: Callable[..., Awaitable[list[Event]]], stream: str, after: str | None
) -> AsyncIterator[Event]:
    """Yield the stored events, page by page."""
    while page := await read(stream, after=after, limit=PAGE_SIZE):
        for event in page:
            yield event
        after = page[-1].id


async def _print(source: AsyncIterator[Event], limit: int | None, json: bool) -> int:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    count = 0
    async with aclosing(source) as events:  # type: ignore[type-var]
        async for event in events:
            print_text(*([_json(event)] if json else (_line(event, width), *_failure(event))))
            count += 1
            if count == limit:
                break
    return count


def _json(event: Event) -> str:
    text = escape_json(encode_event(event).decode())
    return text if has_unicode_output() else text.encode("ascii", "backslashreplace").decode()


def _failure(event: Event) -> list[str]:
    """Return further lines for a final failure: where it happened in the user's code."""
    if event.kind not in _FAILURES or not isinstance(event.data, dict) or event.data.get("willRetry"):
        return []
    return [f"    {line}" for line in error_lines(event.data)]


def _line(event: Event, width: int | None) -> str:
    meta = event.meta or {}
    step = f"{event.step or ''}{'#' + str(meta['n']) if 'n' in meta else ''}"
    number = meta.get("attempt")  # the meta of a user's event may hold anything
    attempt = f"attempt {number}" if isinstance(number, int) and number > 1 else ""
    data = event.data
    if isinstance(data, dict) and event.kind in _FAILURES:
        data = {key: value for key, value in data.items() if key not in ("stack", "frames")}  # --json has them
    parts = [
        f"{event.id:<18}",
        event.ts[11:23],
        f"{event.kind:<16}",
        step,
        attempt,
        "" if data is None else one_line(data, 100_000),
    ]
    return _cut(escape_line("  ".join(part for part in parts if part)), width)


def _cut(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: width - 1] + "…"
