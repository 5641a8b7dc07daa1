"""The composition root."""

from typing import TYPE_CHECKING

from ..core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .app import App
    from .shared_connections import SharedConnections
    from .sync import SyncApp
else:
    __getattr__, __dir__ = lazy_names(
        __name__, {"App": ".app", "SharedConnections": ".shared_connections", "SyncApp": ".sync"}
    )

__all__ = ["App", "SharedConnections", "SyncApp"]
