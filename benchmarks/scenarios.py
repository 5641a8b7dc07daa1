"""Types of the benchmark definitions (contenders, scenarios, metrics), and the benchmarks on SQLite.

The benchmarks on servers are defined in `on_redis.py` and `on_postgres.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Contender:
    """A script in `contenders/`. It runs in the environment `env` (see peers.py), or in ours if None."""

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
    once: bool = False  # measured in one round only
    timed: bool = False  # n is a duration in seconds
    levels: tuple[int, ...] = ()  # concurrencies, measured in turn; metric keys get the prefix `c10_` for 10


@dataclass(frozen=True)
class Part:
    """The benchmarks of one store."""

    name: str
    title: str
    contenders: tuple[Contender, ...]
    scenarios: tuple[Scenario, ...]

    def contender(self, name: str) -> Contender:
        return next(c for c in self.contenders if c.name == name)


SWEEP = Scenario(
    "sweep",
    "no-op jobs during a sweep over a backlog of n finished jobs and their events",
    ("penstock",),
    (
        Metric("quiet_per_s", "completed without a sweep", "/s"),
        Metric("during_per_s", "completed during a sweep", "/s"),
        Metric("during_percent", "of the rate without one", "%"),
        Metric("during_removed_per_s", "rows that the sweep removed meanwhile", "/s"),
        Metric("quiet_gap_ms", "longest gap between commits, no sweep", "ms"),
        Metric("during_gap_ms", "longest gap between commits, during a sweep", "ms"),
        Metric("batch_ms", "one batch of the sweep, idle, median", "ms"),
        Metric("batch_p99_ms", "one batch of the sweep, idle, 99th percentile", "ms"),
        Metric("removed_per_s", "rows removed by such batches", "/s"),
        Metric("idle_small_ms", "a sweep that finds nothing old, 1,000 finished jobs", "ms"),
        Metric("idle_large_ms", "a sweep that finds nothing old, the whole backlog", "ms"),
    ),
    n=100_000,
    quick_n=3000,
    once=True,
)

ORDERED = Scenario(
    "ordered",
    "no-op jobs over 100 order keys, beside the same jobs without keys",
    ("penstock",),
    (
        Metric("plain_enqueue_per_s", "enqueued without keys", "/s"),
        Metric("ordered_enqueue_per_s", "enqueued with keys", "/s"),
        Metric("enqueue_percent", "of the rate without keys", "%"),
        Metric("plain_drain_per_s", "completed without keys", "/s"),
        Metric("ordered_drain_per_s", "completed with keys", "/s"),
        Metric("drain_percent", "completed with keys, of the rate without", "%"),
    ),
    n=5000,
    quick_n=500,
)

EVENT_LATENCY = (
    Metric("append_p99_ms", "append and publish, 99th percentile", "ms"),
    Metric("read_p99_ms", "read 100 events, 99th percentile", "ms"),
    Metric("subscribe_ms", "subscribe and receive the 100 stored events, 99th percentile", "ms"),
    Metric("deliver_p50_ms", "append to delivery in another process, median", "ms"),
    Metric("deliver_p99_ms", "append to delivery in another process, 99th percentile", "ms"),
)
SPEC = Scenario("spec", "events, one reader or writer at a time", ("penstock",), EVENT_LATENCY, n=500, quick_n=60)

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
            Metric("drain_per_s", "completed by one worker process", "/s"),
            Metric("enqueue_per_s", "enqueued", "/s"),
            Metric("whole_per_s", "enqueue and completion together", "/s"),
        ),
        n=5000,
        quick_n=500,
    ),
    Scenario(
        "flows3",
        "flows of three steps",
        ("penstock", "dbos", "bare"),
        (
            Metric("drain_per_s", "completed by one worker process", "/s"),
            Metric("enqueue_per_s", "started", "/s"),
            Metric("whole_per_s", "enqueue and completion together", "/s"),
        ),
        n=1000,
        quick_n=100,
    ),
    Scenario(
        "flows3_wal",
        "flows of three steps, with DBOS on a file in WAL mode",
        ("penstock", "dbos"),
        (Metric("drain_per_s", "completed by one worker process", "/s"),),
        n=1000,
        quick_n=100,
    ),
    Scenario(
        "step_latency",
        "latency from the end of a step to the start of the next, idle worker",
        ("penstock", "dbos", "bare"),
        (Metric("p50_ms", "median", "ms"), Metric("p99_ms", "99th percentile", "ms")),
        n=600,
        quick_n=40,
    ),
    Scenario(
        "pickup",
        "latency from enqueue to handler start, idle worker",
        ("penstock", "huey", "dbos"),
        (
            Metric("same_p50_ms", "in the same process, median", "ms"),
            Metric("same_p99_ms", "in the same process, 99th percentile", "ms"),
            Metric("p50_ms", "from another process, median", "ms"),
            Metric("p99_ms", "from another process, 99th percentile", "ms"),
            Metric("idle_cpu_percent", "CPU of the idle worker, of one core", "%"),
        ),
        n=120,
        quick_n=15,
    ),
    Scenario(
        "pickup_installed",
        "latency from enqueue to handler start, default settings",
        ("penstock", "huey", "dbos"),
        (
            Metric("p50_ms", "from another process, median", "ms"),
            Metric("idle_cpu_percent", "CPU of the idle worker, of one core", "%"),
        ),
        n=20,
        quick_n=5,
        once=True,
    ),
    Scenario(
        "units",
        "raw write transactions, units of seven statements",
        ("bare",),
        (
            Metric("batch_1_per_s", "one unit per transaction", "/s"),
            Metric("batch_10_per_s", "10 units per transaction", "/s"),
            Metric("batch_50_per_s", "50 units per transaction", "/s"),
            Metric("batch_200_per_s", "200 units per transaction", "/s"),
        ),
        n=10_000,
        quick_n=2000,
    ),
    Scenario(
        "grown",
        "a file with many finished runs",
        ("penstock",),
        (
            Metric("claim_empty_ms", "claim one job, empty file", "ms"),
            Metric("claim_grown_ms", "claim one job, full file", "ms"),
            Metric("commit_empty_ms", "commit one step, empty file", "ms"),
            Metric("commit_grown_ms", "commit one step, full file", "ms"),
            Metric("list_ms", "list the newest 50 runs, full file", "ms"),
            Metric("list_filtered_ms", "list the newest 50 runs of one flow and status, full file", "ms"),
            Metric("read_ms", "read one run and its events, full file", "ms"),
        ),
        n=100_000,
        quick_n=5000,
        once=True,
    ),
    Scenario(
        "waiting",
        "many waiting runs in one worker",
        ("penstock",),
        (
            Metric("bytes_a_run", "worker memory per waiting run", "bytes"),
            Metric("plain_per_s", "baseline: empty steps", "/s"),
            Metric("second_per_s", "baseline: second steps of a flow", "/s"),
            Metric("noted_per_s", "baseline: steps with one `ctx.run`", "/s"),
            Metric("awake_per_s", "baseline: timed waits that are already due", "/s"),
            Metric("started_per_s", "baseline: empty steps, including their start", "/s"),
            Metric("timed_per_s", "resumed by a timer", "/s"),
            Metric("called_per_s", "resumed by an event, including the emit", "/s"),
            Metric("timed_plain_percent", "resumed by a timer, relative to empty steps", "%"),
            Metric("timed_second_percent", "resumed by a timer, relative to second steps", "%"),
            Metric("timed_noted_percent", "resumed by a timer, relative to steps with one `ctx.run`", "%"),
            Metric("timed_awake_percent", "resumed by a timer, relative to waits that are already due", "%"),
            Metric("called_plain_percent", "resumed by an event, relative to empty steps", "%"),
            Metric("called_started_percent", "resumed by an event, relative to empty steps including their start", "%"),
        ),
        n=10_000,
        quick_n=500,
        once=True,
    ),
    Scenario(
        "waiting_rows",
        "a file with many waiting runs",
        ("penstock",),
        (
            Metric("claim_empty_ms", "claim one job, empty file", "ms"),
            Metric("claim_waiting_ms", "claim one job, with the waiting runs in its queue", "ms"),
            Metric("commit_empty_ms", "commit one step, empty file", "ms"),
            Metric("commit_waiting_ms", "commit one step, with the waiting runs", "ms"),
            Metric("claim_percent", "claim one job, relative to the empty file", "%"),
            Metric("commit_percent", "commit one step, relative to the empty file", "%"),
        ),
        n=1_000_000,
        quick_n=20_000,
        once=True,
    ),
    SPEC,
    SWEEP,
    ORDERED,
)

SQLITE = Part("sqlite", "SQLite", _CONTENDERS, _SCENARIOS)
