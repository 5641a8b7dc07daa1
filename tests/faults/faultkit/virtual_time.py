"""Virtual time for real stores: when everything waits, time moves on at once.

Unlike `sim_loop`, this is asyncio's own loop with real sockets and threads; only the clock is virtual. Time stands
still during a store call, so a reply is never late because the machine is slow.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.testing.clock import START_MS

T = TypeVar("T")
REAL_LIMIT_S = 60.0


class _SkippingSelector:
    """A selector that skips time instead of sleeping, unless something real is in progress."""

    def __init__(self) -> None:
        self._inner = selectors.DefaultSelector()
        self.skipped = 0.0
        self.is_busy: Callable[[], bool] = lambda: False
        self._deadline: float | None = time.monotonic() + REAL_LIMIT_S

    def select(self, timeout: float | None = None) -> Any:
        if self._deadline is not None and time.monotonic() > self._deadline:
            self._deadline = None  # raise once: closing the loop takes a few more iterations
            raise TimeoutError(f"not finished after {REAL_LIMIT_S:.0f} real seconds, {self.skipped:.1f} virtual ones")
        if timeout is None or timeout <= 0:
            return self._inner.select(timeout)
        if self.is_busy():
            return self._inner.select(0.05)
        ready = self._inner.select(0)
        if not ready:
            self.skipped += timeout
        return ready

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's loop on a virtual clock."""

    def __init__(self) -> None:
        self.selector = _SkippingSelector()
        self._executing = 0
        super().__init__(self.selector)  # type: ignore[arg-type]

    def time(self) -> float:
        return self.selector.skipped

    @property
    def executing(self) -> int:
        return self._executing

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._executing += 1
        future.add_done_callback(self._executed)
        return future

    def _executed(self, _: asyncio.Future[Any]) -> None:
        self._executing -= 1


class VirtualClock:
    """The engine's clock: the time of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return START_MS + int(self._loop.time() * 1000)


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a virtual loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work())
