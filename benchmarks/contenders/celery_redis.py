"""Celery on Redis, in one process: the solo pool for one job at a time, threads for more."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from celery import Celery
from entry import Case
from tally import Tally, run_contender


def about() -> dict[str, str]:
    return {
        "name": "Celery",
        "version": version("celery"),
        "settings": "one process: solo pool at 1, threads above, results kept, prefetch multiplier 100, acknowledged "
        "before they run as installed; one call per enqueue",
    }


def engine(url: str, tally: Tally | None = None) -> Celery:
    app = Celery("bench", broker=url, backend=url)
    app.conf.update(worker_prefetch_multiplier=100, worker_redirect_stdouts=False)

    @app.task(name="noop")
    def noop(sent: float) -> float:
        if tally is not None:
            tally.hit(sent)
        return sent

    return app


class Producer:
    def __init__(self, case: Case) -> None:
        self._app = engine(case.url)

    def add(self, sent: Sequence[float]) -> None:
        task = self._app.tasks["noop"]
        with self._app.producer_or_acquire() as producer:
            for one in sent:
                task.apply_async((one,), producer=producer)


def work(case: Case, tally: Tally) -> None:
    pool = "solo" if case.level == 1 else "threads"
    quiet = ["--loglevel=ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    engine(case.url, tally).worker_main(["worker", f"--pool={pool}", f"--concurrency={case.level}", *quiet])


run_contender(about, Producer, work)
