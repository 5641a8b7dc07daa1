"""Ctrl-C and SIGTERM: the first one stops in good order, the second one at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .mistakes import INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_stop(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` at the first signal. A second one ends the process: what is not recorded runs again elsewhere."""
    loop = asyncio.get_running_loop()
    asked = False

    def hear() -> None:
        nonlocal asked
        if asked:
            sys.stdout.flush()
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
