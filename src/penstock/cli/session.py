"""An App as a command needs it: with the worker files, or only to look at the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..app import App
from ..app.backend import sqlite_path
from ..core.errors import ConfigError, NotFound
from ..settings import Settings
from .logs import log_as
from .options import Common


def working_app(common: Common, *, chatty: bool = False, **given: Any) -> App:
    """An App with the worker files loaded; those that cannot be are warned about, and the rest works."""
    settings = Settings.load({"url": common.url, "dir": common.dir, **given})
    log_as(settings, chatty)
    if not Path(settings.dir).is_dir():
        raise ConfigError(
            f"there is no folder {settings.dir!r} here: go to your project, or give the worker files' --dir"
        )
    return App(common.url, settings.dir, **given)


def looking_app(common: Common) -> App:
    """An App that loads no code, on a store that is there: looking creates nothing."""
    app = App(common.url, handlers=())
    log_as(app.settings, chatty=False)
    url = app.settings.url
    if url.startswith("sqlite:") and (path := sqlite_path(url)) != ":memory:" and not Path(path).exists():
        raise NotFound(f"there is no store at {path}: nothing has run here yet, or give the right --url")
    return app
