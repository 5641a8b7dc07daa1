"""What runs a handler, wherever it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class Interrupt(Protocol):
    """Stops a running handler from outside."""

    def __call__(self, reason: str) -> None: ...


class Runner(Protocol):
    """Runs one handler once; an exception of the handler is raised as it is."""

    async def run(
        self, call: Callable[[], Any | Awaitable[Any]], *, is_async: bool, timeout: float | None,
        interruptible: Callable[[Interrupt], None],
    ) -> Any:
        """`interruptible` is given the way to stop the handler as soon as it runs."""
        ...

    async def close(self, grace: float) -> None: ...
