"""`penstock dev`."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ...app import App
from ...core.api_errors import BadAddress
from ...core.errors import ConfigError, PenstockError
from ...handlers.registry import Registry
from ...settings import DEFAULT, Settings
from ..errors import ErrorFormat, print_error, warn
from ..file_watch import watch_files
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import print_json, print_text
from ..session import build_worker_app, open_app, refuse_memory_store
from ..shutdown_signals import handle_stop_signals, stop_message
from .serve import (
    HOST_HELP,
    PORT_HELP,
    bind_address,
    build_application,
    check_host,
    console_address,
    own_public_url,
    require_http,
)
from .worker import CONCURRENCY_HELP, print_summary, summarize


def dev(
    *,
    concurrency: Annotated[int | None, Parameter(help=CONCURRENCY_HELP)] = None,
    host: Annotated[str | None, Parameter(help=HOST_HELP)] = None,
    port: Annotated[int | None, Parameter(help=PORT_HELP)] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Run a worker, the HTTP API and the web console; reload the worker files when one changes.

    A module next to their folder that they import is watched, too.
    Running handlers finish with the code they started with. A file with an error
    keeps its old version. The addresses of triggers point at this server. Without
    the extra 'http' there is no API.
    """
    refuse_memory_store(common)
    options = {"host": host, "port": port, "concurrency": concurrency}
    return asyncio.run(_dev(Settings.load({"url": common.url, **options}), options, common))


async def _dev(settings: Settings, options: dict[str, Any], common: CommonOptions) -> int:
    api = _Api.bind(settings)
    with api or nullcontext():
        return await _dev_with(api, settings, options, common)


async def _dev_with(api: _Api | None, settings: Settings, options: dict[str, Any], common: CommonOptions) -> int:
    public = own_public_url(settings, api.address) if api is not None else {}
    app = build_worker_app(common, verbose=True, **options, **public)
    if api is not None:
        api.build(app)  # before the App is open: its metrics listen to the App
    async with open_app(app) as is_open:
        if is_open:
            if api is not None:
                await check_host(app, settings.host)
            await _work_and_watch(app, api, common)
    warn("Stopped.")
    return 0


class _Api:
    """The HTTP API of a development server."""

    def __init__(self, listener: socket.socket, address: str) -> None:
        self.address = address
        self._listener = listener
        self._server: Any = None

    @classmethod
    def bind(cls, settings: Settings) -> _Api | None:
        """Return the API on its address, or None without the extra `http`. A default port in use is replaced."""
        try:
            require_http()
        except ConfigError as problem:
            warn(f"No API: {problem}")
            return None
        try:
            return cls(*bind_address(settings))
        except BadAddress:
            if settings.source("port") != DEFAULT:
                raise
            warn(f"Port {settings.port} is in use; choosing another one.")
            return cls(*bind_address(replace(settings, port=0)))

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def build(self, app: App) -> None:
        """Make the server of an App that is not open yet."""
        from ...http.server import Server

        self._server = Server(build_application(app, app.settings), self._listener)

    def start(self) -> asyncio.Task[None]:
        """Serve until `stop`."""
        return asyncio.create_task(self._server.run())

    def stop(self) -> None:
        """End the streams and stop."""
        self._server.stop()


async def _work_and_watch(app: App, api: _Api | None, common: CommonOptions) -> None:
    folder = _folder(app)
    changes = watch_files(folder, lambda: app.script_sources)  # before the summary announces that it watches
    working = asyncio.create_task(app.workers.run())
    serving = [api.start()] if api is not None else []
    watching = asyncio.create_task(_watch(app, folder, changes, ErrorFormat(common.json, common.debug)))
    with handle_stop_signals(lambda: _stop(app)):
        await asyncio.sleep(0)
        if not working.done():
            address = {"api": api.address, "console": console_address(api.address)} if api is not None else {}
            print_summary(summarize(app) | {"watching": app.settings.dir} | address, common.json, "dev")
        await asyncio.wait((working, watching, *serving), return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        await asyncio.wait((watching,))
        app.workers.stop()
        if api is not None:
            api.stop()
        await asyncio.gather(working, *serving)
    if not watching.cancelled():
        watching.result()


def _folder(app: App) -> Path:
    return Path(app.settings.dir).resolve()


def _stop(app: App) -> None:
    warn(stop_message(app))
    app.workers.stop()


async def _watch(app: App, folder: Path, changes: AsyncIterator[list[str]], format: ErrorFormat) -> None:
    async with aclosing(changes) as batches:  # type: ignore[type-var]
        async for files in batches:
            names = [_relative(file, folder) for file in files]
            before = app.registry
            try:
                app.reload()
            except PenstockError as problem:
                print_error(format, f"{problem}; the old version stays in use", problem.code)
                continue
            _print_reload(diff_registries(names, before, app.registry), format.json)


def _relative(file: str, folder: Path) -> str:
    return os.path.relpath(file, folder)


def _print_reload(changes: dict[str, Any], json: bool) -> None:
    if json:
        print_json(changes)
        return
    parts = [
        *(f"added flow {name}" for name in changes["flowsAdded"]),
        *(f"removed flow {name}" for name in changes["flowsRemoved"]),
        *(f"added queue {name}" for name in changes["queuesAdded"]),
        *(f"removed queue {name}" for name in changes["queuesRemoved"]),
    ]
    if changes["kept"]:
        parts.append(f"kept the old version of {', '.join(changes['kept'])}")
    print_text(f"Reloaded {', '.join(changes['reloaded'])}{''.join(f'; {part}' for part in parts)}.")


def diff_registries(names: list[str], before: Registry, now: Registry) -> dict[str, Any]:
    """Return what a reload changed."""
    broken = {problem.file for problem in now.problems}
    return {
        "reloaded": names,
        "flowsAdded": _missing(now.flows, before.flows),
        "flowsRemoved": _missing(before.flows, now.flows),
        "queuesAdded": _missing(now.queues(), before.queues()),
        "queuesRemoved": _missing(before.queues(), now.queues()),
        "kept": sorted({Path(item.file).name for item in before.found if item in now.found and item.file in broken}),
        "problems": [{"code": problem.code, "message": str(problem)} for problem in now.problems],
    }


def _missing(names: Iterable[str], other: Iterable[str]) -> list[str]:
    return sorted({*names} - {*other})
