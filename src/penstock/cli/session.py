"""An App as a command needs it: with the worker files, or only to look at the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..app import App
from ..app.store_urls import looking_url, sqlite_path
from ..core.clock import Clock
from ..core.errors import ConfigError, NotFound
from ..settings import Settings
from .logs import log_as
from .options import Common
from .shutdown_signals import on_stop


def working_app(common: Common, *, chatty: bool = False, **given: Any) -> App:
    """An App with the worker files loaded; those that cannot be are warned about, and the rest works."""
    settings = Settings.load({"url": common.url, "dir": common.dir, **given})
    log_as(settings, chatty)
    check_dir(settings.dir)
    return App(common.url, settings.dir, **given)


def looking_app(common: Common, clock: Clock | None = None) -> App:
    """An App that loads no code, on a store that is there: looking creates nothing."""
    check_kept(common)
    if common.dir is not None:
        check_dir(common.dir)
    app = App(_readable(common).url, handlers=(), clock=clock)
    log_as(app.settings, chatty=False)
    _check_store(app)
    return app


def bare_app(common: Common) -> App:
    """An App that loads no code, on a store that is created if it is not there."""
    check_kept(common)
    if common.dir is not None:
        check_dir(common.dir)
    app = App(common.url, handlers=())
    log_as(app.settings, chatty=True)
    return app


def acting_app(common: Common) -> App:
    """An App with the worker files if there are any, on a store that is there."""
    check_kept(common)
    settings = Settings.load({"url": common.url, "dir": common.dir})
    if common.dir is None and not Path(settings.dir).is_dir():
        return looking_app(common)
    app = working_app(_readable(common))
    _check_store(app)
    return app


def _readable(common: Common) -> Common:
    """A file that may only be read can be looked at; what would change it says so."""
    url = Settings.load({"url": common.url}).url
    seen = looking_url(url)
    return common if seen == url else replace(common, url=seen)


def check_kept(common: Common) -> None:
    """A store in memory ends with the command: whatever is put into it is for nobody."""
    url = Settings.load({"url": common.url}).url
    if in_memory(url):
        raise ConfigError(
            f"the store {url!r} is the memory of this very command, which nobody else sees: give a file, such as "
            "--url sqlite:///penstock.db, or use `penstock run`, which also does the work"
        )


def in_memory(url: str) -> bool:
    """Whether a URL names no file."""
    return url in (":memory:", "memory:", "memory://") or (url.startswith("sqlite:") and sqlite_path(url) == ":memory:")


def check_dir(dir: str) -> None:
    """A folder that is not there is a mistake."""
    if not Path(dir).is_dir():
        raise ConfigError(f"there is no folder {dir!r} here: go to your project, or give the worker files' --dir")


def _check_store(app: App) -> None:
    url = app.settings.url
    if url.startswith("sqlite:") and not Path(path := sqlite_path(url)).exists():
        raise NotFound(f"there is no store at {path}: nothing has run here yet, or give the right --url")


PATIENCE = "1m"


@asynccontextmanager
async def begun(app: App) -> AsyncIterator[bool]:
    """The App is open inside. A server that cannot be reached is waited for; False if a signal came before it was."""
    opening = asyncio.create_task(app.open(connect_timeout=PATIENCE))
    with on_stop(opening.cancel):
        await asyncio.wait((opening,))
    if opening.cancelled():
        yield False
        return
    opening.result()
    try:
        yield True
    finally:
        await app.close()
