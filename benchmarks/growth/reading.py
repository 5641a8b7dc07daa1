"""One reading: what a unit of work cost in time and in CPU, here and in the server."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "contenders"))

Reading = dict[str, float]


class Meter:
    """Collects the readings of one scenario."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.found: Reading = {}

    def _server_us(self) -> float:
        if self._url.startswith("sqlite"):
            return 0.0
        from server_time import server_us

        return server_us(self._url)

    @contextmanager
    def each(self, units: int) -> Iterator[None]:
        """Measure what each of so many units costs, in microseconds."""
        server, cpu, wall = self._server_us(), time.process_time(), time.perf_counter()
        yield
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.found |= {"time": wall * 1e6 / units, "CPU": cpu * 1e6 / units}
        if not self._url.startswith("sqlite"):
            self.found["server CPU"] = (self._server_us() - server) / units
