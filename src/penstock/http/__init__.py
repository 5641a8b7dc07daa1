"""The HTTP API: everything the command line can do, as one ASGI application made from an App."""

from __future__ import annotations

from ..app.tokens import Caller
from .application import asgi_app
from .tenants import Tenants

__all__ = ["Caller", "Tenants", "asgi_app"]
