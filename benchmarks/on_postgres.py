"""Benchmarks on Postgres: other queues and durable workflow engines, and the effect of a large history."""

from __future__ import annotations

from .scenarios import ORDERED, SPEC, SWEEP, Contender, Metric, Part, Scenario

_CONTENDERS = (
    Contender("penstock", "Penstock", "penstock_postgres.py"),
    Contender("pgqueuer", "PgQueuer", "pgqueuer_postgres.py", env="postgres"),
    Contender("procrastinate", "Procrastinate", "procrastinate_postgres.py", env="postgres"),
    Contender("bullmq_py", "bullmq (Python)", "bullmq_py.py", env="bullmq"),
    Contender("dbos", "DBOS", "dbos_postgres.py", env="postgres"),
    Contender("absurd", "Absurd", "absurd_postgres.py", env="postgres"),
    Contender("pgboss", "pg-boss (Node)", "node/pgboss_node.mjs", env="node"),
    Contender("store", "Penstock store only", "store_alone.py"),
    Contender("bare", "bare Postgres", "bare_postgres.py"),
)

_SCENARIOS = (
    Scenario(
        "jobs",
        "no-op jobs, completed by one worker process",
        ("penstock", "pgqueuer", "procrastinate", "bullmq_py", "dbos", "absurd", "pgboss", "bare"),
        (
            Metric("c1_per_s", "one at a time", "/s"),
            Metric("c10_per_s", "10 at a time", "/s"),
            Metric("c50_per_s", "50 at a time", "/s"),
            Metric("c50_cpu_us", "worker CPU per job, 50 at a time", "µs"),
            Metric("c50_enqueue_per_s", "enqueued", "/s"),
        ),
        n=5000,
        quick_n=300,
        levels=(1, 10, 50),
    ),
    Scenario(
        "pickup",
        "latency from enqueue to handler start, idle worker, enqueued by another process",
        ("penstock", "pgqueuer", "procrastinate", "bullmq_py", "dbos", "absurd", "pgboss"),
        (Metric("c10_p50_ms", "median", "ms"), Metric("c10_p99_ms", "99th percentile", "ms")),
        n=200,
        quick_n=12,
        levels=(10,),
    ),
    Scenario(
        "flows3",
        "flows of three steps, all events recorded",
        ("penstock", "dbos", "store"),
        (
            Metric("per_s", "flows completed by one worker process", "/s"),
            Metric("steps_per_s", "steps", "/s"),
            Metric("start_per_s", "flows started", "/s"),
            Metric("cpu_us", "worker CPU per step", "µs"),
            Metric("server_us", "Postgres CPU per step", "µs"),
        ),
        n=2000,
        quick_n=150,
    ),
    Scenario(
        "grown",
        "a database with many finished jobs and as many events",
        ("penstock",),
        (
            Metric("claim1_empty_ms", "claim one job, empty database", "ms"),
            Metric("claim1_grown_ms", "claim one job, full database", "ms"),
            Metric("claim1_percent", "claim one job, full relative to empty", "%"),
            Metric("commit1_empty_ms", "commit one step, empty database", "ms"),
            Metric("commit1_grown_ms", "commit one step, full database", "ms"),
            Metric("commit1_percent", "commit one step, full relative to empty", "%"),
            Metric("claim50_percent", "claim 50 jobs, full relative to empty", "%"),
            Metric("commit50_percent", "commit 50 steps, full relative to empty", "%"),
            Metric("list_ms", "list the newest 50 runs, full database", "ms"),
            Metric("queues_first_ms", "count the jobs of every queue, full database, before the first sweep", "ms"),
            Metric("queues_ms", "count the jobs of every queue, full database", "ms"),
        ),
        n=10_000_000,
        quick_n=50_000,
        once=True,
    ),
    Scenario(
        "churn",
        "n seconds of enqueuing, claiming, finishing and removing jobs",
        ("penstock",),
        (
            Metric("first_p50_ms", "claim 50 jobs, median, second tenth of the run", "ms"),
            Metric("last_p50_ms", "claim 50 jobs, median, last tenth of the run", "ms"),
            Metric("first_percent", "second tenth, relative to a new schema", "%"),
            Metric("last_percent", "last tenth, relative to a new schema", "%"),
            Metric("first_p99_ms", "claim 50 jobs, 99th percentile, second tenth", "ms"),
            Metric("last_p99_ms", "claim 50 jobs, 99th percentile, last tenth", "ms"),
            Metric("table_mb", "jobs table with its indexes, at the end", "MB"),
        ),
        n=600,
        quick_n=8,
        once=True,
        timed=True,
    ),
    Scenario(
        "size",
        "bytes on disk",
        ("penstock",),
        (
            Metric("event_bytes", "one event with its indexes", "bytes"),
            Metric("body_bytes", "of that, the JSON text", "bytes"),
        ),
        n=20_000,
        quick_n=2000,
        once=True,
    ),
    SPEC,
    SWEEP,
    ORDERED,
)

POSTGRES = Part("postgres", "Postgres", _CONTENDERS, _SCENARIOS)
