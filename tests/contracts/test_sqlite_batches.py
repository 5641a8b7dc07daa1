"""A batch of units has the same effect as the units one after another."""

from __future__ import annotations

import os
import random
from typing import Any

import msgspec
import pytest

from penstock.core.payload import MAX_PAYLOAD_BYTES
from penstock.ports.unit import (
    DELIVERIES,
    Cancelled,
    Claim,
    Committed,
    Completed,
    Conflict,
    Dead,
    JobState,
    Memo,
    Receipt,
    Released,
    RetryAt,
    SettleWait,
    StateWrite,
    Suspended,
    Unit,
)
from penstock.stores.sqlite import SqliteStore
from penstock.stores.sqlite.events import MAX_EVENTS_PER_DELIVERY
from penstock.testing.clock import FakeClock
from penstock.testing.contracts.samples import (
    ERROR,
    claim,
    claim_request,
    event,
    job,
    run,
    started,
    unit,
    user_event,
    wait,
)
from penstock.testing.contracts.store_under_test import take_snapshot

RUNS = [f"r{n}" for n in range(6)]
START = 1_700_000_000_000
OUTCOMES = [
    Completed(b"1"),
    Completed(),
    RetryAt(START + 5000, ERROR),
    Dead(ERROR),
    Suspended(),
    Cancelled("no"),
    Released(),
    None,
]


async def open_store() -> SqliteStore:
    store = SqliteStore(clock=FakeClock())
    await store.open()
    for id in RUNS:
        jobs = [job(f"{id}.s.{n}", run=id, started=started()) for n in range(2)]
        await store.commit([Unit(f"start-{id}", run=run(id), jobs=jobs, waits=[wait(f"w-{id}", id)])])
    await store.commit([Unit("spare", jobs=[job(f"plain-{n}", "plain") for n in range(4)])])
    return store


def add_maybe(rng: random.Random, chance: float, parts: dict[str, Any], **more: Any) -> None:
    if rng.random() < chance:
        parts.update(more)


def draw_unit(rng: random.Random, n: int, before: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the parts of a random unit, its claim as a number, and sometimes those of an earlier unit."""
    if before and rng.random() < 0.1:
        return rng.choice(before)
    id = rng.choice(RUNS)
    parts: dict[str, Any] = {"id": f"u{n}"}
    add_maybe(rng, 0.6, parts, claim=rng.randrange(8), outcome=rng.choice(OUTCOMES), progress=rng.choice([None, b"5"]))
    after = rng.choice([None, None, f"u{n - 1}"])
    closed = rng.random() < 0.2
    write = run(
        id,
        rng.choice([0, 1, 1, 2, 2, 3]),
        b'{"at":%d}' % n,
        after=after,
        closed=closed,
        cancel_jobs=closed and rng.random() < 0.5,
        status=rng.choice(["running", "other"]),
    )
    add_maybe(rng, 0.6, parts, run=write)
    add_maybe(rng, 0.6, parts, events=[event(data=n), event(stream=f"nq:flow:{id}", data=n)])
    new = [job(rng.choice([f"j{n}", f"j{n - 1}", "plain-1"]), rng.choice(["plain", "new"]), added=event("job.added"))]
    add_maybe(rng, 0.5, parts, jobs=new)
    add_maybe(rng, 0.1, parts, removes=[f"plain-{rng.randrange(4)}"])
    add_maybe(rng, 0.1, parts, wakes=[f"{id}.s.0"])
    add_maybe(rng, 0.2, parts, memos=[Memo(f"{id}.s.0", "m", b"%d" % n)])
    add_maybe(rng, 0.1, parts, waits=[SettleWait(f"w-{id}", "resolved")])
    add_maybe(rng, 0.2, parts, state=[StateWrite("k", b"%d" % n, expect=rng.choice([None, 0, 1]))])
    add_maybe(rng, 0.1, parts, once_key=rng.choice(["a", "b"]))
    return parts


def build_unit(parts: dict[str, Any], claims: list[Claim]) -> Unit:
    held = {"claim": claims[parts["claim"]]} if "claim" in parts else {}
    return Unit(**{**parts, **held})


def without_tokens(claims: list[Claim]) -> list[Claim]:
    return [msgspec.structs.replace(claim, token="") for claim in claims]


@pytest.mark.parametrize("seed", range(int(os.environ.get("PENSTOCK_BATCHES", "40"))))
async def test_a_batch_equals_its_units_one_after_another(seed: int) -> None:
    rng = random.Random(seed)
    batched, single = await open_store(), await open_store()
    try:
        first, second = [await claim(store, limit=8) for store in (batched, single)]
        assert without_tokens(first) == without_tokens(second)
        drawn: list[dict[str, Any]] = []
        for n in range(rng.choice([2, 5, 30])):
            drawn.append(draw_unit(rng, n, drawn))
        reply = await batched.commit(
            [build_unit(parts, first) for parts in drawn], claim_request("orders", "plain", "new")
        )
        receipts: list[Receipt] = []
        for parts in drawn:
            receipts += (await single.commit([build_unit(parts, second)])).receipts
        assert reply.receipts == receipts
        work = await single.claim(claim_request("orders", "plain", "new"))
        assert without_tokens(reply.claimed.claims) == without_tokens(work.claims)
        assert reply.claimed.next_due == work.next_due
        assert await take_snapshot(batched) == await take_snapshot(single)
        assert await batched.feed("") == await single.feed("")
    finally:
        await batched.close()
        await single.close()


async def test_a_unit_after_a_refused_one_conflicts_with_the_stored_record() -> None:
    store = await open_store()
    try:
        good, bad, third = unit(run=run("r0", 1, b"1")), unit(run=run("r0", 1, b"2")), unit(run=run("r0", 2, b"3"))
        third.run = msgspec.structs.replace(third.run, after=bad.id)
        reply = await store.commit([good, bad, third])
        assert reply.receipts == [Committed(), Conflict(2, b"1"), Conflict(2, b"1")]
    finally:
        await store.close()


async def test_any_bytes_are_preserved() -> None:
    """Nothing may decode payloads, options and records as text."""
    store = SqliteStore(clock=FakeClock())
    await store.open()
    try:
        every = bytes(range(256))
        odd = [every, b"", b"\x00", every[::-1]]
        for n, raw in enumerate(odd):
            new = msgspec.structs.replace(job(f"r{n}.s.1", run=f"r{n}"), payload=raw, opts=raw + b"!")
            await store.commit([unit(run=run(f"r{n}", record=b"?" + raw), jobs=[new])])
        claims = await claim(store)
        assert [(c.payload, c.opts, c.record) for c in claims] == [(raw, raw + b"!", b"?" + raw) for raw in odd]
    finally:
        await store.close()


async def test_one_job_delivers_events_of_a_kind() -> None:
    """Each delivery job costs a claim and a commit."""
    store = SqliteStore(clock=FakeClock())
    await store.open()
    await store.commit([unit(run=run("r"), waits=[wait(f"w-{kind}", "r", topic=kind) for kind in ("a", "b")])])
    await store.commit(
        [
            unit(events=[user_event(kind, data=n) for kind in ("a", "b", "c")])
            for n in range(MAX_EVENTS_PER_DELIVERY + 5)
        ]
    )
    large = unit(events=[user_event("a", data="x" * (MAX_PAYLOAD_BYTES // 3)) for _ in range(4)])
    await store.commit([large])
    payloads = [msgspec.json.decode(row.payload) for row in await store.jobs(DELIVERIES, JobState.WAITING)]
    bundles = [[one["body"]["kind"] for one in payload["events"]] for payload in payloads]
    assert bundles == [
        ["a"] * MAX_EVENTS_PER_DELIVERY,
        ["a"] * 5,
        ["b"] * MAX_EVENTS_PER_DELIVERY,
        ["b"] * 5,
        ["a"] * 2,
        ["a"] * 2,
    ]
    await store.close()
