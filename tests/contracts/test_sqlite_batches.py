"""A batch of units does what they do one after another."""

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
from penstock.stores.sqlite.append import TOGETHER
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
from penstock.testing.contracts.snapshot import take_snapshot

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


async def opened() -> SqliteStore:
    store = SqliteStore(clock=FakeClock())
    await store.open()
    for id in RUNS:
        jobs = [job(f"{id}.s.{n}", run=id, started=started()) for n in range(2)]
        await store.commit([Unit(f"start-{id}", run=run(id), jobs=jobs, waits=[wait(f"w-{id}", id)])])
    await store.commit([Unit("spare", jobs=[job(f"plain-{n}", "plain") for n in range(4)])])
    return store


def maybe(luck: random.Random, chance: float, parts: dict[str, Any], **more: Any) -> None:
    if luck.random() < chance:
        parts.update(more)


def some_unit(luck: random.Random, n: int, before: list[dict[str, Any]]) -> dict[str, Any]:
    """The parts of a unit, its claim as a number; now and then one that was there already."""
    if before and luck.random() < 0.1:
        return luck.choice(before)
    id = luck.choice(RUNS)
    parts: dict[str, Any] = {"id": f"u{n}"}
    maybe(luck, 0.6, parts, claim=luck.randrange(8), outcome=luck.choice(OUTCOMES), progress=luck.choice([None, b"5"]))
    after = luck.choice([None, None, f"u{n - 1}"])
    closed = luck.random() < 0.2
    write = run(
        id,
        luck.choice([0, 1, 1, 2, 2, 3]),
        b'{"at":%d}' % n,
        after=after,
        closed=closed,
        cancel_jobs=closed and luck.random() < 0.5,
        status=luck.choice(["running", "other"]),
    )
    maybe(luck, 0.6, parts, run=write)
    maybe(luck, 0.6, parts, events=[event(data=n), event(stream=f"nq:flow:{id}", data=n)])
    new = [job(luck.choice([f"j{n}", f"j{n - 1}", "plain-1"]), luck.choice(["plain", "new"]), added=event("job.added"))]
    maybe(luck, 0.5, parts, jobs=new)
    maybe(luck, 0.1, parts, removes=[f"plain-{luck.randrange(4)}"])
    maybe(luck, 0.1, parts, wakes=[f"{id}.s.0"])
    maybe(luck, 0.2, parts, memos=[Memo(f"{id}.s.0", "m", b"%d" % n)])
    maybe(luck, 0.1, parts, waits=[SettleWait(f"w-{id}", "resolved")])
    maybe(luck, 0.2, parts, state=[StateWrite("k", b"%d" % n, expect=luck.choice([None, 0, 1]))])
    maybe(luck, 0.1, parts, once_key=luck.choice(["a", "b"]))
    return parts


def made(parts: dict[str, Any], claims: list[Claim]) -> Unit:
    held = {"claim": claims[parts["claim"]]} if "claim" in parts else {}
    return Unit(**{**parts, **held})


def without_secrets(claims: list[Claim]) -> list[Claim]:
    return [msgspec.structs.replace(claim, token="") for claim in claims]


@pytest.mark.parametrize("seed", range(int(os.environ.get("PENSTOCK_BATCHES", "40"))))
async def test_a_batch_is_its_units_one_after_another(seed: int) -> None:
    luck = random.Random(seed)
    together, alone = await opened(), await opened()
    try:
        first, second = [await claim(store, limit=8) for store in (together, alone)]
        assert without_secrets(first) == without_secrets(second)
        drawn: list[dict[str, Any]] = []
        for n in range(luck.choice([2, 5, 30])):
            drawn.append(some_unit(luck, n, drawn))
        reply = await together.commit([made(parts, first) for parts in drawn], claim_request("orders", "plain", "new"))
        receipts: list[Receipt] = []
        for parts in drawn:
            receipts += (await alone.commit([made(parts, second)])).receipts
        assert reply.receipts == receipts
        work = await alone.claim(claim_request("orders", "plain", "new"))
        assert without_secrets(reply.claimed.claims) == without_secrets(work.claims)
        assert reply.claimed.next_due == work.next_due
        assert await take_snapshot(together) == await take_snapshot(alone)
        assert await together.feed("") == await alone.feed("")
    finally:
        await together.close()
        await alone.close()


async def test_a_unit_after_a_refused_one_of_its_run_is_told_what_is_stored() -> None:
    store = await opened()
    try:
        good, bad, third = unit(run=run("r0", 1, b"1")), unit(run=run("r0", 1, b"2")), unit(run=run("r0", 2, b"3"))
        third.run = msgspec.structs.replace(third.run, after=bad.id)
        reply = await store.commit([good, bad, third])
        assert reply.receipts == [Committed(), Conflict(2, b"1"), Conflict(2, b"1")]
    finally:
        await store.close()


async def test_any_bytes_come_back_as_they_were() -> None:
    """Claims are read as text and bytes end to end; nothing may take the bytes for text."""
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


async def test_events_of_a_kind_are_told_of_by_one_job() -> None:
    """Each job costs a claim and a commit."""
    store = SqliteStore(clock=FakeClock())
    await store.open()
    await store.commit([unit(run=run("r"), waits=[wait(f"w-{kind}", "r", topic=kind) for kind in ("a", "b")])])
    await store.commit(
        [unit(events=[user_event(kind, data=n) for kind in ("a", "b", "c")]) for n in range(TOGETHER + 5)]
    )
    large = unit(events=[user_event("a", data="x" * (MAX_PAYLOAD_BYTES // 3)) for _ in range(4)])
    await store.commit([large])
    payloads = [msgspec.json.decode(row.payload) for row in await store.jobs(DELIVERIES, JobState.WAITING)]
    bundles = [[one["body"]["kind"] for one in payload["events"]] for payload in payloads]
    assert bundles == [["a"] * TOGETHER, ["a"] * 5, ["b"] * TOGETHER, ["b"] * 5, ["a"] * 2, ["a"] * 2]
    await store.close()
