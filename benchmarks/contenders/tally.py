"""Measure no-op jobs through a queue on a server, in the same way for every contender.

A contender provides a producer and the function of a worker process; its handler calls `Tally.hit` with the number in
the job. Imports only the standard library, as entry.py.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from entry import Case, Metrics, latency, main, pauses, send_report

LIMIT_S = 10.0  # the rate of a slower contender is computed from this time
FIRST_JOB_TIMEOUT_S = 60.0
WARM = -1.0  # the number in a job that only checks that the worker is running


class Producer(Protocol):
    """Adds jobs, each with a number."""

    def add(self, sent: Sequence[float]) -> None: ...


class Tally:
    """Counts jobs in the worker process, reports when all have started, and ends the process at once."""

    def __init__(self, case: Case, *, watched: bool = True) -> None:
        self._n = case.n
        self._scenario = case.scenario
        self._limit = LIMIT_S if case.scenario != "pickup" else LIMIT_S + case.n * 0.5  # pickup sleeps between jobs
        self._first = [0.0, 0.0]  # wall-clock time and CPU time of the first job
        self._last = 0.0
        self._waits: list[float] = []
        self._done = threading.Event()
        if watched:  # otherwise the contender calls end() itself
            threading.Thread(target=self._watch, daemon=True).start()

    def hit(self, sent: float) -> None:
        """Record that a handler has started."""
        now = time.monotonic()
        if sent == WARM:
            send_report(ready=True)
            return
        if not self._waits:
            self._first = [now, time.process_time()]
        self._last = now
        self._waits.append(now - sent)
        if len(self._waits) == self._n:
            self._done.set()

    def _watch(self) -> None:
        started = time.monotonic()
        while not self._waits and time.monotonic() - started < FIRST_JOB_TIMEOUT_S:
            self._done.wait(0.05)
        self._done.wait(self._limit)
        self.end(self._last)

    def end(self, last: float) -> None:
        """Send the report and end the process without cleanup, which is not measured."""
        count, (first, cpu) = len(self._waits), self._first
        cpu = time.process_time() - cpu
        waits = self._waits if self._scenario == "pickup" else []
        send_report(count=count, first=first, last=last, cpu=cpu, waits=waits)
        os._exit(0)


def jobs(case: Case, producer: Callable[[Case], Producer]) -> Metrics:
    """Enqueue all jobs, start one worker process, and measure from the first start of a handler to the last."""
    jobs_producer = producer(case)
    since = time.monotonic()
    jobs_producer.add([float(i) for i in range(case.n)])
    seconds = time.monotonic() - since
    worker = case.worker()
    report = worker.read_report()
    worker.end()
    count, span = report["count"], report["last"] - report["first"]
    if count < 2:
        raise SystemExit("the worker process started fewer than two jobs")
    return {
        "per_s": (count - 1) / span,
        "cpu_us": report["cpu"] / count * 1e6,
        "enqueue_per_s": case.n / seconds,
    }


def pickup(case: Case, producer: Callable[[Case], Producer]) -> Metrics:
    """Enqueue jobs one at a time, at random intervals, with no other load."""
    jobs_producer = producer(case)
    worker = case.worker()
    jobs_producer.add([WARM])
    worker.read_report()
    for _ in pauses(case.n):
        jobs_producer.add([time.monotonic()])
    report = worker.read_report()
    worker.end()
    return latency(report["waits"])


def run_contender(
    about: Callable[[], dict[str, str]],
    producer: Callable[[Case], Producer],
    work: Callable[[Case, Tally], None],
    more: Mapping[str, tuple[Callable[[Case], Metrics], Callable[[Case], None]]] | None = None,
) -> None:
    """Run the scenario that the command line names. `more` are additional scenarios, each with its worker."""

    def worker(case: Case) -> None:
        work(case, Tally(case))

    main(
        about,
        {
            "jobs": lambda case: jobs(case, producer),
            "jobs_serial": lambda case: jobs(case, producer),
            "pickup": lambda case: pickup(case, producer),
            **{name: measure for name, (measure, _) in (more or {}).items()},
        },
        {
            "jobs": worker,
            "jobs_serial": worker,
            "pickup": worker,
            **{name: its_worker for name, (_, its_worker) in (more or {}).items()},
        },
    )
