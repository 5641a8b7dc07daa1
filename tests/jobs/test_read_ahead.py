"""Reading ahead: jobs held ready while handlers are quick, and what becomes of them when a handler is not."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import postgres_server
import redis_server
from penstock import RateLimited, flow, job
from penstock.ports.unit import Claim
from penstock.testing.clock import FakeClock
from penstock.testing.until import until
from penstock.worker import capacity as read_ahead
from penstock.worker import worker
from penstock.worker.capacity import PAUSE, PROOF, QUICK, ReadAhead

FOR_EVER = 3600.0
TOGETHER = 42


def claim(n: int, queue: str = "q") -> Claim:
    return Claim(f"j{n}", queue, "job", b"1", b"{}", f"j{n}", 1, f"t{n}", 0, 0)


class Rules:
    """What may be held, by a clock that is moved by hand."""

    def __init__(self, slots: int = 10, *, together: int = TOGETHER) -> None:
        self.now = 100.0
        self.ahead = ReadAhead(slots, lambda: self.now, together=together)

    def run(self, count: int, seconds: float) -> None:
        for n in range(count):
            self.begin(n)
            self.now += seconds
            self.ahead.ended(claim(n))

    def begin(self, n: int) -> None:
        self.ahead.enter(claim(n))
        self.ahead.began(claim(n))


def test_nothing_is_read_ahead_before_handlers_have_proved_quick() -> None:
    rules = Rules()
    rules.run(PROOF - 1, QUICK / 5)
    assert rules.ahead.most(10) == 0
    rules.run(1, QUICK / 5)
    assert rules.ahead.most(10) == TOGETHER - 10


def test_a_slow_handler_ends_it_when_it_ends_and_while_it_runs() -> None:
    rules = Rules()
    rules.run(PROOF, 0)
    rules.begin(1000)
    rules.begin(1001)
    assert rules.ahead.most(10) == TOGETHER - 10
    rules.now += 2 * QUICK
    rules.begin(1002)
    assert rules.ahead.most(10) == 0
    for n in range(1000, 1003):
        rules.ahead.ended(claim(n))
    rules.run(PROOF - 2, 0)
    assert rules.ahead.most(10) == 0
    rules.run(2, 0)
    assert rules.ahead.most(10) == TOGETHER - 10


def test_what_the_loop_does_before_a_handler_begins_is_not_the_handlers() -> None:
    rules = Rules()
    rules.run(PROOF, 0)
    for n in range(1000, 1003):
        rules.ahead.enter(claim(n))
    rules.now += 2 * QUICK
    assert rules.ahead.most(10) == TOGETHER - 10
    for n in range(1000, 1003):
        rules.ahead.began(claim(n))
        rules.ahead.ended(claim(n))
    assert rules.ahead.most(10) == TOGETHER - 10
    rules.ahead.began(claim(2000))  # it only goes back, and has no slot
    rules.ahead.ended(claim(2000))
    assert rules.ahead.running == 0


def test_so_many_for_so_many_slots() -> None:
    rules = Rules()
    rules.run(PROOF, 0)
    assert [rules.ahead.most(slots) for slots in (1, 2, 10, 100)] == [0, 8, 32, 0]
    unused = Rules(together=0)
    unused.run(PROOF, 0)
    assert unused.ahead.most(10) == 0
    more = Rules(together=100)
    more.run(PROOF, 0)
    assert [more.ahead.most(slots) for slots in (1, 2, 10, 50, 100)] == [0, 8, 40, 50, 0]


def test_no_more_are_ready_than_handlers_that_compute_get_done_in_time() -> None:
    rules = Rules(together=200)
    rules.run(PROOF, 0.002)
    assert 20 <= rules.ahead.most(50) <= 26
    rules.run(PROOF, 0.0001)
    assert rules.ahead.most(50) == 150


def test_after_some_went_back_there_is_a_pause() -> None:
    rules = Rules(slots=2)
    rules.ahead.hold(claim(1))
    rules.ahead.hold(claim(2))
    assert not rules.ahead.overdue()
    rules.now += read_ahead.PATIENCE + 0.01
    assert rules.ahead.overdue()
    assert [one.job for one in rules.ahead.clear()] == ["j2", "j1"], "the first to come is to be at the front"
    rules.run(PROOF, 0)
    assert rules.ahead.most(10) == 0
    rules.now += PAUSE
    assert rules.ahead.most(10) == TOGETHER - 10


def test_who_is_ready_begins_when_its_own_queue_has_a_slot() -> None:
    ahead = Rules(slots=3).ahead
    slots = {"narrow": 1, "wide": 3}
    ahead.enter(claim(1, "narrow"))
    ahead.enter(claim(2, "wide"))
    for n, queue in ((3, "narrow"), (4, "wide")):
        ahead.hold(claim(n, queue))
    first = ahead.next(slots.__getitem__)
    assert first is not None
    assert first.job == "j4"
    assert ahead.next(slots.__getitem__) is None
    ahead.ended(claim(1, "narrow"))
    second = ahead.next(slots.__getitem__)
    assert second is not None
    assert second.job == "j3"


# With a worker


class Eager:
    """Whatever may be read ahead is, at once, however slow this machine; says what was held ready."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch.setattr
        self.held: list[Claim] = []
        self.patch(read_ahead, "QUICK", FOR_EVER)
        self.patch(read_ahead, "PROOF", 1)
        hold = ReadAhead.hold

        def noted(ahead: ReadAhead, claim: Claim) -> None:
            self.held.append(claim)
            hold(ahead, claim)

        self.patch(ReadAhead, "hold", noted)

    def patient(self) -> None:
        """What is ready waits as long as it takes."""
        for module in (read_ahead, worker):
            self.patch(module, "PATIENCE", FOR_EVER)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Eager:
    return Eager(monkeypatch)


@pytest.fixture(params=[postgres_server, redis_server], ids=["postgres", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    """Only where a store is behind a wire are jobs read ahead."""
    return request.param.url()  # type: ignore[no-any-return]


class Doors:
    """Jobs that are quick, and those told to wait that are not."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.ran: Counter[int] = Counter()
        self.inside = 0
        self.most = 0
        self.blocked = 0

    @property
    def handler(self) -> Any:
        @job(queue="q")
        async def pass_through(n: int) -> None:
            await self.visit(n)

        return pass_through

    async def visit(self, n: int) -> None:
        self.ran[n] += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        if n < 0:
            self.blocked += 1
            await self.gate.wait()
        await asyncio.sleep(0)
        self.inside -= 1


async def completed(app: Any, count: int, queue: str = "q") -> None:
    await until(lambda: _has(app, queue, "completed", count), 20)


async def _has(app: Any, queue: str, state: str, count: int) -> bool:
    return (await app.queues.counts(queue))[state] == count


async def test_no_more_handlers_run_than_there_are_slots(app: Any, eager: Eager) -> None:
    doors = Doors()
    async with app(doors.handler) as a:
        await a.enqueue_many("q", range(300))
        async with a.working(concurrency=4):
            await completed(a, 300)
    assert eager.held, "nothing was read ahead"
    assert 1 < doors.most <= 4
    assert set(doors.ran.values()) == {1}


async def test_what_works_one_at_a_time_begins_when_the_last_is_recorded(app: Any, eager: Eager) -> None:
    doors = Doors()
    ids: list[str] = []
    early: list[str] = []

    @job(queue="narrow", concurrency=1)
    async def one(n: int) -> None:
        if n and (await a.store.job(ids[n - 1])).state.value != "completed":
            early.append(ids[n])

    async with app(doors.handler, one) as a:
        await a.enqueue_many("q", range(200))
        ids += await a.enqueue_many("narrow", range(40))
        async with a.working(concurrency=4):
            await completed(a, 40, "narrow")
            await completed(a, 200)
    assert eager.held, "nothing was read ahead"
    assert early == []


async def test_limits_of_a_queue_are_not_exceeded(app: Any, eager: Eager, monkeypatch: pytest.MonkeyPatch) -> None:
    doors = Doors()
    wanted: Counter[str] = Counter()
    ask = worker.Worker.ask

    def noted(self: Any, finishing: Counter[str]) -> Any:
        asked = ask(self, finishing)
        for want in asked.queues if asked is not None else ():
            wanted[want.queue] = max(wanted[want.queue], want.limit)
        return asked

    monkeypatch.setattr(worker.Worker, "ask", noted)

    @job(queue="few", max_active=4)
    async def few() -> None: ...

    @job(queue="paced", rate_limit="1000/s")
    async def paced() -> None: ...

    async with app(doors.handler, few, paced) as a:
        for queue in ("q", "few", "paced"):
            await a.enqueue_many(queue, range(60))
        async with a.working(concurrency=4):
            for queue in ("q", "few", "paced"):
                await completed(a, 60, queue)
    assert wanted["q"] > 4, "nothing was read ahead"
    assert (wanted["few"], wanted["paced"]) == (4, 4)


async def test_what_waits_behind_slow_handlers_goes_to_another_worker(app: Any, eager: Eager) -> None:
    doors = Doors()
    async with app(doors.handler) as one, app(doors.handler) as two:
        await one.enqueue_many("q", [*range(20), -1, -2, *range(20, 30)])
        async with one.working(concurrency=2, name="one"):
            await until(lambda: doors.blocked == 2)
            await until(lambda: _has(one, "q", "waiting", 10), 20)
            assert eager.held, "nothing was read ahead"
            async with two.working(concurrency=2, name="two"):
                await completed(two, 30)
            doors.gate.set()
            await completed(one, 32)
    assert set(doors.ran.values()) == {1}
    assert list(doors.ran) == [*range(20), -1, -2, *range(20, 30)], "given back in their order"


async def test_a_worker_that_stops_gives_back_what_is_ready(app: Any, eager: Eager) -> None:
    doors = Doors()
    eager.patient()
    async with app(doors.handler) as a:
        await a.enqueue_many("q", [*range(20), -1, -2, *range(20, 30)])
        work = asyncio.create_task(a.run_worker(concurrency=2))
        await until(lambda: doors.blocked == 2)
        assert eager.held, "nothing was read ahead"
        a.stop_worker()
        await until(lambda: _has(a, "q", "waiting", 10), 20)
        doors.gate.set()
        await asyncio.wait([work])
        assert (await a.queues.counts("q"))["completed"] == 22
    assert set(doors.ran.values()) == {1}


async def test_nothing_of_a_queue_begins_after_a_limit_was_met(app: Any, eager: Eager) -> None:
    doors = Doors()
    eager.patient()
    later = range(20, 30)

    @job(queue="q")
    async def meet(n: int) -> None:
        if n == 1000:
            await until(lambda: sum(int(one.payload) in later for one in eager.held) == 8)
            raise RateLimited("1h")
        await doors.visit(n)

    async with app(meet) as a:
        await a.enqueue_many("q", [*range(20), -1, 1000, *later])
        async with a.working(concurrency=2):
            await until(lambda: _has(a, "q", "waiting", 11), 20)
            doors.gate.set()
            await completed(a, 21)
    assert not [n for n in later if doors.ran[n]]


async def test_a_step_of_a_cancelled_run_is_not_begun(app: Any, eager: Eager) -> None:
    doors = Doors()
    eager.patient()

    @flow("f")
    async def step(n: int) -> None:
        await doors.visit(n)

    async with app(doors.handler, step) as a, a.working(concurrency=2):
        await a.enqueue_many("q", range(20))
        await completed(a, 20)
        await a.enqueue_many("q", [-1, -2])
        await until(lambda: doors.blocked == 2)
        run = await a.start("f", 100)
        await until(lambda: any(one.run == run for one in eager.held))
        await a.cancel(run)
        await a.wait_for_step(run, "step", "cancelled")
        doors.gate.set()
    assert doors.ran[100] == 0


async def test_a_slot_nobody_asked_for_is_filled_when_its_attempt_is_recorded(
    app: Any, eager: Eager, no_polling: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at the store has promised all that may be held when less is to be held: the commit that ends an attempt then
    asks for nothing, and that look is answered before the attempt is over."""
    looked, denied, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    @job(queue="narrow", concurrency=1)
    async def one(n: int) -> None:
        ran.append(n)
        if n == 0:
            a.store.signals.fire({"queue:q"})
            await looked.wait()

    ask = worker.Worker.ask

    def less(self: Any, finishing: Counter[str]) -> Any:
        if not finishing["narrow"] or denied.is_set():
            return ask(self, finishing)
        with monkeypatch.context() as patch:
            patch.setattr(ReadAhead, "most", lambda _self, _slots: 0)
            found = ask(self, finishing)
        denied.set()
        return found

    async with app(Doors().handler, one) as a:
        claim, commit = a.store.claim, a.store.commit

        async def look(asked: Any) -> Any:
            if not ran or denied.is_set():
                return await claim(asked)
            looked.set()
            await denied.wait()
            found = await claim(asked)
            answered.set()
            return found

        async def end(units: Any, asked: Any = None) -> Any:
            if denied.is_set() and any(unit.claim is not None for unit in units):
                await answered.wait()
            return await commit(units, asked)

        monkeypatch.setattr(worker.Worker, "ask", less)
        monkeypatch.setattr(a.store, "claim", look)
        monkeypatch.setattr(a.store, "commit", end)
        async with a.working(concurrency=4):
            await a.enqueue_many("q", range(20))
            await completed(a, 20)
            await a.enqueue_many("narrow", range(2))
            await until(lambda: ran == [0, 1], 10)


async def test_slots_are_filled_when_reading_ahead_has_come_to_an_end(
    app: Any, eager: Eager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then more is held than there are slots, and no commit asks for more; the last of them has to."""
    doors = Doors()

    @job(queue="q")
    async def turn(n: int) -> None:
        if n % 50 == 0:  # and then it begins again
            monkeypatch.setattr(read_ahead, "QUICK", FOR_EVER if n % 100 == 0 else -1.0)
        await doors.visit(n)

    async with app(turn, clock=FakeClock()) as a:
        await a.enqueue_many("q", range(1000))
        async with a.working(concurrency=10):
            await completed(a, 1000)
    assert eager.held, "nothing was read ahead"
