"""The command line of a contender and the report it prints.

    python huey_sqlite.py jobs --n 1000 --dir DIR             prints {"about": {...}, "metrics": {...}} after a marker
    python huey_sqlite.py jobs --n 1000 --dir DIR --worker    the worker process, started by the command above

Imports only the standard library, because contenders run in environments of their own. Times are `time.monotonic()`,
which all processes of a machine share.
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
_MARK = "#> "  # lines without it are output of the engine


@dataclass(frozen=True)
class Case:
    """One measurement: the scenario, its size, and an empty folder."""

    scenario: str
    n: int
    dir: Path
    setting: str = ""  # passed to the worker process
    url: str = ""  # of an empty database, if the store is a server
    level: int = 1  # concurrency

    @property
    def file(self) -> Path:
        return self.dir / "bench.db"

    def inside(self, name: str) -> Case:
        """Return this case with a new subfolder as its folder."""
        (self.dir / name).mkdir()
        return replace(self, dir=self.dir / name)

    def worker(self, setting: str = "") -> Worker:
        """Start the worker process of this contender."""
        case = [self.scenario, "--n", str(self.n), "--dir", str(self.dir), "--setting", setting]
        target = ["--url", self.url, "--level", str(self.level)]
        return Worker([sys.executable, sys.argv[0], *case, *target, "--worker"])


class Worker:
    """The worker process, seen from the process that measures."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def read_report(self) -> dict[str, Any]:
        """Return the next report of the worker."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_MARK):
                report: dict[str, Any] = json.loads(line.removeprefix(_MARK))
                return report
        raise SystemExit(f"the worker process ended early, with exit code {self._process.wait()}")

    def end(self) -> None:
        self._process.wait(timeout=30)


def send_report(**fields: Any) -> None:
    """Send a report to the process that started this one."""
    print(_MARK + json.dumps(fields), flush=True)


def main(
    about: Callable[[], dict[str, str]],
    measure: Mapping[str, Callable[[Case], Metrics]],
    work: Mapping[str, Callable[[Case], None]] | None = None,
) -> None:
    """Run the scenario or the worker that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", choices=sorted(measure))
    parser.add_argument("--n", type=int, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--setting", default="")
    parser.add_argument("--url", default="")
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--worker", action="store_true")
    args = parser.parse_args()
    case = Case(args.scenario, args.n, args.dir, args.setting, args.url, args.level)
    if args.worker:
        assert work is not None
        work[args.scenario](case)
    else:
        send_report(about=about(), metrics=measure[args.scenario](case))


# Shared measurements


def throughput(n: int, enqueue_seconds: float, first: float, last: float) -> Metrics:
    """Return the rates for jobs that were all enqueued before the worker process started."""
    drain = last - first
    return {
        "enqueue_per_s": n / enqueue_seconds,
        "drain_per_s": n / drain,
        "whole_per_s": n / (enqueue_seconds + drain),
    }


def pauses(n: int, *, long: bool = False) -> Iterator[None]:
    """Sleep before each of n samples, for random times, so that polling does not synchronize with them."""
    for _ in range(n):
        time.sleep(random.uniform(0.7, 1.5) if long else random.uniform(0.04, 0.12))
        yield


def latency(seconds: Sequence[float], prefix: str = "") -> Metrics:
    """Return the median and the 99th percentile in milliseconds."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {f"{prefix}p50_ms": statistics.median(ordered) * 1000, f"{prefix}p99_ms": p99 * 1000}


def idle_cpu(seconds: float = 2.0) -> float:
    """Return how much of one core this process uses while idle, in percent."""
    before, since = time.process_time(), time.monotonic()
    time.sleep(seconds)
    return 100 * (time.process_time() - before) / (time.monotonic() - since)
