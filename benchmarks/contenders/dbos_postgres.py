"""DBOS on Postgres: durable workflows, started through a queue. A job is a workflow without steps."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version

import psycopg
from dbos import DBOS, DBOSClient
from entry import Case, Metrics, send_report
from server_time import server_us
from tally import Tally, run_contender

DRAIN_POLL = 0.2  # seconds; a full queue is taken at once, and polling more often slows the workflows down
PICKUP_POLL = 0.01
FLOW_THREADS = 10
RECORDED = "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'"


def about() -> dict[str, str]:
    return {
        "name": "DBOS",
        "version": version("dbos"),
        "settings": "executor threads as the concurrency, "
        f"{FLOW_THREADS} for flows; the queue polled every {PICKUP_POLL * 1000:.0f} ms, or {DRAIN_POLL * 1000:.0f} ms "
        "to drain it with high concurrency, instead of every second; all workflows enqueued in one transaction",
    }


class Notes:
    """What the workflows below record. One per process, as DBOS itself."""

    def __init__(self) -> None:
        self.tally: Tally | None = None
        self.first = 0.0


notes = Notes()


@DBOS.workflow(name="noop")
def noop(sent: float) -> float:
    if notes.tally is not None:
        notes.tally.hit(sent)
    return sent


@DBOS.step(name="step")
def step(previous: float) -> float:
    notes.first = notes.first or time.monotonic()
    return previous + 1


@DBOS.workflow(name="three")
def three(_: float) -> float:
    return step(step(step(0.0)))


def launch(url: str, threads: int) -> None:
    config = {"name": "bench", "system_database_url": url, "log_level": "ERROR", "application_version": "1"}
    DBOS(config={**config, "max_executor_threads": threads})
    DBOS.launch()


class Producer:
    def __init__(self, case: Case) -> None:
        launch(case.url, 1)  # creates the tables
        DBOS.destroy()
        self._client = DBOSClient(system_database_url=case.url)

    def add(self, sent: Sequence[float], workflow: str = "noop") -> None:
        options = {"queue_name": "bench", "workflow_name": workflow, "app_version": "1"}
        with self._client._sys_db.engine.begin() as connection:
            for one in sent:
                self._client.enqueue_in_transaction(connection, options, one)


def work(case: Case, tally: Tally) -> None:
    notes.tally = tally
    launch(case.url, max(case.level, 2))
    poll = DRAIN_POLL if case.scenario == "jobs" and case.level > 10 else PICKUP_POLL
    DBOS.register_queue("bench", polling_interval_sec=poll, worker_concurrency=case.level)
    threading.Event().wait()


def flows3(case: Case) -> Metrics:
    producer = Producer(case)
    since = time.monotonic()
    producer.add([float(i) for i in range(case.n)], "three")
    seconds = time.monotonic() - since
    before = server_us(case.url)
    worker = case.worker()
    report = worker.read_report()
    worker.end()
    span, steps = report["last"] - report["first"], case.n * 3
    return {
        "per_s": case.n / span,
        "steps_per_s": steps / span,
        "start_per_s": case.n / seconds,
        "cpu_us": report["cpu"] / steps * 1e6,
        "server_us": (server_us(case.url) - before) / steps,
    }


def work_flows(case: Case) -> None:
    launch(case.url, FLOW_THREADS)
    DBOS.register_queue("bench", polling_interval_sec=DRAIN_POLL)
    cpu = time.process_time()
    with psycopg.connect(case.url, autocommit=True) as connection:
        while connection.execute(RECORDED).fetchone()[0] < case.n:
            time.sleep(0.05)
    send_report(first=notes.first, last=time.monotonic(), cpu=time.process_time() - cpu)
    os._exit(0)


run_contender(about, Producer, work, {"flows3": (flows3, work_flows)})
os._exit(0)  # DBOS keeps threads that would keep the process alive
