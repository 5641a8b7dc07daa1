"""An App as a command needs it: with the worker files, or only to look at the store."""

from __future__ import annotations

import os

from ..app import App
from .options import Common


def working_app(common: Common) -> App:
    """An App with the worker files loaded; those that cannot be are warned about, and the rest works."""
    return App(common.url, common.dir or os.environ.get("PENSTOCK_DIR") or "workers")


def looking_app(common: Common) -> App:
    """An App that loads no code: what is in the store can be seen without it."""
    return App(common.url, handlers=())
