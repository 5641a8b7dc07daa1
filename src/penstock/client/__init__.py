"""The client of the HTTP API: the facets of App for services that do not open the store."""

from __future__ import annotations

from .client import Client
from .sync import SyncClient

__all__ = ["Client", "SyncClient"]
