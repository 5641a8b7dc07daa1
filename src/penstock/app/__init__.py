"""The composition root."""

from .app import App
from .sync import SyncApp

__all__ = ["App", "SyncApp"]
