"""What the endpoints of one application share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..app.app import App
from ..core.api_errors import ServerClosing
from .auth import MAX_BAD_TRIGGERS, Authenticate, BadTokenLimit, Guard
from .event_filter import FlowNames
from .metrics import Metrics
from .shared_reader import SharedReaders

if TYPE_CHECKING:
    from .router import Router


@dataclass(frozen=True)
class ServerOptions:
    """What `asgi_app` was given."""

    authenticate: Authenticate | None = None
    allowed_origins: tuple[str, ...] = ()
    heartbeat_s: float = 15.0
    buffer_limit: int = 128_000
    console: bool = True


class Services:
    """The App, its tokens, the guard and the shared readers of live streams.

    Parts are made when they are needed: a mounted application is built before its App is open."""

    def __init__(
        self,
        app: App,
        router: Router,
        options: ServerOptions,
        *,
        allow_loopback: bool = True,
    ) -> None:
        self.app = app
        self._allow_loopback = allow_loopback
        self.router = router
        self.options = options
        self._guard: Guard | None = None
        self._readers: SharedReaders | None = None
        self._flow_names: FlowNames | None = None
        self._triggers: BadTokenLimit | None = None
        self.metrics = Metrics()
        if not app._is_open:
            app.listen(self.metrics)

    def require_open(self) -> None:
        """Raise ServerClosing unless the App is open."""
        if not self.app._is_open:
            raise ServerClosing("the App of this server is not open; it starts or shuts down")

    @property
    def guard(self) -> Guard:
        self.require_open()
        if self._guard is None:
            options = self.options
            self._guard = Guard(
                self.app.tokens,
                self.app.clock,
                options.authenticate,
                options.allowed_origins,
                allow_loopback=self._allow_loopback,
            )
        return self._guard

    @property
    def trigger_limit(self) -> BadTokenLimit:
        """Refuses addresses that try tokens of triggers."""
        if self._triggers is None:
            self._triggers = BadTokenLimit(self.app.clock, MAX_BAD_TRIGGERS)
        return self._triggers

    @property
    def readers(self) -> SharedReaders:
        if self._readers is None:
            self._readers = SharedReaders(self.app, self.options.buffer_limit)
        return self._readers

    @property
    def flow_names(self) -> FlowNames:
        if self._flow_names is None:
            self._flow_names = FlowNames(self.app.store)
        return self._flow_names

    async def close(self) -> None:
        """End the live streams."""
        if self._readers is not None:
            await self._readers.close()
