"""Dramatiq on Redis: acknowledged messages, threads, no results (the default)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib.metadata import version

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from entry import Case
from tally import Tally, run_contender


def about() -> dict[str, str]:
    return {
        "name": "Dramatiq",
        "version": version("dramatiq"),
        "settings": "as installed (keeps no results), threads as the concurrency; one call per enqueue",
    }


def actor(url: str, tally: Tally | None = None) -> dramatiq.Actor:
    broker = RedisBroker(url=url)
    dramatiq.set_broker(broker)

    @dramatiq.actor(actor_name="noop", broker=broker)
    def noop(sent: float) -> None:
        if tally is not None:
            tally.hit(sent)

    return noop


class Producer:
    def __init__(self, case: Case) -> None:
        self._actor = actor(case.url)

    def add(self, sent: Sequence[float]) -> None:
        for one in sent:
            self._actor.send(one)


def work(case: Case, tally: Tally) -> None:
    noop = actor(case.url, tally)
    dramatiq.Worker(noop.broker, worker_threads=case.level).start()
    threading.Event().wait()


run_contender(about, Producer, work)
