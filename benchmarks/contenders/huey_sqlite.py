"""Huey on SQLite: a queue without steps, durable with `fsync=True`, with thread workers in a separate process.

Huey removes a task from the queue before it runs: a task that is running when the process dies is lost.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from importlib.metadata import version
from typing import Any

from entry import Case, Metrics, idle_cpu, latency, main, pauses, send_report, throughput
from huey import SqliteHuey
from huey.signals import SIGNAL_COMPLETE

WORKERS = (1, 4)  # threads; the faster result is used
POLL = 0.01  # seconds; installed: 0.1, growing to 10 while idle


def about() -> dict[str, str]:
    return {
        "name": "Huey",
        "version": version("huey"),
        "sqlite": sqlite3.sqlite_version,
        "settings": "SqliteHuey(fsync=True) in WAL mode, results kept, the faster of 1 and 4 thread workers, "
        f"polling every {POLL * 1000:.0f} ms; one call per enqueue: it has no bulk enqueue",
    }


class Engine:
    """A Huey with one task, which records when it started."""

    def __init__(self, case: Case) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.waits: list[float] = []
        self.done = threading.Event()
        # Huey keeps no result for None; the task returns its argument, so that every end is recorded.
        self.huey = SqliteHuey("bench", filename=str(case.file), fsync=True)
        self.noop = self.huey.task(name="noop")(self._noop)
        self.n = case.n
        self.huey.signal(SIGNAL_COMPLETE)(self._complete)  # sent after the result is stored

    def _noop(self, sent: float) -> float:
        now = time.monotonic()
        self.starts.append(now)
        self.waits.append(now - sent)
        return sent

    def _complete(self, *_: Any) -> None:
        self.ends.append(time.monotonic())
        if len(self.ends) == self.n:
            self.done.set()

    def start(self, workers: int, *, installed: bool = False) -> None:
        polling = {} if installed else {"initial_delay": POLL, "max_delay": POLL}
        self.huey.create_consumer(workers=workers, worker_type="thread", periodic=False, **polling).start()


def jobs(case: Case) -> Metrics:
    tried = {workers: _jobs(case.inside(str(workers)), workers) for workers in WORKERS}
    return max(tried.values(), key=lambda metrics: metrics["drain_per_s"])


def _jobs(case: Case, workers: int) -> Metrics:
    engine = Engine(case)
    since = time.monotonic()
    for i in range(case.n):
        engine.noop(float(i))
    seconds = time.monotonic() - since
    engine.huey.storage.close()
    worker = case.worker(str(workers))
    report = worker.read_report()
    worker.end()
    return throughput(case.n, seconds, report["first"], report["last"])


def work_jobs(case: Case) -> None:
    engine = Engine(case)
    engine.start(int(case.setting))
    engine.done.wait()
    send_report(first=min(engine.starts), last=max(engine.ends))


def pickup(case: Case) -> Metrics:
    other = _measure_from_another_process(case)
    same = Engine(case.inside("same"))
    same.start(max(WORKERS))
    for _ in pauses(case.n):
        same.noop(time.monotonic())
    same.done.wait()
    return other | latency(same.waits, "same_")


def pickup_installed(case: Case) -> Metrics:
    return _measure_from_another_process(case)


def _measure_from_another_process(case: Case) -> Metrics:
    engine = Engine(case)
    worker = case.worker()
    idle = worker.read_report()["idle"]
    for _ in pauses(case.n, long=case.scenario == "pickup_installed"):
        engine.noop(time.monotonic())
    report = worker.read_report()
    worker.end()
    return latency(report["waits"]) | {"idle_cpu_percent": idle}


def work_pickup(case: Case) -> None:
    engine = Engine(case)
    engine.start(max(WORKERS), installed=case.scenario == "pickup_installed")
    send_report(idle=idle_cpu())
    engine.done.wait()
    send_report(waits=engine.waits)


main(
    about,
    {"jobs": jobs, "pickup": pickup, "pickup_installed": pickup_installed},
    {"jobs": work_jobs, "pickup": work_pickup, "pickup_installed": work_pickup},
)
