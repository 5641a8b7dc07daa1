"""What runs a handler, wherever it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

Interrupt = Callable[[str], None]
"""Stops a running handler from outside, for a reason."""


class Runner(Protocol):
    """Runs one handler once; an exception of the handler is raised as it is."""

    async def run(
        self,
        call: Callable[[], Any | Awaitable[Any]],
        *,
        is_async: bool,
        timeout: float | None,
        interruptible: Callable[[Interrupt], None],
    ) -> Any:
        """`interruptible` is given the way to stop the handler as soon as it runs."""
        ...

    async def close(self) -> None: ...
