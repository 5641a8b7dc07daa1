"""What is measured, on whom, how much of it, and which numbers of it are shown; and the part on SQLite.

The parts on servers are in `on_redis.py` and `on_postgres.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Contender:
    """A script in `contenders/`. A peer runs in the environment it names (peers.py), the others in ours."""

    name: str
    title: str
    script: str
    env: str | None = None


@dataclass(frozen=True)
class Metric:
    """One row of the table."""

    key: str
    title: str
    unit: Literal["/s", "ms", "µs", "%", "bytes", "MB"]

    @property
    def more_is_better(self) -> bool:
        return self.unit == "/s"


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    contenders: tuple[str, ...]
    metrics: tuple[Metric, ...]
    n: int
    quick_n: int
    once: bool = False  # slow or steady: one round is enough
    timed: bool = False  # n is how many seconds it goes on
    levels: tuple[int, ...] = ()  # how many at a time: measured one after the other, `c10_` before each metric of 10


@dataclass(frozen=True)
class Part:
    """What is measured on one kind of store, in a table of its own."""

    name: str
    title: str
    contenders: tuple[Contender, ...]
    scenarios: tuple[Scenario, ...]

    def contender(self, name: str) -> Contender:
        return next(c for c in self.contenders if c.name == name)


_CONTENDERS = (
    Contender("penstock", "Penstock", "penstock_sqlite.py"),
    Contender("huey", "Huey", "huey_sqlite.py", env="sqlite"),
    Contender("dbos", "DBOS", "dbos_sqlite.py", env="sqlite"),
    Contender("bare", "bare SQLite", "bare_sqlite.py"),
)

_SCENARIOS = (
    Scenario(
        "jobs",
        "no-op jobs",
        ("penstock", "huey", "dbos", "bare"),
        (
            Metric("drain_per_s", "worked off by one worker process", "/s"),
            Metric("enqueue_per_s", "enqueued", "/s"),
            Metric("whole_per_s", "both, one after the other", "/s"),
        ),
        n=5000,
        quick_n=500,
    ),
    Scenario(
        "flows3",
        "flows of three steps",
        ("penstock", "dbos", "bare"),
        (
            Metric("drain_per_s", "worked off by one worker process", "/s"),
            Metric("enqueue_per_s", "started", "/s"),
            Metric("whole_per_s", "both, one after the other", "/s"),
        ),
        n=1000,
        quick_n=100,
    ),
    Scenario(
        "flows3_wal",
        "the same, DBOS given a file in WAL mode",
        ("penstock", "dbos"),
        (Metric("drain_per_s", "worked off by one worker process", "/s"),),
        n=1000,
        quick_n=100,
    ),
    Scenario(
        "step_latency",
        "from one step's end to the next one's start, idle",
        ("penstock", "dbos", "bare"),
        (Metric("p50_ms", "median", "ms"), Metric("p99_ms", "99th percentile", "ms")),
        n=600,
        quick_n=40,
    ),
    Scenario(
        "pickup",
        "from enqueue to the handler's start, idle",
        ("penstock", "huey", "dbos"),
        (
            Metric("same_p50_ms", "in the same process, median", "ms"),
            Metric("same_p99_ms", "in the same process, 99th percentile", "ms"),
            Metric("p50_ms", "from another process, median", "ms"),
            Metric("p99_ms", "from another process, 99th percentile", "ms"),
            Metric("idle_cpu_percent", "one core used by the idle worker", "%"),
        ),
        n=120,
        quick_n=15,
    ),
    Scenario(
        "pickup_installed",
        "the same with the settings as installed",
        ("penstock", "huey", "dbos"),
        (
            Metric("p50_ms", "from another process, median", "ms"),
            Metric("idle_cpu_percent", "one core used by the idle worker", "%"),
        ),
        n=20,
        quick_n=5,
        once=True,
    ),
    Scenario(
        "units",
        "units of seven statements",
        ("bare",),
        (
            Metric("batch_1_per_s", "one a transaction", "/s"),
            Metric("batch_10_per_s", "ten a transaction", "/s"),
            Metric("batch_50_per_s", "fifty a transaction", "/s"),
            Metric("batch_200_per_s", "two hundred a transaction", "/s"),
        ),
        n=10_000,
        quick_n=2000,
    ),
    Scenario(
        "grown",
        "a file of many finished runs",
        ("penstock",),
        (
            Metric("claim_empty_ms", "claim a job, empty file", "ms"),
            Metric("claim_grown_ms", "claim a job, grown file", "ms"),
            Metric("commit_empty_ms", "commit a step, empty file", "ms"),
            Metric("commit_grown_ms", "commit a step, grown file", "ms"),
            Metric("list_ms", "list the newest 50 runs, grown file", "ms"),
            Metric("list_filtered_ms", "the same of one flow and status", "ms"),
            Metric("read_ms", "read one run and its events, grown file", "ms"),
        ),
        n=100_000,
        quick_n=5000,
        once=True,
    ),
    Scenario(
        "waiting",
        "runs that wait at once",
        ("penstock",),
        (
            Metric("bytes_a_run", "memory of the worker for one more of them", "bytes"),
            Metric("plain_per_s", "for comparison, the lightest steps there are", "/s"),
            Metric("second_per_s", "for comparison, second steps of a flow", "/s"),
            Metric("noted_per_s", "for comparison, steps with one `ctx.run`", "/s"),
            Metric("awake_per_s", "for comparison, the same steps when they need not sleep", "/s"),
            Metric("started_per_s", "for comparison, the lightest steps, their starts included", "/s"),
            Metric("timed_per_s", "resumed by the clock", "/s"),
            Metric("called_per_s", "resumed by an event each, the events included", "/s"),
            Metric("timed_plain_percent", "resumed by the clock, of the rate of the lightest steps", "%"),
            Metric("timed_second_percent", "the same, of second steps", "%"),
            Metric("timed_noted_percent", "the same, of steps with one `ctx.run`", "%"),
            Metric("timed_awake_percent", "the same, of those that need not sleep", "%"),
            Metric("called_plain_percent", "resumed by an event each, of the rate of the lightest steps", "%"),
            Metric("called_started_percent", "the same, of the lightest steps with their starts", "%"),
        ),
        n=10_000,
        quick_n=500,
        once=True,
    ),
    Scenario(
        "waiting_rows",
        "a file of many runs that wait",
        ("penstock",),
        (
            Metric("claim_empty_ms", "claim a job, empty file", "ms"),
            Metric("claim_waiting_ms", "claim a job, all of them waiting in its queue", "ms"),
            Metric("commit_empty_ms", "commit a step, empty file", "ms"),
            Metric("commit_waiting_ms", "commit a step, all of them waiting", "ms"),
            Metric("claim_percent", "claim, of its time in the empty file", "%"),
            Metric("commit_percent", "commit, likewise", "%"),
        ),
        n=1_000_000,
        quick_n=20_000,
        once=True,
    ),
)

SQLITE = Part("sqlite", "SQLite", _CONTENDERS, _SCENARIOS)
