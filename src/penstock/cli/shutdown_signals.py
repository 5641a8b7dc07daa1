"""Ctrl-C and SIGTERM: the first one stops in good order, the second one at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..app import App
from ..core.durations import format_ms
from .errors import INTERRUPTED, warn

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def stopping(app: App) -> str:
    """What a person is told after the first signal."""
    return f"Stopping: what runs may finish, {format_ms(app.settings.grace)} at most. Ctrl-C again stops at once."


@contextmanager
def on_stop(
    stop: Callable[[], object], last_words: str = "Stopped at once.", kill: Callable[[], object] | None = None
) -> Iterator[None]:
    """Calls `stop` at the first signal. A second one ends the process: what is not recorded runs again elsewhere."""
    loop = asyncio.get_running_loop()
    asked = False

    def hear() -> None:
        nonlocal asked
        if asked:
            sys.stdout.flush()
            warn(last_words)
            if kill is not None:
                kill()
            os._exit(INTERRUPTED)
        asked = True
        stop()

    try:
        for number in _SIGNALS:
            loop.add_signal_handler(number, hear)
    except (NotImplementedError, RuntimeError):  # Windows, or not the main thread: Ctrl-C raises as usual
        pass
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
