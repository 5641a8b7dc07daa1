"""A refused unit has written nothing at all, and its neighbours do not notice."""

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
from .samples import STREAM, apply, claim, event, held, job, run, seqs, unit
from .scene import KEY, RUN, SCHEDULE, SLOT, SPARE, WAIT, Scene, set_scene
from .snapshot import picture
from .subject import StoreUnderTest

Spoil = Callable[[Store, FakeClock, Scene], Awaitable[Unit]]
RECORD = b'{"at":0}'


def _with(scene: Scene, **parts: Any) -> Unit:
    return msgspec.structs.replace(scene.whole(), **parts)


async def _wrong_token(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    return _with(scene, claim=msgspec.structs.replace(scene.claim, token="guessed"))


async def _wrong_attempt(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    return _with(scene, claim=msgspec.structs.replace(scene.claim, attempt=scene.claim.attempt + 1))


async def _finished_job(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    await apply(store, unit(claim=scene.claim, outcome=Completed()))
    return scene.whole()


async def _given_back_job(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    await apply(store, unit(claim=scene.claim, outcome=Released()))
    return scene.whole()


async def _expired_and_claimed_by_another(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    clock.advance("31s")
    assert scene.claim.job in [c.job for c in await claim(store, worker="w2", limit=1)]
    return scene.whole()


async def _version_behind(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    return _with(scene, run=run(RUN, 0))


async def _version_ahead(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    return _with(scene, run=run(RUN, 7))


async def _run_missing(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    return _with(scene, run=run("nobody", 1))


async def _take_gone(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    await apply(store, unit(removes=[SPARE]))
    return scene.whole()


async def _take_held(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    await held(store, "busy", "letters")
    return _with(scene, removes=[SPARE, "busy"])


async def _wait_closed(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    await apply(store, unit(waits=[SettleWait(WAIT, "expired")]))
    return scene.whole()


async def _wait_missing(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    return _with(scene, waits=[SettleWait("nothing", "resolved")])


async def _state_moved(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    await apply(store, unit(state=[StateWrite(KEY, b"2")]))
    return scene.whole()


async def _state_should_be_absent(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    return _with(scene, state=[StateWrite("seen", b"true"), StateWrite(KEY, b"2", expect=0)])


async def _state_is_absent(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    return _with(scene, state=[StateWrite("seen", b"true"), StateWrite("none", None, expect=1)])


async def _schedule_moved(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    await apply(store, unit(schedule=ScheduleMove(SCHEDULE, SLOT, SLOT + 60_000)))
    return scene.whole()


async def _schedule_missing(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    return _with(scene, schedule=ScheduleMove("never", SLOT, None))


async def _seen_before(store: Store, clock: FakeClock, scene: Scene) -> Unit:
    await apply(store, unit(once_key="delivery-77"))
    return scene.whole()


CASES: list[tuple[Spoil, Receipt]] = [
    (_wrong_token, Fenced()),
    (_wrong_attempt, Fenced()),
    (_finished_job, Fenced()),
    (_given_back_job, Fenced()),
    (_expired_and_claimed_by_another, Fenced()),
    (_version_behind, Conflict(1, RECORD)),
    (_version_ahead, Conflict(1, RECORD)),
    (_run_missing, Conflict(0, None)),
    (_take_gone, Refused("taken", SPARE)),
    (_take_held, Refused("taken", "busy")),
    (_wait_closed, Refused("wait", WAIT)),
    (_wait_missing, Refused("wait", "nothing")),
    (_state_moved, Refused("state", KEY)),
    (_state_should_be_absent, Refused("state", KEY)),
    (_state_is_absent, Refused("state", "none")),
    (_schedule_moved, Refused("schedule", SCHEDULE)),
    (_schedule_missing, Refused("schedule", "never")),
    (_seen_before, Refused("duplicate", "delivery-77")),
]
every_refusal = pytest.mark.parametrize(
    ("spoil", "expected"), CASES, ids=[spoil.__name__.lstrip("_") for spoil, _ in CASES]
)


class RefusalContract(StoreUnderTest):
    """One unit with everything in it, spoiled in one way after another."""

    @every_refusal
    async def test_a_refused_unit_leaves_no_trace(
        self, store: Store, clock: FakeClock, spoil: Spoil, expected: Receipt
    ) -> None:
        spoiled = await spoil(store, clock, await set_scene(store))
        before = await picture(store)
        assert await apply(store, spoiled) == expected
        assert await picture(store) == before
        # Not even its id is remembered: sent again, it is refused again.
        assert await apply(store, spoiled) == expected
        await _prove_unseen_parts_absent(store, expected)

    @every_refusal
    async def test_a_refused_unit_does_not_hurt_its_neighbours(
        self, store: Store, clock: FakeClock, spoil: Spoil, expected: Receipt
    ) -> None:
        spoiled = await spoil(store, clock, await set_scene(store))
        left = unit(events=[event("left")], jobs=[job("left")], state=[StateWrite("left", b"1")])
        right = unit(events=[event("right")], run=run("right"))
        reply = await store.commit([left, spoiled, right])
        now = clock.now_ms()
        assert reply.receipts == [Committed([(now, 3)], [True]), expected, Committed([(now, 4)])]
        assert [e.kind for e in await store.read(STREAM, limit=2, backward=True)] == ["right", "left"]
        assert await store.job("left") is not None
        assert await store.state("left") is not None
        assert await store.run("right") is not None

    async def test_the_sequence_goes_on_where_it_was_after_a_refusal(self, store: Store) -> None:
        scene = await set_scene(store)
        for _ in range(3):
            await apply(store, _with(scene, run=run(RUN, 9)))
        await apply(store, unit(events=[event()]))
        assert seqs(await store.read(STREAM)) == [1, 2, 3]

    async def test_a_conflict_tells_the_run_as_it_is_now(self, store: Store) -> None:
        await apply(store, unit(run=run("r", 0)))
        await apply(store, unit(run=run("r", 1, b'{"at":"newest"}')))
        stale = unit(run=run("r", 1))
        assert await apply(store, stale) == Conflict(2, b'{"at":"newest"}')
        again = unit(run=run("r", 2, b'{"at":"decided again"}'))
        assert isinstance(await apply(store, again), Committed)

    async def test_a_chain_sees_refusals_of_its_own_commit(self, store: Store) -> None:
        first, second = unit(run=run("r", 0, b'"first"')), unit(run=run("r", 0, b'"second"'))
        assert (await store.commit([first, second])).receipts[1] == Conflict(1, b'"first"')
        once = [unit(once_key="k", events=[event()]), unit(once_key="k", events=[event()])]
        assert (await store.commit(once)).receipts[1] == Refused("duplicate", "k")
        await apply(store, unit(jobs=[job("j")]))
        takes = [unit(removes=["j"], events=[event()]), unit(removes=["j"], events=[event()])]
        assert (await store.commit(takes)).receipts[1] == Refused("taken", "j")
        assert len(await store.read(STREAM)) == 2


async def _prove_unseen_parts_absent(store: Store, refusal: Receipt) -> None:
    """Memos, waits and once-keys show only in what they do."""
    assert await apply(store, unit(waits=[SettleWait("wait-2", "resolved")])) == Refused("wait", "wait-2")
    assert (await held(store, "probe", "probes", scope="r1.ship.1")).memos == {}
    if refusal != Refused("duplicate", "delivery-77"):
        assert await apply(store, unit(once_key="delivery-77")) == Committed()
