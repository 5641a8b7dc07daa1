"""The part on Redis: queues beside ours, what a step costs the server, what a reader of events has to wait."""

from __future__ import annotations

from .scenarios import Contender, Metric, Part, Scenario

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
    Contender("store", "our store alone", "store_alone.py"),
    Contender("bare", "bare BullMQ scripts", "bare_bullmq.py"),
)

_SCENARIOS = (
    Scenario(
        "jobs",
        "no-op jobs, worked off by one worker process",
        ("penstock", "bullmq_py", "saq", "arq", "taskiq", "streaq", "dramatiq", "celery", "bullmq_node", "bare"),
        (
            Metric("c1_per_s", "one at a time", "/s"),
            Metric("c10_per_s", "10 at a time", "/s"),
            Metric("c100_per_s", "100 at a time", "/s"),
            Metric("c100_cpu_us", "processor of the worker a job, 100 at a time", "µs"),
            Metric("c100_enqueue_per_s", "enqueued", "/s"),
        ),
        n=5000,
        quick_n=300,
        levels=(1, 10, 100),
    ),
    Scenario(
        "jobs_serial",
        "the same with RQ, which works one at a time",
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
            Metric("per_s", "flows worked off by one worker process", "/s"),
            Metric("steps_per_s", "steps", "/s"),
            Metric("start_per_s", "flows started", "/s"),
            Metric("cpu_us", "processor of the worker a step", "µs"),
            Metric("server_us", "processor of Redis a step", "µs"),
        ),
        n=3000,
        quick_n=200,
    ),
    Scenario(
        "spec",
        "events, one reader or writer at a time",
        ("penstock", "bare"),
        (
            Metric("append_p99_ms", "append and publish, 99th percentile", "ms"),
            Metric("read_p99_ms", "read 100 events, 99th percentile", "ms"),
            Metric("subscribe_ms", "subscribe and have the 100 that are there, 99th percentile", "ms"),
            Metric("deliver_p50_ms", "from an append to a subscriber in another process, median", "ms"),
            Metric("deliver_p99_ms", "the same, 99th percentile", "ms"),
            Metric("watch_mb", "memory for following 1,000 streams", "MB"),
            Metric("process_mb", "the whole process that follows them", "MB"),
            Metric("event_bytes", "memory of the server for an event", "bytes"),
            Metric("body_bytes", "of which the event's own text", "bytes"),
        ),
        n=500,
        quick_n=60,
    ),
)

REDIS = Part("redis", "Redis", _CONTENDERS, _SCENARIOS)
