"""The composition root."""

from .app import App
from .shared_connections import SharedConnections
from .sync import SyncApp

__all__ = ["App", "SharedConnections", "SyncApp"]
