"""What a Python host says of the threads of its handler."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from penstock.host.calls import Attempt
from penstock.host.wire import Wire
from penstock.ports import frames


class SlowWire:
    """Records what was sent. `Concurrent` lets another frame overtake it."""

    def __init__(self) -> None:
        self.sent: list[type[frames.Frame]] = []
        self._overtaken = threading.Event()

    def send(self, frame: frames.Frame) -> None:
        if isinstance(frame, frames.Concurrent):
            self._overtaken.wait(0.2)
        self.sent.append(type(frame))
        self._overtaken.set()


def test_no_frame_of_another_thread_is_sent_before_concurrent() -> None:
    """Two threads start at once: neither may rely on a frame that the other has not sent yet."""
    wire = SlowWire()
    attempt = Attempt(cast(Wire, wire), None)
    together = threading.Barrier(2)

    def emit(_: Any) -> None:
        together.wait()
        attempt.note_caller()
        wire.send(frames.Emit("order.paid", 1))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(emit, range(2)))
    attempt.note_caller()
    assert wire.sent[0] is frames.Concurrent
    assert wire.sent.count(frames.Emit) == 2
