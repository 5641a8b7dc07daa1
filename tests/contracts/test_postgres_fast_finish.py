"""The fast path for completed jobs returns the same reply, and leaves the same rows behind, as the general commit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import postgres_server
from penstock.ports.unit import Claim, ClaimRequest, CommitReply, Completed, JobState, Memo, Released, Unit
from penstock.stores.postgres import PostgresStore, store
from penstock.testing import FakeClock
from penstock.testing.contracts.samples import QUEUE, STREAM, add, claim, claim_request, event, job, run, started, unit

OTHER = "nq:entity:other"
Scenario = Callable[[PostgresStore, FakeClock], Awaitable[CommitReply]]


@asynccontextmanager
async def open_store(clock: FakeClock) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_server.prepared_url(), clock=clock)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def completed(claim: Claim, *streams: str, **parts: Any) -> Unit:
    events = [event(f"of.{claim.job}", stream) for stream in streams]
    return Unit(f"u-{claim.job}", claim=claim, outcome=Completed(b'"%b"' % claim.job.encode()), events=events, **parts)


async def add_and_claim(store: PostgresStore, *ids: str, queue: str = QUEUE, **fields: Any) -> list[Claim]:
    await add(store, *(job(id, queue, **fields) for id in ids))
    return await claim(store, queue)


async def out_of_order(store: PostgresStore, _: FakeClock) -> CommitReply:
    """Of four units, one was applied before and one has lost its lease. Both queues have more jobs."""
    a, b, c, d = await add_and_claim(store, "a", "b", "c", "d")
    await add(store, job("e", started=started()), job("f", "later", started=started()), job("g", "later"))
    await store.commit([completed(b, STREAM)])
    lost = msgspec.structs.replace(c, token="another's")
    return await store.commit(
        [completed(d, STREAM), completed(lost, STREAM), completed(b, STREAM), completed(a)],
        claim_request("later", QUEUE),
    )


async def several_streams(store: PostgresStore, _: FakeClock) -> CommitReply:
    a, b = await add_and_claim(store, "a", "b")
    await add(store, job("c", started=started(OTHER)), job("d"))
    return await store.commit([completed(a, STREAM, OTHER), completed(b, STREAM)], claim_request(limit=1))


async def waiting_job_of_a_run(store: PostgresStore, _: FakeClock) -> CommitReply:
    (a,) = await add_and_claim(store, "a")
    await store.commit([unit(run=run("r"), jobs=[job("r.step.1", run="r", started=started())]), unit(jobs=[job("b")])])
    return await store.commit([completed(a, STREAM)], claim_request())


async def job_becomes_due(store: PostgresStore, clock: FakeClock) -> CommitReply:
    (a,) = await add_and_claim(store, "a")
    await add(store, job("b", due=clock.now_ms() + 1000), job("c", due=clock.now_ms() + 5000))
    clock.advance("2s")
    return await store.commit([completed(a, STREAM)], claim_request())


async def job_due_later(store: PostgresStore, clock: FakeClock) -> CommitReply:
    (a,) = await add_and_claim(store, "a")
    await add(store, job("c", due=clock.now_ms() + 5000))
    return await store.commit([completed(a, STREAM)], claim_request())


async def expired_lease(store: PostgresStore, clock: FakeClock) -> CommitReply:
    await add_and_claim(store, "crashed")
    clock.advance("20s")
    (a,) = await add_and_claim(store, "a")
    clock.advance("20s")
    return await store.commit([completed(a, STREAM)], claim_request())


async def paused_queue(store: PostgresStore, _: FakeClock) -> CommitReply:
    (a,) = await add_and_claim(store, "a")
    await add(store, job("b"), job("c", "later"))
    await store.pause(QUEUE)
    return await store.commit([completed(a, STREAM)], claim_request(QUEUE, "later"))


async def with_memos(store: PostgresStore, _: FakeClock) -> CommitReply:
    (a,) = await add_and_claim(store, "a")
    await store.commit([unit(claim=a, outcome=Released(), memos=[Memo("a", "name#1", b"7")])])
    return await store.commit([], claim_request())


async def priorities(store: PostgresStore, _: FakeClock) -> CommitReply:
    (a,) = await add_and_claim(store, "a")
    await add(store, job("low", priority=9), job("high", priority=1), job("middle", priority=5), job("x", "later"))
    few = claim_request("later", QUEUE)
    return await store.commit([completed(a)], ClaimRequest(few.queues, few.lease_ms, few.worker, 3))


async def no_result(store: PostgresStore, _: FakeClock) -> CommitReply:
    (a,) = await add_and_claim(store, "a")
    await add(store, job("more"))
    return await store.commit([Unit("u-a", claim=a, outcome=Completed())], claim_request())


async def odd_characters(store: PostgresStore, _: FakeClock) -> CommitReply:
    """The fast path joins columns with a separator: a unit id may contain it, JSON has it escaped."""
    a, b, c = await add_and_claim(store, "a", "b", "c")
    await add(store, job("more"))
    noted = event("q.noted", data="a-,\x1f\u2028\\é")
    await store.commit([Unit("u-a", claim=a, outcome=Completed(b'"-,\\u001f"'), events=[noted])])
    odd = Unit("u\x1fb", claim=b, outcome=Completed(b'"b"'), events=[noted])
    return await store.commit([odd, Unit("u,c", claim=c, outcome=Completed(b'"-"'))], claim_request())


SCENARIOS = (
    out_of_order, several_streams, waiting_job_of_a_run, job_becomes_due, job_due_later, expired_lease, paused_queue,
    with_memos, priorities, no_result, odd_characters,
)  # fmt: skip


async def play(scenario: Scenario) -> dict[str, Any]:
    """Return the last reply, and what is stored afterwards."""
    clock = FakeClock()
    async with open_store(clock) as store:
        reply = await scenario(store, clock)
        claims = [msgspec.structs.replace(claim, token="") for claim in reply.claimed.claims]
        rows = [row for queue in (QUEUE, "later") for state in JobState for row in await store.jobs(queue, state)]
        events = [(e.id, e.kind, e.data) for stream in (STREAM, OTHER) for e in await store.read(stream)]
        return {
            "receipts": reply.receipts,
            "claims": claims,
            "due": reply.claimed.next_due,
            "jobs": rows,
            "events": events,
        }


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_fast_and_general_path_are_equal(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    choices: list[bool] = []
    is_fast = store.is_fast

    def record(units: Sequence[Unit], request: ClaimRequest | None) -> bool:
        choices.append(is_fast(units, request))
        return choices[-1]

    monkeypatch.setattr(store, "is_fast", record)
    fast = await play(scenario)
    assert choices[-1], "the last commit of the scenario must take the fast path"
    monkeypatch.setattr(store, "is_fast", lambda units, request: False)
    assert fast == await play(scenario)
