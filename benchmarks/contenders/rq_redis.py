"""RQ on Redis: SimpleWorker, which runs jobs in its own process, one at a time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version

from entry import Case
from redis import Redis
from rq import Queue, SimpleWorker
from tally import Tally, run_contender

CHUNK = 500
tallies: list[Tally] = []  # RQ finds the function by name, so the tally has to be global


def about() -> dict[str, str]:
    return {
        "name": "RQ",
        "version": version("rq"),
        "settings": "SimpleWorker (the default worker forks for each job and is several times slower), results kept "
        "for 500 s as installed; jobs added by enqueue_many",
    }


def noop(sent: float) -> float:
    tallies[0].hit(sent)
    return sent


class Producer:
    def __init__(self, case: Case) -> None:
        self._queue = Queue(connection=Redis.from_url(case.url))

    def add(self, sent: Sequence[float]) -> None:
        for start in range(0, len(sent), CHUNK):
            some = sent[start : start + CHUNK]
            self._queue.enqueue_many([Queue.prepare_data("rq_redis.noop", args=(one,)) for one in some])


def work(case: Case, tally: Tally) -> None:
    sys.modules["rq_redis"] = sys.modules["__main__"]
    tallies.append(tally)
    connection = Redis.from_url(case.url)
    SimpleWorker([Queue(connection=connection)], connection=connection).work(logging_level="ERROR")


if __name__ == "__main__":
    run_contender(about, Producer, work)
