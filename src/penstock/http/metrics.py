"""Metrics in the format of Prometheus: what the store holds, and what this process does.

Labels are bounded: queues beyond the first hundred are counted together as "other"."""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .. import __version__
from ..app.app import App
from ..core.errors import PenstockError
from ..ports.monitoring import MINUTE_MS
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
        self._depth = Gauge("penstock_queue_jobs", "Jobs of a queue, by state", ["queue", "state"], registry=registry)
        self._paused = Gauge("penstock_queue_paused", "1 if the queue is paused", ["queue"], registry=registry)
        self._oldest = Gauge(
            "penstock_queue_oldest_seconds", "How long the job that is next in line waits", ["queue"], registry=registry
        )
        self._rates = Gauge(
            "penstock_queue_minute_jobs",
            "Jobs in the last whole minute, of all processes, by what happened to them",
            ["queue", "what"],
            registry=registry,
        )
        self._bridges = Gauge(
            "penstock_bridge_up", "1 if the system of a bridge answers", ["bridge"], registry=registry
        )
        self._letters = Gauge("penstock_dead_letters", "Jobs of a dead-letter queue", ["queue"], registry=registry)
        self._workers = Gauge("penstock_workers", "Workers that are alive", registry=registry)
        self._worker_slots = Gauge("penstock_worker_slots", "Slots of all live workers", registry=registry)
        self._busy = Gauge("penstock_worker_slots_busy", "Slots in use, at the last reports", registry=registry)
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
        for gauge in (self._depth, self._paused, self._oldest, self._rates, self._bridges, self._letters, self._info):
            gauge.clear()
        self._clients.set(clients)
        self._info.labels(__version__, app.registry.fingerprint[:12]).set(1)
        try:
            await self._read_store(app)
            self._up.set(1)
        except (PenstockError, OSError) as problem:
            log.warning("the store did not answer a scrape: %s", type(problem).__name__)
            self._up.set(0)
        return generate_latest(self._registry)

    async def _read_store(self, app: App) -> None:
        dead = {handler.dlq for handler in app.registry.handlers()}
        oldest: dict[str, float] = {}
        paused: dict[str, bool] = {}
        for view in await app.queues.list():
            queue = self._label(view.name)
            for state, count in view.counts.items():
                self._depth.labels(queue, state).inc(count)
            paused[queue] = paused.get(queue, False) or view.paused
            oldest[queue] = max(oldest.get(queue, 0), view.age_ms / 1000)
            if (view.name.endswith("-dlq") or view.name in dead) and view.counts["waiting"]:
                self._letters.labels(queue).inc(view.counts["waiting"])
        for queue, is_paused in paused.items():  # of the queues that share a label, any one
            self._paused.labels(queue).set(is_paused)
        for queue, age in oldest.items():
            self._oldest.labels(queue).set(age)
        await self._read_rates(app)
        for bridge in await app.check_bridges():
            self._bridges.labels(bridge.name).set(bridge.up)
        workers = await app.workers.list()
        self._workers.set(len(workers))
        self._worker_slots.set(sum(worker.slots for worker in workers))
        self._busy.set(sum(worker.busy for worker in workers))

    async def _read_rates(self, app: App) -> None:
        minute = app.clock.now_ms() // MINUTE_MS * MINUTE_MS - MINUTE_MS
        for found in await app.store.rates(None, minute):
            if found.minute == minute:
                queue = self._label(found.queue)
                for what in ("added", "completed", "failed", "retried"):
                    self._rates.labels(queue, what).inc(getattr(found, what))

    def _label(self, queue: str) -> str:
        if queue in self._queues:
            return queue
        if len(self._queues) >= MAX_QUEUES:
            return OTHER
        self._queues.add(queue)
        return queue
