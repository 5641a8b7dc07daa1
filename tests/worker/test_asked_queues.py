"""A worker of many queues asks for those that may have a job, and for the others only now and then."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import job
from penstock.ports.unit import ClaimRequest, QueueDemand
from penstock.testing import until
from penstock.worker.asked_queues import ALWAYS_ASKED, ASK_ALL_S, MAX_ASKED, AskedQueues

MANY = [f"q{n}" for n in range(1000)]


class Worker:
    """Asks a store, as a poller does: `jobs` are the queues that have any."""

    def __init__(self, queues: list[str] = MANY) -> None:
        self.asked = AskedQueues(dict.fromkeys(queues, 1))
        self.jobs: set[str] = set()
        self.now = 1.0

    def request(self, *, is_due: bool = False) -> ClaimRequest:
        chosen = self.asked.choose(self.now, is_due)
        request = ClaimRequest(tuple(QueueDemand(queue, 1) for queue in chosen), 1, "w")
        self.asked.note_request(request, chosen)
        return request

    def answer(self, request: ClaimRequest) -> list[str]:
        names = [demand.queue for demand in request.queues]
        self.asked.note_answer(request, [name for name in names if name not in self.jobs], is_full=False)
        return names

    def ask(self, *, is_due: bool = False) -> list[str]:
        return self.answer(self.request(is_due=is_due))

    def ask_until_quiet(self) -> set[str]:
        found = set(self.ask())
        while self.asked.has_unasked:
            found.update(self.ask())
        return found


def test_every_queue_is_asked_once_and_then_only_those_with_jobs() -> None:
    worker = Worker()
    worker.jobs = {"q7", "q900"}
    assert worker.ask_until_quiet() == set(MANY)
    assert worker.ask() == ["q7", "q900"]


def test_a_request_never_names_more_than_the_limit() -> None:
    worker = Worker()
    worker.jobs = set(MANY)
    rounds = [worker.ask() for _ in range(40)]
    assert max(len(names) for names in rounds) == MAX_ASKED
    assert set().union(*rounds[20:]) == set(MANY), "each of them gets its turn"


def test_queues_that_an_answer_had_no_room_for_are_asked_again() -> None:
    """Every queue has one job. An answer takes the first ones, and the store does not look into the others."""
    worker = Worker()
    left = set(MANY)
    while worker.asked.has_unasked:
        request = worker.request()
        names = [demand.queue for demand in request.queues]
        taken = [name for name in names if name in left][:50]
        left.difference_update(taken)
        drained = [name for name in names if name not in left and name not in taken] if len(taken) < 50 else []
        worker.asked.note_answer(request, drained, is_full=len(taken) == 50)
    assert not left


def test_a_signal_names_a_queue() -> None:
    worker = Worker()
    worker.ask_until_quiet()
    worker.asked.note_signals(["queue:q3", "queue:other", "stream:q5"])
    assert worker.asked.has_unasked
    assert worker.ask() == ["q3"]
    assert worker.ask() == []


def test_a_signal_while_a_request_is_in_flight_is_not_lost() -> None:
    """The store may have looked before the job came."""
    worker = Worker()
    worker.ask_until_quiet()
    worker.asked.note_signals(["queue:q3"])
    early = worker.request()
    worker.asked.note_signals(["queue:q3"])
    worker.answer(early)
    assert worker.ask() == ["q3"]
    early = worker.request(is_due=True)
    worker.asked.note_signals(["*"])
    worker.answer(early)
    assert worker.ask_until_quiet() == set(MANY)


def test_all_queues_are_asked_when_one_may_be_due_and_every_few_seconds() -> None:
    worker = Worker()
    worker.ask_until_quiet()
    assert len(worker.ask(is_due=True)) == MAX_ASKED
    worker.ask_until_quiet()
    assert worker.ask() == []
    worker.now += ASK_ALL_S
    assert worker.ask_until_quiet() == set(MANY)
    worker.asked.ask_all()
    assert len(worker.ask()) == len(MANY)


def test_a_free_slot_asks_its_queue_again() -> None:
    worker = Worker()
    worker.jobs = {"q1"}
    worker.ask_until_quiet()
    request = worker.request()
    worker.asked.note_room(["q1"], request)
    assert not worker.asked.has_unasked, "that request asked for it"
    worker.asked.note_room(["q1"], None)
    assert worker.asked.has_unasked


def test_a_few_queues_are_always_asked() -> None:
    worker = Worker(MANY[:ALWAYS_ASKED])
    assert worker.ask() == worker.ask() == MANY[:ALWAYS_ASKED]


@pytest.mark.parametrize("in_worker", [True, False])
async def test_jobs_of_many_queues_run(app: Any, url: str, in_worker: bool) -> None:
    """On every store: of the same process and of another one, delayed ones too. There is no polling."""
    ran: set[str] = set()
    asked: list[int] = []

    def make(queue: str) -> Any:
        @job(queue=queue, name=queue)
        async def work(delay: int) -> None:
            ran.add(f"{queue}{delay}")

        return work

    jobs = [make(f"q{n}") for n in range(3 * MAX_ASKED)]
    async with app(*jobs) as a, app(*jobs) as other:
        commit = a.store.commit

        async def count(units: Any, request: Any = None) -> Any:
            asked.extend([len(request.queues)] if request is not None else [])
            return await commit(units, request)

        a.store.commit = count
        async with a.workers.background():
            sender = a if in_worker or "memory" in url else other
            for n in (5, 100, 180):
                await sender.enqueue(f"q{n}", 0)
                await sender.enqueue(f"q{n}", 1, delay=0.05)
            await until(lambda: len(ran) == 6)
    assert max(asked, default=0) <= MAX_ASKED
