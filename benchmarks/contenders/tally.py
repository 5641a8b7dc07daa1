"""No-op jobs through a queue on a server, the same for every contender: a producer, and a worker process that counts.

A contender gives a producer and what a worker process does; its handler calls `Tally.hit` with what the job carries.
Only the standard library, as in entry.py.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from entry import Case, Metrics, latency, main, pauses, tell

LIMIT = 10.0  # seconds: whoever is slower has its rate taken from what it did in this time
PATIENCE = 60.0  # until the first job begins
WARM = -1.0  # what a job carries that only shows that the worker is there


class Producer(Protocol):
    """Adds jobs, each carrying a number."""

    def add(self, sent: Sequence[float]) -> None: ...


class Tally:
    """Counts jobs in the worker process, tells when all were begun, and ends the process at once."""

    def __init__(self, case: Case, *, watched: bool = True) -> None:
        self._n = case.n
        self._scenario = case.scenario
        self._limit = LIMIT if case.scenario != "pickup" else LIMIT + case.n * 0.5  # pick-up has pauses
        self._begins = [0.0, 0.0]  # by the clock and by this process's processor
        self._last = 0.0
        self._waits: list[float] = []
        self._done = threading.Event()
        if watched:  # else the contender says itself when it is over
            threading.Thread(target=self._watch, daemon=True).start()

    def hit(self, sent: float) -> None:
        """A handler has begun."""
        now = time.monotonic()
        if sent == WARM:
            tell(ready=True)
            return
        if not self._waits:
            self._begins = [now, time.process_time()]
        self._last = now
        self._waits.append(now - sent)
        if len(self._waits) == self._n:
            self._done.set()

    def _watch(self) -> None:
        begun = time.monotonic()
        while not self._waits and time.monotonic() - begun < PATIENCE:
            self._done.wait(0.05)
        self._done.wait(self._limit)
        self.end(self._last)

    def end(self, last: float) -> None:
        """Tells what was counted. The process ends without cleaning up: that is not what is measured."""
        count, (first, cpu) = len(self._waits), self._begins
        cpu = time.process_time() - cpu
        waits = self._waits if self._scenario == "pickup" else []
        tell(count=count, first=first, last=last, cpu=cpu, waits=waits)
        os._exit(0)


def jobs(case: Case, producer: Callable[[Case], Producer]) -> Metrics:
    """All jobs are enqueued, then one worker process begins: from the first handler's start to the last one's."""
    adds = producer(case)
    since = time.monotonic()
    adds.add([float(i) for i in range(case.n)])
    seconds = time.monotonic() - since
    worker = case.worker()
    told = worker.hear()
    worker.end()
    count, span = told["count"], told["last"] - told["first"]
    if count < 2:
        raise SystemExit("the worker process began no two jobs")
    return {
        "per_s": (count - 1) / span,
        "cpu_us": told["cpu"] / count * 1e6,
        "enqueue_per_s": case.n / seconds,
    }


def pickup(case: Case, producer: Callable[[Case], Producer]) -> Metrics:
    """Jobs enqueued one at a time, irregularly, with nothing else going on."""
    adds = producer(case)
    worker = case.worker()
    adds.add([WARM])
    worker.hear()
    for _ in pauses(case.n):
        adds.add([time.monotonic()])
    told = worker.hear()
    worker.end()
    return latency(told["waits"])


def contest(
    about: Callable[[], dict[str, str]],
    producer: Callable[[Case], Producer],
    work: Callable[[Case, Tally], None],
    more: Mapping[str, tuple[Callable[[Case], Metrics], Callable[[Case], None]]] | None = None,
) -> None:
    """Runs what the command line asks for; `more` are scenarios of this contender's own, each with its worker."""

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
