"""What the store holds, as gauges in the text format of Prometheus.

They are read again for each scrape and written as text: objects of a metrics library would take most of the time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from ..app.app import App
from ..app.views import QueueView
from ..ports.monitoring import MINUTE_MS

_WHATS = ("added", "completed", "failed", "retried")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
Label = Callable[[str], str]
"""Returns the label of a queue; many queues may share one."""


async def read_gauges(app: App, label: Label) -> str:
    """Read the store, with as few waits as possible, and return its gauges."""
    minute = app.clock.now_ms() // MINUTE_MS * MINUTE_MS - MINUTE_MS
    views, rates, bridges, workers = await asyncio.gather(
        app.queues.list(), app.store.rates(None, minute), app.check_bridges(), app.workers.list()
    )
    counts: Counter[str] = Counter()
    for found in rates:
        if found.minute == minute:
            queue = _escape(label(found.queue))
            for what in _WHATS:
                counts[f'queue="{queue}",what="{what}"'] += getattr(found, what)
    up = {f'bridge="{_escape(bridge.name)}"': int(bridge.up) for bridge in bridges}
    slots, busy = sum(worker.slots for worker in workers), sum(worker.busy for worker in workers)
    return "".join(
        (
            *_queue_gauges(app, views, label),
            _gauge("penstock_queue_minute_jobs", "Jobs in the last whole minute, of all processes", counts),
            _gauge("penstock_bridge_up", "1 if the system of a bridge answers", up),
            _gauge("penstock_workers", "Workers that are alive", {"": len(workers)}),
            _gauge("penstock_worker_slots", "Slots of all live workers", {"": slots}),
            _gauge("penstock_worker_slots_busy", "Slots in use, at the last reports", {"": busy}),
        )
    )


def _queue_gauges(app: App, views: Iterable[QueueView], label: Label) -> Iterable[str]:
    dead = {handler.dlq for handler in app.registry.handlers()}
    depth: Counter[str] = Counter()
    letters: Counter[str] = Counter()
    oldest: dict[str, float] = {}
    paused: dict[str, int] = {}
    for view in views:
        queue = f'queue="{_escape(label(view.name))}"'
        for state, count in view.counts.items():
            depth[f'{queue},state="{state}"'] += count
        paused[queue] = max(paused.get(queue, 0), int(view.paused))  # of the queues that share a label, any one
        oldest[queue] = max(oldest.get(queue, 0), view.age_ms / 1000)
        if (view.name.endswith("-dlq") or view.name in dead) and view.counts["waiting"]:
            letters[queue] += view.counts["waiting"]
    yield _gauge("penstock_queue_jobs", "Jobs of a queue, by state", depth)
    yield _gauge("penstock_queue_paused", "1 if the queue is paused", paused)
    yield _gauge("penstock_queue_oldest_seconds", "How long the job that is next in line waits", oldest)
    yield _gauge("penstock_dead_letters", "Jobs of a dead-letter queue", letters)


def _gauge(name: str, help: str, values: Mapping[str, float]) -> str:
    samples = [f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n" for labels, value in values.items()]
    return f"# HELP {name} {help}\n# TYPE {name} gauge\n{''.join(samples)}"


def _escape(label: str) -> str:
    return label.translate(_ESCAPES)
