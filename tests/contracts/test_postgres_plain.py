"""Plain jobs that complete take a way of their own: it gives, and leaves behind, what the long one does."""

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
Story = Callable[[PostgresStore, FakeClock], Awaitable[CommitReply]]


@asynccontextmanager
async def opened(clock: FakeClock) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_server.url(), clock=clock)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def done(claim: Claim, *streams: str, **parts: Any) -> Unit:
    said = [event(f"of.{claim.job}", stream) for stream in streams]
    return Unit(f"u-{claim.job}", claim=claim, outcome=Completed(b'"%b"' % claim.job.encode()), events=said, **parts)


async def hands(store: PostgresStore, *ids: str, queue: str = QUEUE, **fields: Any) -> list[Claim]:
    await add(store, *(job(id, queue, **fields) for id in ids))
    return await claim(store, queue)


async def out_of_order(store: PostgresStore, _: FakeClock) -> CommitReply:
    """Of four, one is applied already and one has lost its lease; each of the queues has more."""
    a, b, c, d = await hands(store, "a", "b", "c", "d")
    await add(store, job("e", started=started()), job("f", "later", started=started()), job("g", "later"))
    await store.commit([done(b, STREAM)])
    lost = msgspec.structs.replace(c, token="another's")
    return await store.commit(
        [done(d, STREAM), done(lost, STREAM), done(b, STREAM), done(a)], claim_request("later", QUEUE)
    )


async def several_streams(store: PostgresStore, _: FakeClock) -> CommitReply:
    a, b = await hands(store, "a", "b")
    await add(store, job("c", started=started(OTHER)), job("d"))
    return await store.commit([done(a, STREAM, OTHER), done(b, STREAM)], claim_request(limit=1))


async def job_of_a_run(store: PostgresStore, _: FakeClock) -> CommitReply:
    (a,) = await hands(store, "a")
    await store.commit([unit(run=run("r"), jobs=[job("r.step.1", run="r", started=started())]), unit(jobs=[job("b")])])
    return await store.commit([done(a, STREAM)], claim_request())


async def due_only_now(store: PostgresStore, clock: FakeClock) -> CommitReply:
    (a,) = await hands(store, "a")
    await add(store, job("b", due=clock.now_ms() + 1000), job("c", due=clock.now_ms() + 5000))
    clock.advance("2s")
    return await store.commit([done(a, STREAM)], claim_request())


async def due_later(store: PostgresStore, clock: FakeClock) -> CommitReply:
    (a,) = await hands(store, "a")
    await add(store, job("c", due=clock.now_ms() + 5000))
    return await store.commit([done(a, STREAM)], claim_request())


async def lease_ran_out(store: PostgresStore, clock: FakeClock) -> CommitReply:
    await hands(store, "crashed")
    clock.advance("20s")
    (a,) = await hands(store, "a")
    clock.advance("20s")
    return await store.commit([done(a, STREAM)], claim_request())


async def paused(store: PostgresStore, _: FakeClock) -> CommitReply:
    (a,) = await hands(store, "a")
    await add(store, job("b"), job("c", "later"))
    await store.pause(QUEUE)
    return await store.commit([done(a, STREAM)], claim_request(QUEUE, "later"))


async def with_memos(store: PostgresStore, _: FakeClock) -> CommitReply:
    (a,) = await hands(store, "a")
    await store.commit([unit(claim=a, outcome=Released(), memos=[Memo("a", "name#1", b"7")])])
    return await store.commit([], claim_request())


async def priorities(store: PostgresStore, _: FakeClock) -> CommitReply:
    (a,) = await hands(store, "a")
    await add(store, job("low", priority=9), job("high", priority=1), job("middle", priority=5), job("x", "later"))
    few = claim_request("later", QUEUE)
    return await store.commit([done(a)], ClaimRequest(few.queues, few.lease_ms, few.worker, 3))


async def no_result(store: PostgresStore, _: FakeClock) -> CommitReply:
    (a,) = await hands(store, "a")
    await add(store, job("more"))
    return await store.commit([Unit("u-a", claim=a, outcome=Completed())], claim_request())


async def odd_characters(store: PostgresStore, _: FakeClock) -> CommitReply:
    """Columns are sent as texts with a separator: a name may have it, and JSON may have all but that."""
    a, b, c = await hands(store, "a", "b", "c")
    await add(store, job("more"))
    said = event("q.said", data="a-,\x1f\u2028\\é")
    await store.commit([Unit("u-a", claim=a, outcome=Completed(b'"-,\\u001f"'), events=[said])])
    odd = Unit("u\x1fb", claim=b, outcome=Completed(b'"b"'), events=[said])
    return await store.commit([odd, Unit("u,c", claim=c, outcome=Completed(b'"-"'))], claim_request())


STORIES = (
    out_of_order, several_streams, job_of_a_run, due_only_now, due_later, lease_ran_out, paused, with_memos, priorities,
    no_result, odd_characters,
)  # fmt: skip


async def told(story: Story) -> dict[str, Any]:
    """What was answered, and what is there afterwards."""
    clock = FakeClock()
    async with opened(clock) as store:
        reply = await story(store, clock)
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


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_both_ways_give_the_same(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    short = store.plain

    def watched(units: Sequence[Unit], wanted: ClaimRequest | None) -> bool:
        taken.append(short(units, wanted))
        return taken[-1]

    monkeypatch.setattr(store, "plain", watched)
    found = await told(story)
    assert taken[-1], "the last call of the story is to be one for the short way"
    monkeypatch.setattr(store, "plain", lambda units, wanted: False)
    assert found == await told(story)
