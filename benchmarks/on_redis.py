"""Benchmarks on Redis: other queues, server CPU per step, and the latency of reading events."""

from __future__ import annotations

from .scenarios import EVENT_LATENCY, ORDERED, SWEEP, Contender, Metric, Part, Scenario

_CONTENDERS = (
    Contender("penstock", "Penstock", "penstock_redis.py"),
    Contender("bullmq_py", "bullmq (Python)", "bullmq_py.py", env="bullmq"),
    Contender("saq", "SAQ", "saq_redis.py", env="redis"),
    Contender("arq", "arq", "arq_redis.py", env="arq"),
    Contender("taskiq", "taskiq", "taskiq_redis_stream.py", env="redis"),
    Contender("streaq", "streaq", "streaq_redis.py", env="streaq"),
    Contender("dramatiq", "Dramatiq", "dramatiq_redis.py", env="redis"),
    Contender("rq", "RQ", "rq_redis.py", env="redis"),
    Contender("celery", "Celery", "celery_redis.py", env="redis"),
    Contender("bullmq_node", "BullMQ (Node)", "node/bullmq_node.mjs", env="node"),
    Contender("store", "Penstock store only", "store_alone.py"),
    Contender("bare", "bare BullMQ scripts", "bare_bullmq.py"),
)

_SCENARIOS = (
    Scenario(
        "jobs",
        "no-op jobs, completed by one worker process",
        ("penstock", "bullmq_py", "saq", "arq", "taskiq", "streaq", "dramatiq", "celery", "bullmq_node", "bare"),
        (
            Metric("c1_per_s", "one at a time", "/s"),
            Metric("c10_per_s", "10 at a time", "/s"),
            Metric("c100_per_s", "100 at a time", "/s"),
            Metric("c100_cpu_us", "worker CPU per job, 100 at a time", "µs"),
            Metric("c100_enqueue_per_s", "enqueued", "/s"),
        ),
        n=5000,
        quick_n=300,
        levels=(1, 10, 100),
    ),
    Scenario(
        "jobs_serial",
        "no-op jobs compared with RQ, which runs one at a time",
        ("penstock", "rq"),
        (Metric("per_s", "one at a time", "/s"),),
        n=1500,
        quick_n=100,
    ),
    Scenario(
        "flows3",
        "flows of three steps, all events recorded",
        ("penstock", "store", "bare"),
        (
            Metric("per_s", "flows completed by one worker process", "/s"),
            Metric("steps_per_s", "steps", "/s"),
            Metric("start_per_s", "flows started", "/s"),
            Metric("cpu_us", "worker CPU per step", "µs"),
            Metric("server_us", "Redis CPU per step", "µs"),
        ),
        n=3000,
        quick_n=200,
    ),
    Scenario(
        "spec",
        "events, one reader or writer at a time",
        ("penstock", "bare"),
        (
            *EVENT_LATENCY,
            Metric("watch_mb", "memory to follow 1,000 streams", "MB"),
            Metric("process_mb", "memory of the whole process that follows them", "MB"),
            Metric("event_bytes", "server memory per event", "bytes"),
            Metric("body_bytes", "of that, the JSON text", "bytes"),
        ),
        n=500,
        quick_n=60,
    ),
    SWEEP,
    ORDERED,
)

REDIS = Part("redis", "Redis", _CONTENDERS, _SCENARIOS)
