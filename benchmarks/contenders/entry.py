"""How the harness calls a contender, and what it answers.

    python huey_sqlite.py jobs --n 1000 --dir DIR             {"about": {...}, "metrics": {...}} after a mark
    python huey_sqlite.py jobs --n 1000 --dir DIR --worker    its worker process, started by the first

Only the standard library: contenders run in environments of their own. Times are `time.monotonic()`, which
the processes of one machine share.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Metrics = dict[str, float]
_MARK = "#> "  # other lines are an engine's own chatter


@dataclass(frozen=True)
class Case:
    """One measurement: what, how much of it, and an empty folder to do it in."""

    scenario: str
    n: int
    dir: Path
    setting: str = ""  # what the worker process is told by the one that starts it
    url: str = ""  # of an empty place on the server, where the store is one
    level: int = 1  # how many jobs at a time

    @property
    def file(self) -> Path:
        return self.dir / "bench.db"

    def inside(self, name: str) -> Case:
        """The same in an empty folder of this one."""
        (self.dir / name).mkdir()
        return replace(self, dir=self.dir / name)

    def worker(self, setting: str = "") -> Worker:
        """Starts this contender's worker process."""
        case = [self.scenario, "--n", str(self.n), "--dir", str(self.dir), "--setting", setting]
        place = ["--url", self.url, "--level", str(self.level)]
        return Worker([sys.executable, sys.argv[0], *case, *place, "--worker"])


class Worker:
    """The worker process, as the process that measures sees it."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def hear(self) -> dict[str, Any]:
        """The next thing the worker tells."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_MARK):
                told: dict[str, Any] = json.loads(line.removeprefix(_MARK))
                return told
        raise SystemExit(f"the worker process ended early, with exit code {self._process.wait()}")

    def end(self) -> None:
        self._process.wait(timeout=30)


def tell(**what: Any) -> None:
    """Says something to the process that started this one."""
    print(_MARK + json.dumps(what), flush=True)


def main(
    about: Callable[[], dict[str, str]],
    measure: Mapping[str, Callable[[Case], Metrics]],
    work: Mapping[str, Callable[[Case], None]] | None = None,
) -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", choices=sorted(measure))
    parser.add_argument("--n", type=int, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--setting", default="")
    parser.add_argument("--url", default="")
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--worker", action="store_true")
    given = parser.parse_args()
    case = Case(given.scenario, given.n, given.dir, given.setting, given.url, given.level)
    if given.worker:
        assert work is not None
        work[given.scenario](case)
    else:
        tell(about=about(), metrics=measure[given.scenario](case))


# Measures that every contender takes in the same way


def throughput(n: int, enqueue_seconds: float, first: float, last: float) -> Metrics:
    """Rates of work that was all enqueued before the worker process began."""
    drain = last - first
    return {
        "enqueue_per_s": n / enqueue_seconds,
        "drain_per_s": n / drain,
        "whole_per_s": n / (enqueue_seconds + drain),
    }


def pauses(n: int, *, long: bool = False) -> Iterator[None]:
    """Waits before each of n samples, irregularly, so that no poll falls into step with them."""
    for _ in range(n):
        time.sleep(random.uniform(0.7, 1.5) if long else random.uniform(0.04, 0.12))
        yield


def latency(seconds: Sequence[float], prefix: str = "") -> Metrics:
    """Median and 99th percentile in milliseconds."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {f"{prefix}p50_ms": statistics.median(ordered) * 1000, f"{prefix}p99_ms": p99 * 1000}


def idle_cpu(seconds: float = 2.0) -> float:
    """How much of one core this process uses while it has nothing to do, in percent."""
    before, since = time.process_time(), time.monotonic()
    time.sleep(seconds)
    return 100 * (time.process_time() - before) / (time.monotonic() - since)
