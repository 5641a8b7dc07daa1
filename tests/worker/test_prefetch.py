"""Prefetching: jobs claimed ahead of free slots while handlers are short, and released when one is not."""

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
from penstock.worker import capacity, polling, worker
from penstock.worker.capacity import PREFETCH_PAUSE_S, SHORT_HANDLER_S, SHORT_HANDLERS_IN_A_ROW, Prefetcher

HOUR_S = 3600.0
MAX_HELD = 42


def claim(n: int, queue: str = "q") -> Claim:
    return Claim(f"j{n}", queue, "job", b"1", b"{}", f"j{n}", 1, f"t{n}", 0, 0)


class ManualPrefetcher:
    """A prefetcher with a clock that the test moves."""

    def __init__(self, slots: int = 10, *, max_held: int = MAX_HELD) -> None:
        self.now = 100.0
        self.prefetcher = Prefetcher(slots, lambda: self.now, max_held=max_held)

    def run(self, count: int, seconds: float) -> None:
        for n in range(count):
            self.start(n)
            self.now += seconds
            self.prefetcher.vacate(claim(n))

    def start(self, n: int) -> None:
        self.prefetcher.occupy(claim(n))
        self.prefetcher.start(claim(n))


def test_prefetching_starts_after_enough_short_handlers() -> None:
    manual = ManualPrefetcher()
    manual.run(SHORT_HANDLERS_IN_A_ROW - 1, SHORT_HANDLER_S / 20)
    assert manual.prefetcher.limit(10) == 0
    manual.run(1, SHORT_HANDLER_S / 20)
    assert manual.prefetcher.limit(10) == MAX_HELD - 10


def test_each_thread_that_blocks_for_five_ms_has_a_prefetched_job() -> None:
    """The round trip to the store between two jobs is a fifth of such a handler's time."""
    manual = ManualPrefetcher()
    manual.run(SHORT_HANDLERS_IN_A_ROW, 0.0052)
    assert manual.prefetcher.limit(8) >= 8


def test_a_slow_handler_stops_prefetching_even_while_it_runs() -> None:
    manual = ManualPrefetcher()
    manual.run(SHORT_HANDLERS_IN_A_ROW, 0)
    manual.start(1000)
    manual.start(1001)
    assert manual.prefetcher.limit(10) == MAX_HELD - 10
    manual.now += 2 * SHORT_HANDLER_S
    manual.start(1002)
    assert manual.prefetcher.limit(10) == 0
    for n in range(1000, 1003):
        manual.prefetcher.vacate(claim(n))
    manual.run(SHORT_HANDLERS_IN_A_ROW - 2, 0)
    assert manual.prefetcher.limit(10) == 0
    manual.run(2, 0)
    assert manual.prefetcher.limit(10) == MAX_HELD - 10


def test_time_before_a_handler_starts_is_not_measured() -> None:
    manual = ManualPrefetcher()
    manual.run(SHORT_HANDLERS_IN_A_ROW, 0)
    for n in range(1000, 1003):
        manual.prefetcher.occupy(claim(n))
    manual.now += 2 * SHORT_HANDLER_S
    assert manual.prefetcher.limit(10) == MAX_HELD - 10
    for n in range(1000, 1003):
        manual.prefetcher.start(claim(n))
        manual.prefetcher.vacate(claim(n))
    assert manual.prefetcher.limit(10) == MAX_HELD - 10
    manual.prefetcher.start(claim(2000))  # it is only released, and has no slot
    manual.prefetcher.vacate(claim(2000))
    assert manual.prefetcher.running == 0


def test_limit_depends_on_the_slots() -> None:
    manual = ManualPrefetcher()
    manual.run(SHORT_HANDLERS_IN_A_ROW, 0)
    assert [manual.prefetcher.limit(slots) for slots in (1, 2, 10, 100)] == [0, 8, 32, 0]
    unused = ManualPrefetcher(max_held=0)
    unused.run(SHORT_HANDLERS_IN_A_ROW, 0)
    assert unused.prefetcher.limit(10) == 0
    more = ManualPrefetcher(max_held=100)
    more.run(SHORT_HANDLERS_IN_A_ROW, 0)
    assert [more.prefetcher.limit(slots) for slots in (1, 2, 10, 50, 100)] == [0, 8, 40, 50, 0]


def test_limit_depends_on_the_mean_duration() -> None:
    manual = ManualPrefetcher(max_held=200)
    manual.run(SHORT_HANDLERS_IN_A_ROW, 0.002)
    assert 20 <= manual.prefetcher.limit(50) <= 26
    manual.run(SHORT_HANDLERS_IN_A_ROW, 0.0001)
    assert manual.prefetcher.limit(50) == 150


def test_prefetching_pauses_after_a_release() -> None:
    manual = ManualPrefetcher(slots=2)
    manual.prefetcher.hold(claim(1))
    manual.prefetcher.hold(claim(2))
    assert not manual.prefetcher.is_overdue()
    manual.now += capacity.PREFETCH_MAX_WAIT_S + 0.01
    assert manual.prefetcher.is_overdue()
    assert [one.job for one in manual.prefetcher.clear()] == ["j2", "j1"], (
        "released in reverse order, so that the first is at the front"
    )
    manual.run(SHORT_HANDLERS_IN_A_ROW, 0)
    assert manual.prefetcher.limit(10) == 0
    manual.now += PREFETCH_PAUSE_S
    assert manual.prefetcher.limit(10) == MAX_HELD - 10


def test_held_claim_starts_when_its_queue_has_a_slot() -> None:
    prefetcher = ManualPrefetcher(slots=3).prefetcher
    slots = {"narrow": 1, "wide": 3}
    prefetcher.occupy(claim(1, "narrow"))
    prefetcher.occupy(claim(2, "wide"))
    for n, queue in ((3, "narrow"), (4, "wide")):
        prefetcher.hold(claim(n, queue))
    first = prefetcher.next(slots.__getitem__)
    assert first is not None
    assert first.job == "j4"
    assert prefetcher.next(slots.__getitem__) is None
    prefetcher.vacate(claim(1, "narrow"))
    second = prefetcher.next(slots.__getitem__)
    assert second is not None
    assert second.job == "j3"


# With a worker


class EagerPrefetch:
    """Prefetches at once, however slow this machine is, and lists what was held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch.setattr
        self.held: list[Claim] = []
        self.patch(capacity, "SHORT_HANDLER_S", HOUR_S)
        self.patch(capacity, "SHORT_HANDLERS_IN_A_ROW", 1)
        hold = Prefetcher.hold

        def recorded(prefetcher: Prefetcher, claim: Claim) -> None:
            self.held.append(claim)
            hold(prefetcher, claim)

        self.patch(Prefetcher, "hold", recorded)

    def never_release(self) -> None:
        """Never release a prefetched job."""
        for module in (capacity, worker):
            self.patch(module, "PREFETCH_MAX_WAIT_S", HOUR_S)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> EagerPrefetch:
    return EagerPrefetch(monkeypatch)


@pytest.fixture(params=[postgres_server, redis_server], ids=["postgres", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    """Only remote stores prefetch."""
    return request.param.url()  # type: ignore[no-any-return]


class RecordingHandler:
    """Handlers that return at once, or wait for `release` if their number is negative."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.ran: Counter[int] = Counter()
        self.active = 0
        self.max_active = 0
        self.blocked = 0

    @property
    def handler(self) -> Any:
        @job(queue="q")
        async def handler(n: int) -> None:
            await self.run_job(n)

        return handler

    async def run_job(self, n: int) -> None:
        self.ran[n] += 1
        self.active += 1
        self.max_active = max(self.max_active, self.active)
        if n < 0:
            self.blocked += 1
            await self.release.wait()
        await asyncio.sleep(0)
        self.active -= 1


async def completed(app: Any, count: int, queue: str = "q") -> None:
    await until(lambda: _has(app, queue, "completed", count), 20)


async def _has(app: Any, queue: str, state: str, count: int) -> bool:
    return (await app.queues.counts(queue))[state] == count


async def test_no_more_handlers_run_than_there_are_slots(app: Any, eager: EagerPrefetch) -> None:
    recorder = RecordingHandler()
    async with app(recorder.handler) as a:
        await a.jobs.enqueue_many("q", range(300))
        async with a.workers.background(concurrency=4):
            await completed(a, 300)
    assert eager.held, "nothing was prefetched"
    assert 1 < recorder.max_active <= 4
    assert set(recorder.ran.values()) == {1}


async def test_a_queue_with_concurrency_one_starts_a_job_after_the_last_is_recorded(
    app: Any, eager: EagerPrefetch
) -> None:
    recorder = RecordingHandler()
    ids: list[str] = []
    early: list[str] = []

    @job(queue="narrow", concurrency=1)
    async def one(n: int) -> None:
        if n and (await a.store.job(ids[n - 1])).state.value != "completed":
            early.append(ids[n])

    async with app(recorder.handler, one) as a:
        await a.jobs.enqueue_many("q", range(200))
        ids += await a.jobs.enqueue_many("narrow", range(40))
        async with a.workers.background(concurrency=4):
            await completed(a, 40, "narrow")
            await completed(a, 200)
    assert eager.held, "nothing was prefetched"
    assert early == []


async def test_limits_of_a_queue_are_not_exceeded(
    app: Any, eager: EagerPrefetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = RecordingHandler()
    wanted: Counter[str] = Counter()
    request_claims = polling.ClaimPoller.request_claims

    def recorded(self: Any, finishing: Counter[str]) -> Any:
        request = request_claims(self, finishing)
        for want in request.queues if request is not None else ():
            wanted[want.queue] = max(wanted[want.queue], want.limit)
        return request

    monkeypatch.setattr(polling.ClaimPoller, "request_claims", recorded)

    @job(queue="few", max_active=4)
    async def few() -> None: ...

    @job(queue="paced", rate_limit="1000/s")
    async def paced() -> None: ...

    async with app(recorder.handler, few, paced) as a:
        for queue in ("q", "few", "paced"):
            await a.jobs.enqueue_many(queue, range(60))
        async with a.workers.background(concurrency=4):
            for queue in ("q", "few", "paced"):
                await completed(a, 60, queue)
    assert wanted["q"] > 4, "nothing was prefetched"
    assert (wanted["few"], wanted["paced"]) == (4, 4)


async def test_prefetched_jobs_behind_slow_handlers_are_released(app: Any, eager: EagerPrefetch) -> None:
    recorder = RecordingHandler()
    async with app(recorder.handler) as one, app(recorder.handler) as two:
        await one.jobs.enqueue_many("q", [*range(20), -1, -2, *range(20, 30)])
        async with one.workers.background(concurrency=2, name="one"):
            await until(lambda: recorder.blocked == 2)
            await until(lambda: _has(one, "q", "waiting", 10), 20)
            assert eager.held, "nothing was prefetched"
            async with two.workers.background(concurrency=2, name="two"):
                await completed(two, 30)
            recorder.release.set()
            await completed(one, 32)
    assert set(recorder.ran.values()) == {1}
    assert list(recorder.ran) == [*range(20), -1, -2, *range(20, 30)], "released in their order"


async def test_a_stopping_worker_releases_prefetched_jobs(app: Any, eager: EagerPrefetch) -> None:
    recorder = RecordingHandler()
    eager.never_release()
    async with app(recorder.handler) as a:
        await a.jobs.enqueue_many("q", [*range(20), -1, -2, *range(20, 30)])
        work = asyncio.create_task(a.workers.run(concurrency=2))
        await until(lambda: recorder.blocked == 2)
        assert eager.held, "nothing was prefetched"
        a.workers.stop()
        await until(lambda: _has(a, "q", "waiting", 10), 20)
        recorder.release.set()
        await asyncio.wait([work])
        assert (await a.queues.counts("q"))["completed"] == 22
    assert set(recorder.ran.values()) == {1}


async def test_no_prefetched_job_starts_after_a_rate_limit(app: Any, eager: EagerPrefetch) -> None:
    recorder = RecordingHandler()
    eager.never_release()
    later = range(20, 30)

    @job(queue="q")
    async def hit_limit(n: int) -> None:
        if n == 1000:
            await until(lambda: sum(int(one.payload) in later for one in eager.held) == 8)
            raise RateLimited("1h")
        await recorder.run_job(n)

    async with app(hit_limit) as a:
        await a.jobs.enqueue_many("q", [*range(20), -1, 1000, *later])
        async with a.workers.background(concurrency=2):
            await until(lambda: _has(a, "q", "waiting", 11), 20)
            recorder.release.set()
            await completed(a, 21)
    assert not [n for n in later if recorder.ran[n]]


async def test_a_step_of_a_cancelled_run_does_not_start(app: Any, eager: EagerPrefetch) -> None:
    recorder = RecordingHandler()
    eager.never_release()

    @flow("f")
    async def step(n: int) -> None:
        await recorder.run_job(n)

    async with app(recorder.handler, step) as a, a.workers.background(concurrency=2):
        await a.jobs.enqueue_many("q", range(20))
        await completed(a, 20)
        await a.jobs.enqueue_many("q", [-1, -2])
        await until(lambda: recorder.blocked == 2)
        run = await a.start("f", 100)
        await until(lambda: any(one.run == run for one in eager.held))
        await a.runs.cancel(run)
        await a.wait_for_step(run, "step", "cancelled")
        recorder.release.set()
    assert recorder.ran[100] == 0


async def test_a_slot_without_a_request_is_filled_when_its_attempt_is_recorded(
    app: Any, eager: EagerPrefetch, no_polling: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll has reserved all slots when the prefetch limit drops. The commit that finishes an attempt then requests
    nothing, and the poll is answered before the attempt is over."""
    poll_started, request_denied, poll_answered = asyncio.Event(), asyncio.Event(), asyncio.Event()
    ran: list[int] = []

    @job(queue="narrow", concurrency=1)
    async def one(n: int) -> None:
        ran.append(n)
        if n == 0:
            a.store.signals.fire({"queue:q"})
            await poll_started.wait()

    request_claims = polling.ClaimPoller.request_claims

    def request_less(self: Any, finishing: Counter[str]) -> Any:
        if not finishing["narrow"] or request_denied.is_set():
            return request_claims(self, finishing)
        with monkeypatch.context() as patch:
            patch.setattr(Prefetcher, "limit", lambda _self, _slots: 0)
            found = request_claims(self, finishing)
        request_denied.set()
        return found

    async with app(RecordingHandler().handler, one) as a:
        claim, commit = a.store.claim, a.store.commit

        async def poll(request: Any) -> Any:
            if not ran or request_denied.is_set():
                return await claim(request)
            poll_started.set()
            await request_denied.wait()
            found = await claim(request)
            poll_answered.set()
            return found

        async def end(units: Any, request: Any = None) -> Any:
            if request_denied.is_set() and any(unit.claim is not None for unit in units):
                await poll_answered.wait()
            return await commit(units, request)

        monkeypatch.setattr(polling.ClaimPoller, "request_claims", request_less)
        monkeypatch.setattr(a.store, "claim", poll)
        monkeypatch.setattr(a.store, "commit", end)
        async with a.workers.background(concurrency=4):
            await a.jobs.enqueue_many("q", range(20))
            await completed(a, 20)
            await a.jobs.enqueue_many("narrow", range(2))
            await until(lambda: ran == [0, 1], 10)


async def test_slots_are_filled_when_prefetching_ends(
    app: Any, eager: EagerPrefetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More jobs are held than there are slots, and commits request nothing until the last of them is done."""
    recorder = RecordingHandler()

    @job(queue="q")
    async def turn(n: int) -> None:
        if n % 50 == 0:  # toggles prefetching
            monkeypatch.setattr(capacity, "SHORT_HANDLER_S", HOUR_S if n % 100 == 0 else -1.0)
        await recorder.run_job(n)

    async with app(turn, clock=FakeClock()) as a:
        await a.jobs.enqueue_many("q", range(1000))
        async with a.workers.background(concurrency=10):
            await completed(a, 1000)
    assert eager.held, "nothing was prefetched"
