"""DBOS on SQLite: durable workflows, started through a queue.

A job is a workflow without steps; a flow is a workflow of three steps. The settings are the fastest we found: all
workflows are enqueued in one transaction, the queue is polled more often than once a second, and several numbers of
threads were tried. DBOS has no setting for SQLite's journal and uses a rollback journal. For `flows3_wal` the file is
put into WAL mode beforehand.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from importlib.metadata import version

from dbos import DBOS, DBOSClient, Queue
from entry import Case, Metrics, idle_cpu, latency, main, pauses, send_report, throughput

THREADS = 4  # no difference between 1 and 16: 51 to 83 flows/s, in two runs of each
WAL_THREADS = 2  # in WAL mode as fast as one, faster than four, eight and the default
DRAIN_POLL = 0.2  # seconds; a full queue is taken at once, and polling more often slows the workflows down
PICKUP_POLL = 0.01
INSTALLED_POLL = 1.0
RECORDED = "SELECT count(*) FROM workflow_status WHERE status = 'SUCCESS'"


def about() -> dict[str, str]:
    return {
        "name": "DBOS",
        "version": version("dbos"),
        "sqlite": sqlite3.sqlite_version,
        "settings": f"rollback journal and synchronous=FULL as installed, {THREADS} executor threads ({WAL_THREADS} in "
        f"WAL mode), no limit on the queue, which is polled every {DRAIN_POLL * 1000:.0f} ms to drain, every "
        f"{PICKUP_POLL * 1000:.0f} ms for pick-up; all workflows enqueued in one transaction",
    }


class Notes:
    """What the workflows below record. One per process, as DBOS itself."""

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.waits: list[float] = []
        self.gaps: list[float] = []
        self.ended = 0
        self._lock = threading.Lock()

    def end(self) -> None:
        with self._lock:
            self.ended += 1


notes = Notes()


@DBOS.workflow(name="noop")
def noop(sent: float) -> float:
    now = time.monotonic()
    notes.starts.append(now)
    notes.waits.append(now - sent)
    notes.end()
    return sent


@DBOS.step(name="step")
def step(previous: float) -> float:
    now = time.monotonic()
    notes.starts.append(now)
    if previous:
        notes.gaps.append(now - previous)
    return time.monotonic()


@DBOS.workflow(name="three")
def three(_: float) -> float:
    last = step(step(step(0.0)))
    notes.end()
    return last


class Engine:
    """A launched DBOS."""

    def __init__(self, case: Case) -> None:
        self._n = case.n
        self._file = case.file
        installed = case.scenario.endswith("_installed")
        wal = case.scenario.endswith("_wal")
        if wal:
            with sqlite3.connect(case.file) as db:
                db.execute("PRAGMA journal_mode = WAL")
        self.url = f"sqlite:///{case.file}"
        DBOS(
            config={
                "name": "bench",
                "system_database_url": self.url,
                "log_level": "ERROR",
                "application_version": "1",
                **({} if installed else {"max_executor_threads": WAL_THREADS if wal else THREADS}),
            }
        )
        DBOS.launch()

    def serve(self, poll: float) -> Queue:
        return DBOS.register_queue("bench", polling_interval_sec=poll)

    def wait_until_recorded(self) -> float:
        """Wait until the last workflow has ended and is stored as such. Return that time."""
        while notes.ended < self._n:
            time.sleep(0.005)
        with sqlite3.connect(self._file) as db:
            while db.execute(RECORDED).fetchone()[0] < self._n:
                time.sleep(0.002)
        return time.monotonic()


class Producer:
    """Enqueues from another process."""

    def __init__(self, url: str) -> None:
        self._client = DBOSClient(system_database_url=url)

    def enqueue(self, workflow: str, arguments: list[float]) -> None:
        options = {"queue_name": "bench", "workflow_name": workflow, "app_version": "1"}
        with self._client._sys_db.engine.begin() as connection:
            for argument in arguments:
                self._client.enqueue_in_transaction(connection, options, argument)


def jobs(case: Case) -> Metrics:
    return _drain(case, "noop")


def flows3(case: Case) -> Metrics:
    return _drain(case, "three")


def _drain(case: Case, workflow: str) -> Metrics:
    producer = Producer(Engine(case).url)
    since = time.monotonic()
    producer.enqueue(workflow, [float(i) for i in range(case.n)])
    seconds = time.monotonic() - since
    DBOS.destroy()
    worker = case.worker()
    report = worker.read_report()
    worker.end()
    return throughput(case.n, seconds, report["first"], report["last"])


def work_drain(case: Case) -> None:
    engine = Engine(case)
    engine.serve(DRAIN_POLL)
    last = engine.wait_until_recorded()
    send_report(first=min(notes.starts), last=last)
    os._exit(0)


def step_latency(case: Case) -> Metrics:
    """Workflows called one after another in this thread: no queue, no polling."""
    Engine(case)
    for _ in range(case.n):
        three(0.0)
    return latency(notes.gaps)


def pickup(case: Case) -> Metrics:
    other = _measure_from_another_process(case)
    engine = Engine(case.inside("same"))
    queue = engine.serve(PICKUP_POLL)
    time.sleep(2)  # a new queue is noticed within a second
    for _ in pauses(case.n):
        queue.enqueue(noop, time.monotonic())
    engine.wait_until_recorded()
    return other | latency(notes.waits, "same_")


def pickup_installed(case: Case) -> Metrics:
    return _measure_from_another_process(case)


def _measure_from_another_process(case: Case) -> Metrics:
    worker = case.worker()
    report = worker.read_report()
    producer = Producer(report["url"])
    for _ in pauses(case.n, long=case.scenario == "pickup_installed"):
        producer.enqueue("noop", [time.monotonic()])
    waits = worker.read_report()["waits"]
    worker.end()
    return latency(waits) | {"idle_cpu_percent": report["idle"]}


def work_pickup(case: Case) -> None:
    engine = Engine(case)
    engine.serve(INSTALLED_POLL if case.scenario == "pickup_installed" else PICKUP_POLL)
    send_report(idle=idle_cpu(), url=engine.url)
    engine.wait_until_recorded()
    send_report(waits=notes.waits)
    os._exit(0)


main(
    about,
    {
        "jobs": jobs,
        "flows3": flows3,
        "flows3_wal": flows3,
        "step_latency": step_latency,
        "pickup": pickup,
        "pickup_installed": pickup_installed,
    },
    {
        "jobs": work_drain,
        "flows3": work_drain,
        "flows3_wal": work_drain,
        "pickup": work_pickup,
        "pickup_installed": work_pickup,
    },
)
os._exit(0)  # DBOS keeps threads that would keep the process alive
