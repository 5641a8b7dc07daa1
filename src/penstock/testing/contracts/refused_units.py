"""A refused unit writes nothing and does not affect other units of its commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from ...ports.store import Store
from ...ports.unit import (
    Committed,
    Completed,
    Conflict,
    Fenced,
    Receipt,
    Refused,
    Released,
    ScheduleMove,
    SettleWait,
    StateWrite,
    Unit,
)
from ..clock import FakeClock
from .samples import STREAM, add_and_claim, apply, claim, event, job, run, seqs, unit
from .seeded_store import KEY, RUN, SCHEDULE, SLOT, SPARE, WAIT, SeededStore, seed_store
from .store_under_test import StoreUnderTest, take_snapshot

Invalidate = Callable[[Store, FakeClock, SeededStore], Awaitable[Unit]]
RECORD = b'{"at":0}'


def _with(seeded: SeededStore, **parts: Any) -> Unit:
    return msgspec.structs.replace(seeded.full_unit(), **parts)


async def _wrong_token(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    return _with(seeded, claim=msgspec.structs.replace(seeded.claim, token="guessed"))


async def _wrong_attempt(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    return _with(seeded, claim=msgspec.structs.replace(seeded.claim, attempt=seeded.claim.attempt + 1))


async def _finished_job(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    await apply(store, unit(claim=seeded.claim, outcome=Completed()))
    return seeded.full_unit()


async def _released_job(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    await apply(store, unit(claim=seeded.claim, outcome=Released()))
    return seeded.full_unit()


async def _expired_and_claimed_by_another(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    clock.advance("31s")
    assert seeded.claim.job in [c.job for c in await claim(store, worker="w2", limit=1)]
    return seeded.full_unit()


async def _version_behind(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    return _with(seeded, run=run(RUN, 0))


async def _version_ahead(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    return _with(seeded, run=run(RUN, 7))


async def _run_missing(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    return _with(seeded, run=run("missing", 1))


async def _remove_missing(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    await apply(store, unit(removes=[SPARE]))
    return seeded.full_unit()


async def _remove_active(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    await add_and_claim(store, "busy", "letters")
    return _with(seeded, removes=[SPARE, "busy"])


async def _wait_settled(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    await apply(store, unit(waits=[SettleWait(WAIT, "expired")]))
    return seeded.full_unit()


async def _wait_missing(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    return _with(seeded, waits=[SettleWait("nothing", "resolved")])


async def _state_moved(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    await apply(store, unit(state=[StateWrite(KEY, b"2")]))
    return seeded.full_unit()


async def _state_should_be_absent(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    return _with(seeded, state=[StateWrite("seen", b"true"), StateWrite(KEY, b"2", expect=0)])


async def _state_is_absent(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    return _with(seeded, state=[StateWrite("seen", b"true"), StateWrite("none", None, expect=1)])


async def _schedule_moved(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    await apply(store, unit(schedule=ScheduleMove(SCHEDULE, SLOT, SLOT + 60_000)))
    return seeded.full_unit()


async def _schedule_missing(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    return _with(seeded, schedule=ScheduleMove("never", SLOT, None))


async def _once_key_used(store: Store, clock: FakeClock, seeded: SeededStore) -> Unit:
    await apply(store, unit(once_key="delivery-77"))
    return seeded.full_unit()


CASES: list[tuple[Invalidate, Receipt]] = [
    (_wrong_token, Fenced()),
    (_wrong_attempt, Fenced()),
    (_finished_job, Fenced()),
    (_released_job, Fenced()),
    (_expired_and_claimed_by_another, Fenced()),
    (_version_behind, Conflict(1, RECORD)),
    (_version_ahead, Conflict(1, RECORD)),
    (_run_missing, Conflict(0, None)),
    (_remove_missing, Refused("taken", SPARE)),
    (_remove_active, Refused("taken", "busy")),
    (_wait_settled, Refused("wait", WAIT)),
    (_wait_missing, Refused("wait", "nothing")),
    (_state_moved, Refused("state", KEY)),
    (_state_should_be_absent, Refused("state", KEY)),
    (_state_is_absent, Refused("state", "none")),
    (_schedule_moved, Refused("schedule", SCHEDULE)),
    (_schedule_missing, Refused("schedule", "never")),
    (_once_key_used, Refused("duplicate", "delivery-77")),
]
every_refusal = pytest.mark.parametrize(
    ("invalidate", "expected"), CASES, ids=[invalidate.__name__.lstrip("_") for invalidate, _ in CASES]
)


class RefusalContract(StoreUnderTest):
    """A unit with every part, made invalid in one way at a time."""

    @every_refusal
    async def test_a_refused_unit_writes_nothing(
        self, store: Store, clock: FakeClock, invalidate: Invalidate, expected: Receipt
    ) -> None:
        refused = await invalidate(store, clock, await seed_store(store))
        before = await take_snapshot(store)
        assert await apply(store, refused) == expected
        assert await take_snapshot(store) == before
        # The store does not remember its id either: repeated, it is refused again.
        assert await apply(store, refused) == expected
        await _check_hidden_parts_absent(store, expected)

    @every_refusal
    async def test_a_refused_unit_does_not_affect_other_units(
        self, store: Store, clock: FakeClock, invalidate: Invalidate, expected: Receipt
    ) -> None:
        refused = await invalidate(store, clock, await seed_store(store))
        left = unit(events=[event("left")], jobs=[job("left")], state=[StateWrite("left", b"1")])
        right = unit(events=[event("right")], run=run("right"))
        reply = await store.commit([left, refused, right])
        now = clock.now_ms()
        assert reply.receipts == [Committed([(now, 3)], [True]), expected, Committed([(now, 4)])]
        assert [e.kind for e in await store.read(STREAM, limit=2, backward=True)] == ["right", "left"]
        assert await store.job("left") is not None
        assert await store.state("left") is not None
        assert await store.run("right") is not None

    async def test_the_sequence_has_no_gap_after_a_refusal(self, store: Store) -> None:
        seeded = await seed_store(store)
        for _ in range(3):
            await apply(store, _with(seeded, run=run(RUN, 9)))
        await apply(store, unit(events=[event()]))
        assert seqs(await store.read(STREAM)) == [1, 2, 3]

    async def test_a_conflict_returns_the_current_run(self, store: Store) -> None:
        await apply(store, unit(run=run("r", 0)))
        await apply(store, unit(run=run("r", 1, b'{"at":"newest"}')))
        stale = unit(run=run("r", 1))
        assert await apply(store, stale) == Conflict(2, b'{"at":"newest"}')
        again = unit(run=run("r", 2, b'{"at":"decided again"}'))
        assert isinstance(await apply(store, again), Committed)

    async def test_a_unit_sees_earlier_units_of_its_own_commit(self, store: Store) -> None:
        first, second = unit(run=run("r", 0, b'"first"')), unit(run=run("r", 0, b'"second"'))
        assert (await store.commit([first, second])).receipts[1] == Conflict(1, b'"first"')
        once = [unit(once_key="k", events=[event()]), unit(once_key="k", events=[event()])]
        assert (await store.commit(once)).receipts[1] == Refused("duplicate", "k")
        await apply(store, unit(jobs=[job("j")]))
        takes = [unit(removes=["j"], events=[event()]), unit(removes=["j"], events=[event()])]
        assert (await store.commit(takes)).receipts[1] == Refused("taken", "j")
        assert len(await store.read(STREAM)) == 2


async def _check_hidden_parts_absent(store: Store, refusal: Receipt) -> None:
    """Check that memos, waits and once-keys, which no snapshot shows, were not written."""
    assert await apply(store, unit(waits=[SettleWait("wait-2", "resolved")])) == Refused("wait", "wait-2")
    assert (await add_and_claim(store, "probe", "probes", scope="r1.ship.1")).memos == {}
    if refusal != Refused("duplicate", "delivery-77"):
        assert await apply(store, unit(once_key="delivery-77")) == Committed()
