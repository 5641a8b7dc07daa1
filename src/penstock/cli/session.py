"""What a command runs in: its App, with or without the worker files, its event loop and its logging."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from ..app import App
from ..app.store_urls import is_memory_url, readable_url, sqlite_path
from ..core.clock import Clock
from ..core.errors import ConfigError, NeedsStore, NotFound
from ..core.redaction import Redactor
from ..core.text import shorten
from ..settings import Settings
from ..telemetry.logging import ROOT, Level, configure
from .errors import UsageError, warn
from .options import CommonOptions
from .shutdown_signals import handle_stop_signals

CONNECT_TIMEOUT_S = 60.0
MEMORY_URL = "sqlite://:memory:"
SERVER_SCHEMES = ("http://", "https://")
T = TypeVar("T")


def build_worker_app(
    common: CommonOptions, *, verbose: bool = False, may_be_remote: bool = False, **settings: Any
) -> App:
    """Build an App with the worker files loaded; a file that does not import is a warning.

    With `may_be_remote`, `--url http://…` gives a client of that server instead."""
    if may_be_remote and is_server_url(common):
        return _build_remote(common)
    refuse_server(common)
    loaded = Settings.load({"url": common.url, "dir": common.dir, **settings})
    configure_logging(loaded, verbose)
    check_dir(loaded.dir)
    return App(common.url, loaded.dir, **settings)


def build_store_app(common: CommonOptions, clock: Clock | None = None) -> App:
    """Build an App without worker files, on a store that exists: reading creates nothing."""
    if is_server_url(common):
        return _build_remote(common)
    refuse_memory_store(common)
    if common.dir is not None:
        check_dir(common.dir)
    app = App(_open_as_it_is(common).url, handlers=(), clock=clock)
    configure_logging(app.settings, verbose=False)
    _check_store_exists(app)
    return app


def build_admin_app(common: CommonOptions) -> App:
    """Build an App with the worker files, if there are any, on a store that exists."""
    if is_server_url(common):
        return _build_remote(common)
    refuse_memory_store(common)
    settings = Settings.load({"url": common.url, "dir": common.dir})
    if common.dir is None and not os.path.isdir(settings.dir):
        return build_store_app(common)
    app = build_worker_app(_open_as_it_is(common))
    _check_store_exists(app)
    return app


def build_code_app(common: CommonOptions) -> App:
    """Build an App with the worker files: on its store or, if there is none yet, on an empty one in memory."""
    if is_server_url(common):
        return _build_remote(common)
    refuse_memory_store(common)
    missing = _find_missing_file(Settings.load({"url": common.url}).url)
    if missing is None:
        return build_admin_app(common)
    warn(f"No store at {missing}: only the code is read.")
    return build_worker_app(replace(common, url=MEMORY_URL))


def build_relay_app(common: CommonOptions) -> App:
    """Build an App without worker files, on a store that is created if it does not exist."""
    if is_server_url(common):
        return _build_remote(common)
    refuse_memory_store(common)
    if common.dir is not None:
        check_dir(common.dir)
    app = App(common.url, handlers=())
    configure_logging(app.settings, verbose=True)
    return app


def _build_remote(common: CommonOptions) -> App:
    """Build a client of a server, which has the facets that commands use."""
    try:
        from .remote import RemoteApp
    except ImportError as problem:
        raise ConfigError(
            f"--url http://… needs the extra `client`: pip install 'penstock[client]' ({problem})"
        ) from None
    return cast("App", RemoteApp(common))


def is_server_url(common: CommonOptions) -> bool:
    """Return whether a command talks to a server. Only then it may have a token."""
    is_server = Settings.load({"url": common.url}).url.startswith(SERVER_SCHEMES)
    if common.token is not None and not is_server:
        raise UsageError("--token can only be used with --url http://…, the address of a server")
    return is_server


def refuse_server(common: CommonOptions) -> None:
    """Raise NeedsStore if the URL is that of a server."""
    if is_server_url(common):
        raise NeedsStore(
            "this command needs direct access to the store, but --url points to a Penstock server; pass the URL of "
            "that server's store, such as sqlite:///penstock.db"
        )


@asynccontextmanager
async def open_app(app: App) -> AsyncIterator[bool]:
    """Open an App, waiting for a server that is not reachable yet. Yield False if a stop signal came first."""
    opening = asyncio.create_task(app.open(connect_timeout=CONNECT_TIMEOUT_S))
    is_stopped = False

    def stop() -> None:
        nonlocal is_stopped
        is_stopped = True  # the App may open all the same: a task that has just ended cannot be cancelled
        opening.cancel()

    with handle_stop_signals(stop):
        await asyncio.wait((opening,))
    if opening.cancelled():
        yield False
        return
    opening.result()
    try:
        yield not is_stopped
    finally:
        await app.close()


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, as asyncio.run does: with uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:  # an optional extra, not available on every system
        return asyncio.run(main)
    return uvloop.run(main)


def configure_logging(settings: Settings, verbose: bool) -> None:
    """Log to stderr from the configured level on; by default `info` for workers and on a terminal, else `warning`.

    It includes the messages of handlers and of the libraries they use.
    """
    default: Level = "info" if verbose or sys.stderr.isatty() else "warning"
    level = settings.log if "log" in settings.sources else default
    configure(level, settings.log_format, logger=ROOT, redactor=Redactor(settings.redact))


def refuse_memory_store(common: CommonOptions) -> None:
    """Raise if the store is in memory: it ends with the command, so nothing else would see what is written."""
    url = Settings.load({"url": common.url}).url
    if is_memory_url(url):
        raise ConfigError(
            f"the store {url!r} is in the memory of this command: no other process sees it, and it is lost at the end. "
            "Use a file, such as --url sqlite:///penstock.db. Or use `penstock run`, which starts and executes a run "
            "in one process"
        )


def check_dir(dir: str) -> None:
    """Raise if the folder of the worker files does not exist."""
    if not os.path.isdir(dir):
        raise ConfigError(
            f"folder {shorten(dir)} not found; change to your project folder, or set --dir to the folder of the "
            "worker files"
        )


def _open_as_it_is(common: CommonOptions) -> CommonOptions:
    """Create no tables in Postgres, and open a SQLite file that cannot be written as read-only."""
    url = Settings.load({"url": common.url}).url
    readable = readable_url(url)
    return common if readable == url else replace(common, url=readable)


def _check_store_exists(app: App) -> None:
    if (path := _find_missing_file(app.settings.url)) is not None:
        raise NotFound(f"no store at {path}; nothing has run here yet, or --url is wrong")


def _find_missing_file(url: str) -> Path | None:
    if not url.startswith("sqlite:"):
        return None
    path = Path(sqlite_path(url))
    return None if path.exists() and path.stat().st_size else path
