"""Claims: which jobs are claimed, in which order, and what a claim carries."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from ...core.durations import to_ms
from ...ports.store import Store
from ...ports.unit import (
    DELIVERIES,
    ClaimFilter,
    ClaimRequest,
    Completed,
    JobState,
    Memo,
    QueueDemand,
    RateLimit,
    Released,
    RetryAt,
)
from ..clock import FakeClock
from .samples import (
    ERROR,
    LEASE,
    STREAM,
    add,
    add_and_claim,
    apply,
    claim,
    claim_one,
    claim_request,
    event,
    job,
    names,
    run,
    started,
    state_of,
    unit,
)
from .store_under_test import StoreUnderTest


class ClaimContract(StoreUnderTest):
    """Order, batches, delays, and the contents of a claim."""

    async def test_lower_priority_number_first_then_order_of_arrival(self, store: Store) -> None:
        await add(store, job("late", priority=5), job("a"), job("b"))
        await add(store, job("urgent", priority=-1), job("c"), job("later", priority=5))
        assert names(await claim(store)) == ["urgent", "a", "b", "c", "late", "later"]

    async def test_a_batch_respects_the_limit(self, store: Store) -> None:
        await add(store, *(job(f"j{n}") for n in range(5)))
        assert names(await claim(store, limit=2)) == ["j0", "j1"]
        assert names(await claim(store, limit=2)) == ["j2", "j3"]
        assert names(await claim(store, limit=2)) == ["j4"]
        assert await claim(store, limit=2) == []

    async def test_a_limit_of_zero_claims_nothing(self, store: Store) -> None:
        await add(store, job("j"))
        assert await claim(store, limit=0) == []
        assert await state_of(store, "j") == "waiting"

    async def test_each_queue_has_its_own_limit(self, store: Store) -> None:
        await add(store, *(job(f"{q}{n}", q) for n in range(3) for q in ("red", "blue", "green")))
        claims = await claim(store, "red", "blue", limit=2)
        assert sorted(names(claims)) == ["blue0", "blue1", "red0", "red1"]
        assert {c.job: c.queue for c in claims}["blue1"] == "blue"
        assert [q.counts["waiting"] for q in await store.queues()] == [1, 3, 1]

    async def test_a_limit_over_all_queues(self, store: Store) -> None:
        await add(store, *(job(f"{q}{n}", q) for n in range(3) for q in ("red", "blue", "green")))
        both = ClaimRequest(tuple(QueueDemand(q, 2) for q in ("red", "blue", "green")), to_ms(LEASE), "w1", limit=3)
        queues = [claim.queue for claim in (await store.claim(both)).claims]
        assert len(queues) == 3
        assert max(map(queues.count, queues)) <= 2
        assert names((await store.claim(replace(both, limit=0))).claims) == []
        assert len((await store.claim(replace(both, limit=99))).claims) >= 4

    async def test_a_claim_of_some_runs_and_jobs(self, store: Store) -> None:
        await store.commit([unit(run=run(id), jobs=[job(f"{id}.charge.1", run=id)]) for id in ("mine", "other", "min")])
        await store.commit([unit(jobs=[job("mine.pack.1", "blue", run="mine"), job("extra"), job("foreign")])])
        await add(store, job("urgent", priority=-1), job("late", priority=3))
        only = ClaimFilter(("mine",), ("extra", "late", "nowhere"))
        request = claim_request("orders", "blue", only=only)
        assert sorted(names(await store.claim(request))) == ["extra", "late", "mine.charge.1", "mine.pack.1"]
        assert names(await store.claim(request)) == []
        assert names(await store.claim(claim_request(only=ClaimFilter()))) == []
        rest = names(await store.claim(claim_request("orders", "blue")))
        assert rest == ["urgent", "other.charge.1", "min.charge.1", "foreign"]

    async def test_a_claim_of_some_jobs_respects_limits(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("before"), job("a"), job("b"), job("c"), job("later", due=clock.now_ms() + 60_000))
        only = ClaimFilter(jobs=("a", "b", "c", "later"))
        assert names(await store.claim(claim_request(limit=1, lease="1d", only=only))) == ["a"]
        assert names(await store.claim(claim_request(max_active=2, lease="1d", only=only))) == ["b"]
        limited = claim_request(lease="1d", only=only, rate=RateLimit(1, 600_000))
        assert names(await store.claim(limited)) == ["c"]
        clock.advance("2m")
        assert names(await store.claim(limited)) == []
        clock.advance("10m")
        assert names(await store.claim(limited)) == ["later"]
        assert await state_of(store, "before") == "waiting"

    async def test_a_claim_of_some_runs_takes_retried_and_resumed_jobs(self, store: Store, clock: FakeClock) -> None:
        await store.commit([unit(run=run("mine"), jobs=[job("mine.charge.1", run="mine")])])
        await add(store, job("foreign"))
        request = claim_request(only=ClaimFilter(("mine",)))
        (one,) = (await store.claim(request)).claims
        retry = unit(claim=one, outcome=RetryAt(clock.now_ms() + 1000, ERROR))
        reply = await store.commit([retry], request)
        assert names(reply.claimed) == []
        clock.advance("1s")
        (one,) = (await store.claim(request)).claims
        assert (one.job, one.attempt, one.run, one.version) == ("mine.charge.1", 2, "mine", 1)
        next_job = unit(claim=one, outcome=Completed(b"1"), run=run("mine", 1), jobs=[job("mine.ship.1", run="mine")])
        assert names((await store.commit([next_job], request)).claimed) == ["mine.ship.1"]
        assert await state_of(store, "foreign") == "waiting"

    async def test_deliveries_are_claimed_with_those_of_some_runs(self, store: Store) -> None:
        await add(store, job("delivery", DELIVERIES), job("foreign"))
        assert names(await store.claim(claim_request("orders", DELIVERIES, only=ClaimFilter(("mine",))))) == [
            "delivery"
        ]

    async def test_an_unknown_queue_is_empty(self, store: Store) -> None:
        found = await store.claim(claim_request("nowhere"))
        assert (found.claims, found.next_due) == ([], None)

    async def test_a_delayed_job_is_claimed_when_it_is_due(self, store: Store, clock: FakeClock) -> None:
        due = clock.now_ms() + 60_000
        await add(store, job("later", due=due), job("now"))
        first = await store.claim(claim_request(lease="1h"))
        assert (names(first), first.next_due) == (["now"], due)
        clock.set_ms(due - 1)
        assert await claim(store) == []
        clock.set_ms(due)
        assert names(await claim(store)) == ["later"]

    async def test_a_due_time_in_the_past_is_now(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("j", due=clock.now_ms() - 1), job("k", due=clock.now_ms()))
        assert await state_of(store, "j") == "waiting"
        assert names(await claim(store)) == ["j", "k"]

    async def test_a_delayed_job_does_not_lose_its_priority(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("delayed", due=clock.now_ms() + 10, priority=-1), job("plain"))
        clock.advance("1s")
        assert names(await claim(store)) == ["delayed", "plain"]

    async def test_next_due_is_the_earliest_due_time(self, store: Store, clock: FakeClock) -> None:
        now = clock.now_ms()
        assert (await store.claim(claim_request())).next_due is None
        await add(store, job("c", "blue", due=now + 30_000), job("a", due=now + 20_000), job("b", due=now + 10_000))
        assert (await store.claim(claim_request("orders", "blue"))).next_due == now + 10_000
        assert (await store.claim(claim_request("blue"))).next_due == now + 30_000
        clock.set_ms(now + 10_000)
        assert (await store.claim(claim_request(lease="1h"))).next_due == now + 20_000

    async def test_next_due_includes_the_expiry_of_leases(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("j"))
        found = await store.claim(claim_request(lease="30s"))
        assert found.next_due == clock.now_ms() + 30_000
        # The next caller must see it too: the process that holds the lease may be dead.
        assert (await store.claim(claim_request(worker="w2"))).next_due == clock.now_ms() + 30_000

    async def test_next_due_when_a_batch_left_work_behind(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("a"), job("b"), job("c", due=clock.now_ms() + 5000))
        assert (await store.claim(claim_request(limit=1))).next_due == clock.now_ms() + 5000

    async def test_a_claim_carries_the_job(self, store: Store) -> None:
        await add(store, job("j", opts=b'{"x":1}'))
        one = await claim_one(store)
        assert (one.job, one.queue, one.name) == ("j", "orders", "charge")
        assert (one.payload, one.opts) == (b'{"job":"j"}', b'{"x":1}')
        assert (one.attempt, one.failures, one.crashes, one.scope) == (1, 0, 0, "j")
        assert (one.run, one.version, one.record, one.memos) == (None, 0, None, {})
        assert one.token
        row = await store.job("j")
        assert row is not None
        assert (row.state, row.attempt) == (JobState.ACTIVE, 1)

    async def test_a_claim_carries_the_run_as_it_is_now(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")]))
        await apply(store, unit(run=run("r", 1, b'{"at":"two"}')))
        one = await claim_one(store)
        assert (one.run, one.version, one.record) == ("r", 2, b'{"at":"two"}')

    async def test_a_claim_carries_the_memos_of_its_scope(self, store: Store) -> None:
        first = await add_and_claim(store, "j")
        memos = [Memo("j", "rate#1", b"1.5"), Memo("j", "now#1", b"7"), Memo("other", "rate#1", b"9")]
        await apply(store, unit(claim=first, outcome=RetryAt(0, ERROR), memos=memos))
        assert (await claim_one(store)).memos == {"rate#1": b"1.5", "now#1": b"7"}
        resumed = await add_and_claim(store, "j.r1", scope="j")
        assert (resumed.scope, resumed.memos) == ("j", {"rate#1": b"1.5", "now#1": b"7"})

    async def test_a_new_job_with_a_scope_has_its_memos(self, store: Store) -> None:
        """A job imported from another store keeps its memos."""
        await apply(store, unit(memos=[Memo("j", "rate#1", b"1.5")], jobs=[job("j", scope="j")]))
        assert (await claim_one(store)).memos == {"rate#1": b"1.5"}

    async def test_started_is_recorded_with_the_claim(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("j", started=started()))
        assert await store.read(STREAM) == []
        first = await claim_one(store, worker="w1")
        await apply(store, unit(claim=first, outcome=Released(), events=[event("job.released")]))
        clock.advance("1s")
        await claim_one(store, worker="w-2.local_7")
        one, _, two = await store.read(STREAM)
        assert (one.kind, one.step, one.subject) == ("step.started", "charge", "order/7")
        assert one.meta == {"n": 1, "attempt": 1, "worker": "w1"}
        assert two.meta == {"n": 1, "attempt": 2, "worker": "w-2.local_7"}
        assert [one.seq, two.seq] == [1, 3]
        assert two.id == f"{clock.now_ms()}-3"

    async def test_started_moves_the_stream_but_not_the_run_version(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r", started=started("nq:flow:r"))]))
        one = await claim_one(store)
        assert one.version == 1
        row = await store.run("r")
        assert row is not None
        assert row.version == 1
        assert len(await store.read("nq:flow:r")) == 1

    async def test_started_of_one_batch_is_gapless(self, store: Store) -> None:
        await add(store, *(job(f"j{n}", started=started(STREAM, f"s{n}")) for n in range(4)))
        await claim(store, limit=4)
        assert [(e.seq, e.step) for e in await store.read(STREAM)] == [
            (1, "s0"),
            (2, "s1"),
            (3, "s2"),
            (4, "s3"),
        ]

    async def test_jobs_of_a_closed_run_are_never_claimed(self, store: Store) -> None:
        jobs = [job(f"r.a.{n}", run="r", started=started("nq:flow:r")) for n in range(3)]
        await apply(store, unit(run=run("r"), jobs=jobs))
        await add(store, job("live"))
        await apply(store, unit(run=run("r", 1, status="cancelled", closed=True)))
        assert names(await claim(store)) == ["live"]
        assert await store.read("nq:flow:r") == []
        assert await claim(store) == []

    async def test_jobs_of_a_closed_run_do_not_use_up_the_limit(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), jobs=[job(f"r.a.{n}", run="r") for n in range(3)]))
        await add(store, job("one"), job("two"))
        await apply(store, unit(run=run("r", 1, status="cancelled", closed=True)))
        assert names(await claim(store, limit=2)) == ["one", "two"]

    async def test_no_job_is_claimed_twice(self, store: Store) -> None:
        await add(store, *(job(f"j{n:02}") for n in range(30)))
        claims = await asyncio.gather(*(claim(store, limit=4, worker=f"w{n}") for n in range(10)))
        flat = [name for batch in claims for name in names(batch)]
        assert sorted(flat) == [f"j{n:02}" for n in range(30)]
        assert len({one.token for batch in claims for one in batch}) == 30

    async def test_a_completed_job_does_not_come_back(self, store: Store, clock: FakeClock) -> None:
        one = await add_and_claim(store, "j")
        await apply(store, unit(claim=one, outcome=Completed()))
        clock.advance("1d")
        assert await claim(store, lease=LEASE) == []
