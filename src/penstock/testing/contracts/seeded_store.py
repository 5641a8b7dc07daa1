"""A store seeded with one of everything, and a unit that changes all of it at once."""

from __future__ import annotations

import msgspec

from ...ports.store import ScheduleRow, Store
from ...ports.unit import (
    Claim,
    Committed,
    Completed,
    Memo,
    ScheduleMove,
    SettleWait,
    StateWrite,
    Unit,
)
from .samples import STREAM, apply, claim_one, event, job, run, unit, wait

RUN = "r1"
JOB = "r1.charge.1"
SPARE = "spare"
WAIT = "wait-1"
KEY = "cart"
SCHEDULE = "nightly"
SLOT = 1_700_000_060_000
OTHER_STREAM = "nq:flow:r1"
EVENTS_BEFORE = 2  # in STREAM, so that the next sequence is 3


class SeededStore(msgspec.Struct, frozen=True):
    """The seeded data; `claim` is the claim of JOB."""

    claim: Claim

    def full_unit(self) -> Unit:
        """Build a unit with every part, all of them valid."""
        return unit(
            claim=self.claim,
            outcome=Completed(b'{"paid":true}'),
            progress=b'{"percent":100}',
            run=run(RUN, 1, b'{"at":1}', status="closing"),
            events=[event("order.paid"), event("step.completed", OTHER_STREAM), event("order.closed")],
            jobs=[job("r1.ship.1", run=RUN), job("mail", "letters")],
            memos=[Memo("r1.ship.1", "rate#1", b"1.5")],
            waits=[SettleWait(WAIT, "resolved"), wait("wait-2", RUN)],
            state=[StateWrite(KEY, b'"full"', expect=1), StateWrite("seen", b"true")],
            removes=[SPARE],
            schedule=ScheduleMove(SCHEDULE, SLOT, SLOT + 60_000),
            once_key="delivery-77",
        )


async def seed_store(store: Store) -> SeededStore:
    """Write one schedule, run, job, wait and state key, and claim JOB."""
    await store.put_schedule(ScheduleRow(SCHEDULE, b'{"cron":"* * * * *"}', b'{"flow":"shop"}', SLOT), None)
    await store.commit([unit(events=[event("order.created"), event("order.noted")])])
    receipt = await apply(
        store,
        unit(
            run=run(RUN),
            jobs=[job(JOB, run=RUN)],
            waits=[wait(WAIT, RUN)],
            state=[StateWrite(KEY, b'"empty"')],
        ),
    )
    assert isinstance(receipt, Committed)
    claim = await claim_one(store)
    await store.commit([unit(jobs=[job(SPARE)])])
    assert len(await store.read(STREAM)) == EVENTS_BEFORE
    return SeededStore(claim)
