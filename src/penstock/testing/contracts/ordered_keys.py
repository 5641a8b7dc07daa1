"""Ordered keys: jobs of one key run one at a time, in the order in which they were committed."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from ...ports.store import Retention, Store
from ...ports.unit import (
    Cancelled,
    Claim,
    Committed,
    Completed,
    Conflict,
    Dead,
    Dedupe,
    JobState,
    KeepJobs,
    NewJob,
    Outcome,
    RateLimit,
    Released,
    RetryAt,
    Suspended,
    Unit,
)
from ..clock import FakeClock
from .samples import ERROR, add, apply, claim, claim_one, claim_request, job, names, run, state_of, unit
from .store_under_test import StoreUnderTest

KEY = "ada"


class OrderedKeysContract(StoreUnderTest):
    """The first open job of a key runs, the others are held."""

    async def test_jobs_of_a_key_run_one_after_the_other(self, store: Store) -> None:
        await add(store, *(_job(id) for id in "abc"))
        assert [await state_of(store, id) for id in "abc"] == ["waiting", "held", "held"]
        for id in "abc":
            (one,) = await claim(store)
            assert one.job == id
            assert await claim(store) == []
            await apply(store, _end(one))
        assert [await state_of(store, id) for id in "abc"] == ["completed"] * 3

    async def test_other_keys_other_queues_and_jobs_without_a_key_are_not_held(self, store: Store) -> None:
        await add(store, _job("a"), _job("b", "bob"), job("c", "letters", order_key=KEY), job("d"), _job("e"))
        assert sorted(names(await claim(store, "orders", "letters"))) == ["a", "b", "c", "d"]

    async def test_units_of_one_commit_keep_their_order(self, store: Store) -> None:
        await store.commit([unit(jobs=[_job(id)]) for id in "abc"])
        assert await _run_all(store) == ["a", "b", "c"]

    async def test_jobs_added_later_follow(self, store: Store) -> None:
        await add(store, _job("a"))
        first = await claim_one(store)
        await add(store, _job("b"))
        assert await claim(store) == []
        await apply(store, _end(first))
        await add(store, _job("c"))
        assert [await state_of(store, id) for id in "bc"] == ["waiting", "held"]
        assert await _run_all(store) == ["b", "c"]

    async def test_a_key_without_open_jobs_holds_nothing(self, store: Store) -> None:
        await add(store, _job("a"))
        await _run_all(store)
        await add(store, _job("b"))
        assert await state_of(store, "b") == "waiting"

    async def test_the_commit_that_ends_a_job_claims_the_next_one(self, store: Store) -> None:
        await add(store, *(_job(id) for id in "ab"))
        reply = await store.commit([_end(await claim_one(store))], claim_request())
        assert names(reply.claimed) == ["b"]

    async def test_a_unit_may_end_a_job_and_add_one_of_its_key(self, store: Store) -> None:
        await add(store, _job("a"))
        first = await claim_one(store)
        await apply(store, _end(first, jobs=[_job("b"), _job("c")]))
        assert await _run_all(store) == ["b", "c"]

    async def test_every_final_outcome_releases_the_next_job(self, store: Store) -> None:
        await add(store, *(_job(id) for id in "abcde"))
        outcomes: list[Outcome] = [Dead(ERROR), Cancelled("no"), Completed(keep=KeepJobs(0)), Dead(ERROR, KeepJobs(0))]
        for id, outcome in zip("abcd", outcomes, strict=True):
            one = await claim_one(store)
            assert one.job == id
            await apply(store, _end(one, outcome))
        assert names(await claim(store)) == ["e"]

    async def test_a_retry_does_not_let_a_follower_pass(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(_job(id) for id in "ab"))
        await apply(store, _end(await claim_one(store), RetryAt(clock.now_ms() + 60_000, ERROR)))
        clock.advance("59s")
        assert await claim(store) == []
        clock.advance("1s")
        (again,) = await claim(store)
        assert (again.job, again.attempt, again.failures) == ("a", 2, 1)
        assert await claim(store) == []
        await apply(store, _end(again))
        assert names(await claim(store)) == ["b"]

    async def test_a_suspended_or_released_job_does_not_let_a_follower_pass(
        self, store: Store, clock: FakeClock
    ) -> None:
        await add(store, *(_job(id) for id in "ab"))
        await apply(store, _end(await claim_one(store), Suspended()))
        assert await claim(store) == []
        await apply(store, unit(wakes=["a"]))
        await apply(store, _end(await claim_one(store), Released(clock.now_ms() + 1000)))
        assert await claim(store) == []
        clock.advance("1s")
        assert await _run_all(store) == ["a", "b"]

    async def test_a_crashed_worker_does_not_let_a_follower_pass(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(_job(id) for id in "ab"))
        lost = await claim_one(store)
        clock.advance("1m")
        (again,) = await claim(store)
        assert (again.job, again.crashes) == ("a", 1)
        await apply(store, _end(lost))  # refused: it has lost its lease
        assert await state_of(store, "b") == "held"
        await apply(store, _end(again))
        assert names(await claim(store)) == ["b"]

    async def test_a_repeated_unit_releases_one_job(self, store: Store) -> None:
        await add(store, *(_job(id) for id in "abc"))
        ended = _end(await claim_one(store))
        await apply(store, ended)
        assert await apply(store, ended) == Committed(repeated=True)
        assert [await state_of(store, id) for id in "bc"] == ["waiting", "held"]

    async def test_a_delayed_job_holds_its_followers(self, store: Store, clock: FakeClock) -> None:
        await add(store, _job("a", due=clock.now_ms() + 60_000), _job("b"))
        assert [await state_of(store, id) for id in "ab"] == ["delayed", "held"]
        assert await claim(store) == []
        clock.advance("1m")
        assert await _run_all(store) == ["a", "b"]

    async def test_a_delayed_follower_is_due_at_its_own_time(self, store: Store, clock: FakeClock) -> None:
        due = clock.now_ms() + 60_000
        await add(store, _job("a"), _job("b", due=due), _job("c", due=due))
        await apply(store, _end(await claim_one(store)))
        assert await state_of(store, "b") == "delayed"
        clock.advance("1m")
        assert await _run_all(store) == ["b", "c"]

    async def test_priorities_do_not_reorder_a_key(self, store: Store) -> None:
        await add(store, _job("a", priority=9), _job("b"), _job("c", priority=3), job("x"), _job("d", priority=-1))
        assert await _run_all(store) == ["x", "a", "b", "c", "d"]

    async def test_concurrent_adds_make_one_head(self, store: Store) -> None:
        await asyncio.gather(*(add(store, _job(f"j{n}"), _job(f"k{n}", f"k{n % 3}")) for n in range(20)))
        first = await claim(store, limit=100)
        assert len(first) == 4
        await asyncio.gather(*(apply(store, _end(one, key=_key_of(one))) for one in first))
        assert len(await claim(store, limit=100)) == 4

    async def test_adds_and_ends_at_the_same_time_strand_no_job(self, store: Store) -> None:
        await add(store, _job("j0"))
        for n in range(1, 30):
            (one,) = await claim(store)
            await asyncio.gather(apply(store, _end(one)), add(store, _job(f"j{n}")))
        assert names(await claim(store)) == ["j29"]

    async def test_a_held_job_becomes_ready_once(self, store: Store) -> None:
        with store.signals.listen("queue:orders") as listener:
            await add(store, *(_job(id) for id in "ab"))
            first = await claim_one(store)
            await listener.wait(1)
            await apply(store, _end(first))
            assert await listener.wait(5)
        assert names(await claim(store)) == ["b"]

    async def test_a_job_that_is_not_added_holds_nothing(self, store: Store) -> None:
        await add(store, job("a"), _job("x", "bob"))
        await add(store, _job("a"), _job("b"))  # the id exists, without a key
        assert await state_of(store, "b") == "waiting"
        await store.commit([unit(run=run("r1", 7), jobs=[_job("c", "cid")]), unit(jobs=[_job("d", "cid")])])
        assert await state_of(store, "d") == "waiting"

    async def test_a_refused_end_releases_nothing(self, store: Store) -> None:
        await add(store, *(_job(id) for id in "ab"))
        receipt = await apply(store, _end(await claim_one(store), run=run("r1", 7)))
        assert isinstance(receipt, Conflict)
        assert await state_of(store, "b") == "held"

    async def test_a_job_shows_its_key_and_the_job_it_waits_for(self, store: Store) -> None:
        await add(store, *(_job(id) for id in "abc"), job("d"))
        rows = [await store.job(id) for id in "abcd"]
        assert [(row.order_key, row.waits_for) for row in rows if row] == [
            (KEY, None), (KEY, "a"), (KEY, "b"), (None, None),
        ]  # fmt: skip
        held = await store.jobs("orders", JobState.HELD)
        assert [(row.id, row.waits_for) for row in held] == [("b", "a"), ("c", "b")]
        (queue,) = await store.queues()
        assert (queue.counts["waiting"], queue.counts["held"]) == (2, 2)


class OrderedKeysAdminContract(StoreUnderTest):
    """What administration does to the jobs of a key."""

    async def test_removing_a_job_releases_the_next_one(self, store: Store) -> None:
        await add(store, *(_job(id) for id in "abcd"))
        assert await store.remove("b")
        assert [await state_of(store, id) for id in "acd"] == ["waiting", "held", "held"]
        row = await store.job("c")
        assert row is not None
        assert row.waits_for == "a"
        assert await store.remove("a")
        assert await _run_all(store) == ["c", "d"]

    async def test_a_unit_that_removes_a_job_releases_the_next_one(self, store: Store) -> None:
        await add(store, *(_job(id) for id in "abcd"))
        await apply(store, unit(removes=["b"]))
        await apply(store, unit(removes=["a"], jobs=[_job("e")]))
        assert await _run_all(store) == ["c", "d", "e"]

    async def test_a_held_job_cannot_be_promoted(self, store: Store, clock: FakeClock) -> None:
        await add(store, _job("a"), _job("b", due=clock.now_ms() + 1000))
        assert not await store.promote("b")
        assert await state_of(store, "b") == "held"

    async def test_a_promoted_head_still_holds_its_followers(self, store: Store, clock: FakeClock) -> None:
        await add(store, _job("a", due=clock.now_ms() + 1000), _job("b"))
        assert await store.promote("a")
        assert await _run_all(store) == ["a", "b"]

    async def test_a_retried_job_goes_to_the_end_of_its_key(self, store: Store) -> None:
        await add(store, *(_job(id) for id in "abc"))
        await apply(store, _end(await claim_one(store), Dead(ERROR)))
        assert await store.retry("a")
        assert [await state_of(store, id) for id in "abc"] == ["held", "waiting", "held"]
        await add(store, _job("d"))
        assert await _run_all(store) == ["b", "c", "a", "d"]

    async def test_a_retried_job_of_a_free_key_runs_at_once(self, store: Store) -> None:
        await add(store, _job("a"))
        await apply(store, _end(await claim_one(store), Dead(ERROR)))
        assert await store.retry("a")
        await add(store, _job("b"))
        assert await _run_all(store) == ["a", "b"]

    async def test_drain_removes_held_jobs(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(_job(id) for id in "abc"), _job("d", "bob", due=clock.now_ms() + 1000), _job("e", "bob"))
        first = await claim_one(store)
        await add(store, _job("f", "cid"), _job("g", "cid"))
        assert await store.drain("orders") == 5
        await apply(store, _end(first))
        await add(store, _job("h"), _job("i", "bob"), _job("j", "cid"))
        assert [await state_of(store, id) for id in "dhij"] == ["delayed", "waiting", "held", "waiting"]
        assert await store.drain("orders", delayed=True) == 4

    async def test_drain_spares_held_jobs_of_paused_runs(self, store: Store) -> None:
        await apply(store, unit(run=run("r1"), jobs=[job("r1.a.1", run="r1")]))
        await apply(store, unit(run=run("r1", 1, paused=True)))
        assert await claim(store) == []
        assert await store.drain("orders") == 0
        assert await state_of(store, "r1.a.1") == "held"

    async def test_a_paused_queue_keeps_the_order(self, store: Store) -> None:
        await store.pause("orders")
        await add(store, *(_job(id) for id in "abc"))
        assert await claim(store) == []
        await store.resume("orders")
        first = await claim_one(store)
        await store.pause("orders")
        await apply(store, _end(first))
        assert await claim(store) == []
        await store.resume("orders")
        assert await _run_all(store) == ["b", "c"]

    async def test_a_deduplicated_job_takes_no_place(self, store: Store) -> None:
        await add(store, _job("a"), _job("b", dedupe=Dedupe("one")), _job("c", dedupe=Dedupe("one")), _job("d"))
        assert await state_of(store, "c") is None
        assert await _run_all(store) == ["a", "b", "d"]

    async def test_limits_count_only_jobs_that_run(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(_job(f"{key}{n}", key) for n in range(2) for key in ("x", "y", "z")))
        assert names(await claim(store, max_active=2)) == ["x0", "y0"]
        assert await claim(store, max_active=2) == []
        rate = RateLimit(1, 1000)
        assert names(await claim(store, rate=rate)) == ["z0"]
        clock.advance("1s")
        assert await claim(store, rate=rate) == []

    async def test_a_rate_limit_does_not_let_a_follower_pass(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(_job(f"{key}{n}", key, rate_key="all") for n in range(2) for key in "xy"))
        rate, order = RateLimit(1, 1000, per_key=True), list[str]()
        for _ in range(4):
            (one,) = await claim(store, rate=rate)
            order.append(one.job)
            await apply(store, _end(one, key=one.job[0]))
            clock.advance("1s")
        assert [id for id in order if id[0] == "x"] == ["x0", "x1"]
        assert [id for id in order if id[0] == "y"] == ["y0", "y1"]

    async def test_retention_removes_only_ended_jobs(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(_job(id) for id in "abc"))
        await apply(store, _end(await claim_one(store)))
        clock.advance("1h")
        await store.sweep(Retention(jobs_before=clock.now_ms()))
        assert [await state_of(store, id) for id in "abc"] == [None, "waiting", "held"]
        assert await _run_all(store) == ["b", "c"]


class OrderedKeysFaultContract(StoreUnderTest):
    """Any sequence of failures, delays, crashes and removals keeps the order."""

    @pytest.mark.parametrize("seed", range(6))
    async def test_random_faults_keep_the_order(self, store: Store, clock: FakeClock, seed: int) -> None:
        await OrderedWorkload(store, clock, random.Random(seed)).run()


class OrderedWorkload:
    """Adds jobs of three keys, claims them, and ends or loses the claims at random."""

    def __init__(self, store: Store, clock: FakeClock, rng: random.Random) -> None:
        self._store, self._clock, self._rng = store, clock, rng
        self._claims: list[Claim] = []
        self._order: dict[str, list[str]] = {key: [] for key in "xyz"}
        self._ended: set[str] = set()
        self._unstarted_removed: set[str] = set()
        self._count = 0
        self._started: dict[str, list[str]] = {key: [] for key in "xyz"}

    async def run(self, steps: int = 120) -> None:
        """Do this many things, then complete what is left. Raise AssertionError if a job runs out of order."""
        for _ in range(steps):
            await self._step()
        await self._finish()
        assert self._started == self._expected()

    def _expected(self) -> dict[str, list[str]]:
        """Return the jobs in the order they were added, without those that were removed before they started."""
        return {key: [id for id in ids if id not in self._unstarted_removed] for key, ids in self._order.items()}

    async def _step(self) -> None:
        """Do one thing."""
        actions = (self._add, self._add, self._claim, self._claim, self._end, self._end, self._lose, self._remove)
        await self._rng.choice(actions)()
        self._clock.advance(f"{self._rng.randrange(400)}ms")

    async def _finish(self) -> None:
        """Complete all that is left, without faults."""
        for _ in range(1000):
            await self._claim()
            while self._claims:
                one = self._claims.pop()
                await self._end_with(one, Completed())
            if all(self._ended >= set(ids) for ids in self._order.values()):
                return
            self._clock.advance("1s")
        raise AssertionError(f"some jobs never ended: {set().union(*self._order.values()) - self._ended}")

    async def _add(self) -> None:
        jobs = []
        for _ in range(self._rng.randint(1, 3)):
            key, self._count = self._rng.choice("xyz"), self._count + 1
            due = self._clock.now_ms() + self._rng.choice((0, 0, 700)) if self._rng.random() < 0.5 else 0
            jobs.append(_job(f"{key}{self._count}", key, due=due, priority=self._rng.choice((0, 0, 5))))
            self._order[key].append(jobs[-1].id)
        await add(self._store, *jobs)

    async def _claim(self) -> None:
        self._forget_expired()
        for one in await claim(self._store, limit=self._rng.randint(1, 5), lease="2s"):
            key = one.job[0]
            assert not any(other.job[0] == key for other in self._claims), f"{one.job} runs beside {self._claims}"
            if one.job not in self._started[key]:
                self._started[key].append(one.job)
            before = self._order[key][: self._order[key].index(one.job)]
            assert self._ended >= set(before), f"{one.job} has passed {set(before) - self._ended}"
            self._claims.append(one)

    def _forget_expired(self) -> None:
        self._claims = [one for one in self._claims if one.at + 2000 > self._clock.now_ms()]

    async def _end(self) -> None:
        self._forget_expired()
        if self._claims:
            now = self._clock.now_ms()
            outcomes: tuple[Outcome, ...] = (
                Completed(), Completed(keep=KeepJobs(0)), Dead(ERROR), Cancelled("no"), RetryAt(now + 300, ERROR),
                RetryAt(now, ERROR), Released(), Released(now + 500), Suspended(now + 200),
            )  # fmt: skip
            one = self._claims.pop(self._rng.randrange(len(self._claims)))
            await self._end_with(one, self._rng.choice(outcomes))

    async def _end_with(self, one: Claim, outcome: Outcome) -> None:
        receipt = await apply(self._store, _end(one, outcome, key=one.job[0]))
        if isinstance(receipt, Committed) and isinstance(outcome, Completed | Dead | Cancelled):
            self._ended.add(one.job)

    async def _lose(self) -> None:
        """Let a worker die: nobody ends or renews its claim, and the lease expires."""
        if self._claims and self._rng.random() < 0.4:
            self._claims.pop(self._rng.randrange(len(self._claims)))
            self._clock.advance("2s")

    async def _remove(self) -> None:
        open_ids = [id for ids in self._order.values() for id in ids if id not in self._ended]
        if open_ids and self._rng.random() < 0.4:
            id = self._rng.choice(open_ids)
            if await self._store.remove(id):
                self._ended.add(id)
                if id not in self._started[id[0]]:
                    self._unstarted_removed.add(id)


def _job(id: str, key: str = KEY, **fields: Any) -> NewJob:
    return job(id, order_key=key, **fields)


def _key_of(one: Claim) -> str:
    return KEY if one.job[0] == "j" else f"k{int(one.job[1:]) % 3}"


def _end(one: Claim, outcome: Outcome | None = None, *, key: str = KEY, **parts: Any) -> Unit:
    return unit(claim=one, outcome=outcome or Completed(), order_key=key, **parts)


async def _run_all(store: Store) -> list[str]:
    """Complete jobs one at a time until none is ready, and return them in order."""
    done: list[str] = []
    while claims := await claim(store, limit=1):
        done.append(claims[0].job)
        await apply(store, _end(claims[0]))
    return done
