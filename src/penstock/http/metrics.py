"""Metrics in the format of Prometheus: what the store holds, and what this process does.

Labels are bounded: queues beyond the first hundred are counted together as "other"."""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .. import __version__
from ..app.app import App
from ..core.errors import PenstockError
from ..telemetry.instrumentation import (
    AttemptEnded,
    AttemptStarted,
    BatchCommitted,
    InstrumentationEvent,
    JobEnqueued,
    LeaseLost,
    ScheduleSlot,
    WaitChanged,
)
from .store_metrics import read_gauges

log = logging.getLogger("penstock.http")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_QUEUES = 100
OTHER = "other"
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_BATCH = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_ATTEMPTS = (1, 2, 3, 5, 8, 13, 21)


class Metrics:
    """The metrics of one application, in a registry of their own. It is a listener of the App."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._queues: set[str] = set()
        self._enqueued = Counter(
            "penstock_jobs_enqueued", "Jobs enqueued by this process", ["queue"], registry=registry
        )
        self._attempts = Counter(
            "penstock_attempts", "Attempts that ended here, by outcome", ["queue", "outcome"], registry=registry
        )
        self._duration = Histogram(
            "penstock_attempt_seconds", "Duration of attempts", ["queue"], buckets=_SECONDS, registry=registry
        )
        self._tries = Histogram(
            "penstock_job_attempts",
            "Attempts that a finished job took",
            ["queue"],
            buckets=_ATTEMPTS,
            registry=registry,
        )
        self._running = Gauge("penstock_attempts_running", "Handlers that run here", registry=registry)
        self._batch = Histogram("penstock_commit_units", "Units in one commit", buckets=_BATCH, registry=registry)
        self._commit = Histogram("penstock_commit_seconds", "Duration of commits", buckets=_SECONDS, registry=registry)
        self._refused = Counter("penstock_commit_refused", "Units that the store refused", registry=registry)
        self._lost = Counter("penstock_leases_lost", "Leases that workers here lost", ["queue"], registry=registry)
        self._waits = Counter("penstock_waits", "Waits that changed here, by state", ["state"], registry=registry)
        self._slots = Counter("penstock_schedule_slots", "Slots of schedules that passed here", registry=registry)
        self._clients = Gauge("penstock_stream_clients", "Clients of live streams", registry=registry)
        self._up = Gauge("penstock_store_up", "1 if the store answers", registry=registry)
        self._info = Gauge(
            "penstock_info", "Version and fingerprint of the code", ["version", "fingerprint"], registry=registry
        )

    def __call__(self, event: InstrumentationEvent) -> None:
        """Count what the App reports."""
        match event:
            case JobEnqueued():
                self._enqueued.labels(self._label(event.queue)).inc()
            case AttemptStarted():
                self._running.inc()
            case AttemptEnded():
                self._count_end(event)
            case BatchCommitted():
                self._batch.observe(event.units)
                self._commit.observe(event.duration_s)
                self._refused.inc(event.refused)
            case LeaseLost():
                self._lost.labels(self._label(event.queue)).inc()
            case WaitChanged():
                self._waits.labels(event.state).inc()
            case ScheduleSlot():
                self._slots.inc()

    def _count_end(self, event: AttemptEnded) -> None:
        queue = self._label(event.queue)
        self._running.dec()
        self._attempts.labels(queue, event.outcome).inc()
        self._duration.labels(queue).observe(event.duration_ms / 1000)
        if event.outcome in ("completed", "failed"):
            self._tries.labels(queue).observe(event.attempt)

    async def render(self, app: App, clients: int) -> bytes:
        """Read the store and return all metrics. If it does not answer, `penstock_store_up` is 0."""
        gauges = await self._read_store(app)
        self._clients.set(clients)
        self._info.clear()
        self._info.labels(__version__, app.registry.fingerprint[:12]).set(1)
        self._up.set(gauges is not None)
        return generate_latest(self._registry) + (gauges or "").encode()

    async def _read_store(self, app: App) -> str | None:
        try:
            return await read_gauges(app, self._label)
        except (PenstockError, OSError) as problem:
            log.warning("the store did not answer a scrape: %s", type(problem).__name__)
            return None

    def _label(self, queue: str) -> str:
        if queue in self._queues:
            return queue
        if len(self._queues) >= MAX_QUEUES:
            return OTHER
        self._queues.add(queue)
        return queue
