"""Ctrl-C and SIGTERM: the first one stops gracefully, the second one at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..app import App
from ..core.durations import format_ms
from .errors import EXIT_INTERRUPTED, warn
from .service_manager import STOPPING, notify

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def stop_message(app: App) -> str:
    """Return what to print after the first signal."""
    return (
        f"Stopping: running handlers have {format_ms(app.settings.grace)} to finish. Press Ctrl-C again to stop "
        "immediately."
    )


@contextmanager
def handle_stop_signals(
    stop: Callable[[], object], final_message: str = "Stopped immediately.", kill: Callable[[], object] | None = None
) -> Iterator[None]:
    """Call `stop` at the first signal. A second one ends the process; unrecorded work runs again elsewhere."""
    loop = asyncio.get_running_loop()
    is_stopping = has_ended = False

    def handle_signal(number: signal.Signals) -> None:
        nonlocal is_stopping
        if has_ended:  # the loop took the signal before the block ended, and calls this after it: send it again
            signal.raise_signal(number)
            return
        if is_stopping:
            sys.stdout.flush()
            warn(final_message)
            if kill is not None:
                kill()
            os._exit(EXIT_INTERRUPTED)
        is_stopping = True
        notify(STOPPING)
        stop()

    try:
        for number in _SIGNALS:
            loop.add_signal_handler(number, handle_signal, number)
    except (NotImplementedError, RuntimeError):  # Windows, or not the main thread: Ctrl-C raises KeyboardInterrupt
        pass
    try:
        yield
    finally:
        has_ended = True
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
