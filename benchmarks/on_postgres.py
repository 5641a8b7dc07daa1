"""The part on Postgres: queues and durable workflows beside ours, and what a database full of the past does."""

from __future__ import annotations

from .scenarios import Contender, Metric, Part, Scenario

_CONTENDERS = (
    Contender("penstock", "Penstock", "penstock_postgres.py"),
    Contender("pgqueuer", "PgQueuer", "pgqueuer_postgres.py", env="postgres"),
    Contender("procrastinate", "Procrastinate", "procrastinate_postgres.py", env="postgres"),
    Contender("bullmq_py", "bullmq (Python)", "bullmq_py.py", env="bullmq"),
    Contender("dbos", "DBOS", "dbos_postgres.py", env="postgres"),
    Contender("absurd", "Absurd", "absurd_postgres.py", env="postgres"),
    Contender("pgboss", "pg-boss (Node)", "node/pgboss_node.mjs", env="node"),
    Contender("store", "our store alone", "store_alone.py"),
    Contender("bare", "bare Postgres", "bare_postgres.py"),
)

_SCENARIOS = (
    Scenario(
        "jobs",
        "no-op jobs, worked off by one worker process",
        ("penstock", "pgqueuer", "procrastinate", "bullmq_py", "dbos", "absurd", "pgboss", "bare"),
        (
            Metric("c1_per_s", "one at a time", "/s"),
            Metric("c10_per_s", "10 at a time", "/s"),
            Metric("c50_per_s", "50 at a time", "/s"),
            Metric("c50_cpu_us", "processor of the worker a job, 50 at a time", "µs"),
            Metric("c50_enqueue_per_s", "enqueued", "/s"),
        ),
        n=5000,
        quick_n=300,
        levels=(1, 10, 50),
    ),
    Scenario(
        "pickup",
        "from enqueue to the handler's start, idle, from another process",
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
            Metric("per_s", "flows worked off by one worker process", "/s"),
            Metric("steps_per_s", "steps", "/s"),
            Metric("start_per_s", "flows started", "/s"),
            Metric("cpu_us", "processor of the worker a step", "µs"),
            Metric("server_us", "processor of Postgres a step", "µs"),
        ),
        n=2000,
        quick_n=150,
    ),
    Scenario(
        "grown",
        "a database of many finished jobs and as many events",
        ("penstock",),
        (
            Metric("claim1_empty_ms", "claim a job, empty", "ms"),
            Metric("claim1_grown_ms", "claim a job, grown", "ms"),
            Metric("claim1_percent", "of its time in the empty one", "%"),
            Metric("commit1_empty_ms", "commit a step, empty", "ms"),
            Metric("commit1_grown_ms", "commit a step, grown", "ms"),
            Metric("commit1_percent", "of its time in the empty one", "%"),
            Metric("claim50_percent", "claim 50 jobs, of its time in the empty one", "%"),
            Metric("commit50_percent", "commit 50 steps, of its time in the empty one", "%"),
            Metric("list_ms", "list the newest 50 runs, grown", "ms"),
            Metric("queues_ms", "count the jobs of every queue, grown", "ms"),
        ),
        n=10_000_000,
        quick_n=50_000,
        once=True,
    ),
    Scenario(
        "churn",
        "so many seconds of adding, claiming, finishing and sweeping",
        ("penstock",),
        (
            Metric("first_p50_ms", "claim 50 jobs, second tenth of the time, median", "ms"),
            Metric("last_p50_ms", "claim 50 jobs, last tenth, median", "ms"),
            Metric("first_percent", "second tenth, of its time in a new schema beside it", "%"),
            Metric("last_percent", "last tenth, of its time in a new schema beside it", "%"),
            Metric("first_p99_ms", "second tenth, 99th percentile", "ms"),
            Metric("last_p99_ms", "last tenth, 99th percentile", "ms"),
            Metric("table_mb", "the table of jobs with its indexes, at the end", "MB"),
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
            Metric("event_bytes", "an event with its indexes", "bytes"),
            Metric("body_bytes", "of which its own text", "bytes"),
        ),
        n=20_000,
        quick_n=2000,
        once=True,
    ),
)

POSTGRES = Part("postgres", "Postgres", _CONTENDERS, _SCENARIOS)
