"""Live workers, for diagnosis: which queues they serve, and whether they have loaded the same code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..core.near_match import did_you_mean
from ..ports.store import JobRow, SharedQueues
from ..ports.unit import JobState
from .run_actions import jobs_of
from .views import WorkerView

if TYPE_CHECKING:
    from .app import App

MAX_HANDLERS_NAMED = 5


class LiveWorkers(msgspec.Struct, frozen=True):
    """The workers that are alive, and the queues that somebody serves."""

    workers: Sequence[WorkerView]
    shared: frozenset[str] = frozenset()  # queues with workers of other programs

    @classmethod
    async def read(cls, app: App) -> LiveWorkers:
        shared = await app.store.other_workers() if isinstance(app.store, SharedQueues) else set[str]()
        return cls(await app.workers.list(), frozenset(shared))

    @property
    def queues(self) -> set[str]:
        """The queues of workers that take any job; one that works only on some runs does not count."""
        return {queue for worker in self._unscoped for queue in worker.queues} | self.shared

    @property
    def _unscoped(self) -> list[WorkerView]:
        return [worker for worker in self.workers if not worker.is_scoped and worker.unreadable is None]

    def serve(self, queue: str) -> bool:
        """Return whether a live worker takes jobs of a queue."""
        return queue in self.queues

    def advise(self, queue: str) -> str:
        """Say that no worker serves a queue, and what to do."""
        served = sorted(self.queues)
        if not served:
            return f"no worker serves queue {queue!r}; start one with `penstock worker`"
        hint = did_you_mean(queue, served) or f"live workers serve {_join(served)}"
        return f"no worker serves queue {queue!r} ({hint}); start one with `penstock worker --queues {queue}`"

    def find_drift(self) -> list[str]:
        """Return a sentence for each group of workers whose code differs from that of the worker that started last."""
        newest = max(self._unscoped, key=lambda worker: worker.started_at, default=None)
        if newest is None:
            return []
        groups: dict[str, list[WorkerView]] = {}
        for worker in self._unscoped:
            groups.setdefault(worker.fingerprint, []).append(worker)
        found = []
        for fingerprint, workers in groups.items():
            differences = _compare(workers[0], newest) if fingerprint != newest.fingerprint else []
            if differences:
                names = _join(map(_name, workers))
                found.append(
                    f"{names} ({fingerprint[:12]}) and {_name(newest)} ({newest.fingerprint[:12]}) have loaded "
                    f"different code: {'; '.join(differences)}"
                )
        return found


class RunAdvice(msgspec.Struct, frozen=True):
    """What people should know of the workers of a run."""

    sentences: Sequence[str]  # one for each queue in which a step waits for a worker, but which no worker serves
    unclaimed: frozenset[str]  # the scopes of steps that no worker holds: queued, or with an expired lease


async def advise_run(app: App, run: str) -> RunAdvice:
    """Find the open steps of a run that no worker holds, and the queues that no worker serves."""
    jobs, now = [await app.store.job(id) for id in await jobs_of(app, run)], app.clock.now_ms()
    unclaimed = [job for job in jobs if job is not None and _is_unclaimed(job, now)]
    queues = {job.queue for job in unclaimed}
    live = await LiveWorkers.read(app) if queues else LiveWorkers(())
    sentences = [live.advise(queue) for queue in sorted(queues) if not live.serve(queue)]
    return RunAdvice(sentences, frozenset(job.scope for job in unclaimed))


def _is_unclaimed(job: JobRow, now: int) -> bool:
    has_expired = job.state is JobState.ACTIVE and job.lease is not None and job.lease <= now
    return has_expired or job.state is JobState.WAITING


def _compare(one: WorkerView, newest: WorkerView) -> list[str]:
    """Return how the handlers of two workers differ. Workers without a common queue may have different handlers."""
    changed = [name for name, found in one.handlers.items() if newest.handlers.get(name, found) != found]
    differences = [f"{_join(changed)} differs" if len(changed) == 1 else f"{_join(changed)} differ"] if changed else []
    if not set(one.queues).isdisjoint(newest.queues):
        for worker, other in ((one, newest), (newest, one)):
            if only := [name for name in worker.handlers if name not in other.handlers]:
                differences.append(f"only {_name(worker)} has {_join(only)}")
    return differences


def _name(worker: WorkerView) -> str:
    return f"worker {worker.name} on {worker.host}"


def _join(names: Iterable[str]) -> str:
    listed = list(names)
    more = len(listed) - MAX_HANDLERS_NAMED
    return ", ".join(listed[:MAX_HANDLERS_NAMED]) + (f" and {more} more" if more > 0 else "")
