"""Runs: record and version, lists, and what cancelling a run cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ...ports.store import Retention, RunRow, Store
from ...ports.unit import Committed, Completed, Conflict, SettleWait, Suspended
from ..clock import FakeClock
from .samples import add, apply, claim, claim_one, event, job, names, run, state_of, unit, wait
from .store_under_test import StoreUnderTest


def ids(rows: list[RunRow]) -> list[str]:
    return [row.id for row in rows]


class RunsContract(StoreUnderTest):
    """One record per run, one version per write."""

    async def test_a_new_run_has_version_one(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r", record=b'{"a":1}')))
        now = clock.now_ms()
        assert await store.run("r") == RunRow("r", 1, "shop", "running", False, now, now, b'{"a":1}')
        assert await store.run("missing") is None

    async def test_each_write_moves_the_version_by_one(self, store: Store, clock: FakeClock) -> None:
        created = clock.now_ms()
        for version, status in enumerate(["running", "running", "waiting", "completed"]):
            now = clock.advance("1s")
            await apply(
                store,
                unit(run=run("r", version, b"%d" % version, status=status, closed=status == "completed")),
            )
            row = RunRow("r", version + 1, "shop", status, status == "completed", created + 1000, now, b"%d" % version)
            assert await store.run("r") == row

    async def test_a_write_built_on_a_refused_unit_is_refused(self, store: Store) -> None:
        """Another commit has written the version with the number that the refused unit would have written."""
        await apply(store, unit(run=run("r")))
        refused, other = unit(run=run("r", 5)), unit(run=run("r", 1, b"other"))
        receipts = (await store.commit([refused, other])).receipts
        assert [type(receipt) for receipt in receipts] == [Conflict, Committed]
        built_on_refused = unit(run=run("r", 2, b"lost", after=refused.id))
        assert (await store.commit([built_on_refused])).receipts == [Conflict(2, b"other")]
        await apply(store, unit(run=run("r", 2, b"next", after=other.id)))

    async def test_a_run_keeps_its_kind(self, store: Store, clock: FakeClock) -> None:
        stream = "nq:entity:r"
        writes = {"jobs": [job("r.a.1", run="r")], "events": [event(stream=stream, data={"n": 1})]}
        await apply(store, unit(run=run("r", kind="entity"), **writes))
        assert (await claim_one(store)).kind == "entity"
        await apply(store, unit(run=run("r", 1, kind="entity", closed=True)))
        (row,) = await store.runs()
        assert (row.kind, row.closed) == ("entity", True)
        found = await store.run("r")
        assert found is not None
        assert found.kind == "entity"
        clock.advance("1d")
        await store.sweep(Retention(runs_before=clock.now_ms()))
        assert await store.read(stream) == [], "the stream of its kind goes with the run"

    async def test_a_closed_run_may_be_reopened(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")]))
        for version, closed in ((1, True), (2, False)):
            # The same status on purpose: only `closed` decides whether a run is open.
            await apply(store, unit(run=run("r", version, closed=closed)))
            row = await store.run("r")
            assert row is not None
            assert row.closed is closed
        assert names(await claim(store)) == ["r.a.1"]

    async def test_newest_first_with_pages(self, store: Store, clock: FakeClock) -> None:
        for n in range(7):
            await apply(store, unit(run=run(f"r{n}")))
            clock.advance("1s" if n % 3 else 0)  # some share a millisecond
        everything = ids(await store.runs())
        assert sorted(everything) == [f"r{n}" for n in range(7)]
        assert [row.created for row in await store.runs()] == sorted(
            (r.created for r in await store.runs()), reverse=True
        )
        assert await _paged(store) == everything
        assert len(await store.runs(limit=2)) == 2

    async def test_lists_by_flow_and_status_with_pages(self, store: Store, clock: FakeClock) -> None:
        flows = {f"r{n}": ("shop" if n % 2 else "mail", "failed" if n % 3 else "running") for n in range(12)}
        for id, (flow, status) in flows.items():
            await apply(store, unit(run=run(id, flow=flow, status=status)))
            clock.advance("1ms")
        newest = list(reversed(flows))
        assert await _paged(store, flow="shop") == [id for id in newest if flows[id][0] == "shop"]
        assert await _paged(store, statuses=["failed"]) == [id for id in newest if flows[id][1] == "failed"]
        both = [id for id in newest if flows[id] == ("shop", "failed")]
        assert await _paged(store, flow="shop", statuses=["failed"]) == both
        assert await store.runs(flow="none") == []

    async def test_lists_by_several_statuses_with_pages(self, store: Store, clock: FakeClock) -> None:
        statuses = ("running", "waiting", "failed", "completed")
        runs = {f"r{n:02}": ("shop" if n % 2 else "mail", statuses[n * 5 // 3 % 4]) for n in range(17)}
        for id, (flow, status) in runs.items():
            first = event("flow.started", f"nq:flow:{id}", {"input": id})
            await apply(store, unit(run=run(id, flow=flow, status=status, keys=("k",)), events=[first]))
            clock.advance("1ms" if int(id[1:]) % 3 else 0)
        everything = ids(await store.runs())
        wanted = ("failed", "running", "none")
        found = [id for id in everything if runs[id][1] in wanted]
        assert 4 < len(found) < len(runs)
        assert await _paged(store, statuses=wanted) == await _paged(store, statuses=wanted, keys=["k"]) == found
        assert await _paged(store, "shop", wanted) == [id for id in found if runs[id][0] == "shop"]
        (one, *_) = found
        assert await _paged(store, statuses=wanted, first_event={"data": {"input": one}}) == [one]
        assert await _paged(store, statuses=["none"]) == []

    async def test_a_run_that_changes_its_status_is_in_every_list(self, store: Store) -> None:
        await apply(store, unit(run=run("r", status="running")))
        await store.commit([unit(run=run(f"x{n}")) for n in range(50)])

        async def change() -> None:
            for version in range(1, 40):
                await apply(store, unit(run=run("r", version, status=("running", "waiting")[version % 2])))

        changing = asyncio.create_task(change())
        lists = 0
        while not changing.done():
            assert ids(await store.runs(statuses=["running", "waiting"], limit=100)).count("r") == 1
            lists += 1
        await changing
        assert lists > 1

    async def test_a_list_shows_the_new_status(self, store: Store) -> None:
        await apply(store, unit(run=run("r")))
        await apply(store, unit(run=run("r", 1, status="failed", closed=True)))
        assert ids(await store.runs(statuses=["running"])) == []
        assert ids(await store.runs(statuses=["failed"])) == ["r"]

    async def test_cancelling_cancels_waiting_jobs_but_not_active_ones(self, store: Store, clock: FakeClock) -> None:
        later = clock.now_ms() + 60_000
        steps = [job("r.run.1", run="r"), job("r.gone.1", run="r"), job("r.done.1", run="r")]
        await apply(store, unit(run=run("r"), jobs=steps))
        running, suspended, done = await claim(store)
        await apply(store, unit(claim=suspended, outcome=Suspended()))
        await apply(store, unit(claim=done, outcome=Completed()))
        await add(store, job("r.wait.1", run="r"), job("r.late.1", run="r", due=later), job("alone"))
        # The cancelling unit's own jobs are added afterwards, such as compensation jobs.
        undo = job("r.undo.1", run="r")
        receipt = await apply(store, unit(run=run("r", 1, status="cancelling", cancel_jobs=True), jobs=[undo]))
        assert receipt == Committed(added=[True])
        states = {id: await state_of(store, id) for id in ("r.wait.1", "r.late.1", suspended.job, done.job, "alone")}
        assert list(states.values()) == ["cancelled", "cancelled", "cancelled", "completed", "waiting"]
        assert await state_of(store, running.job) == "active"
        row = await store.job("r.wait.1")
        assert row is not None
        assert row.finished == clock.now_ms()
        clock.set_ms(later)
        assert "r.late.1" not in names(await claim(store, worker="w2"))

    async def test_cancelling_does_not_touch_runs_with_a_similar_id(self, store: Store) -> None:
        for id in ("a", "a.b", "ab", "a-", "a.b.c"):
            await apply(store, unit(run=run(id), jobs=[job(f"{id}.step.1", run=id)]))
        await apply(store, unit(run=run("a", 1, status="cancelled", closed=True, cancel_jobs=True)))
        assert await state_of(store, "a.step.1") == "cancelled"
        assert names(await claim(store)) == ["a.b.step.1", "ab.step.1", "a-.step.1", "a.b.c.step.1"]

    async def test_the_last_attempt_may_close_its_own_run(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r"), job("r.b.1", run="r")]))
        one = await claim_one(store)
        closing = run("r", 1, status="failed", closed=True, cancel_jobs=True)
        assert isinstance(await apply(store, unit(claim=one, outcome=Completed(b"1"), run=closing)), Committed)
        assert [await state_of(store, id) for id in ("r.a.1", "r.b.1")] == ["completed", "cancelled"]

    async def test_stuck_runs_have_no_job_and_no_wait(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("waiting"), jobs=[job("waiting.a.1", run="waiting")]))
        await apply(store, unit(run=run("delayed"), jobs=[job("delayed.a.1", run="delayed", due=clock.now_ms() + 9)]))
        await apply(store, unit(run=run("pending"), waits=[wait("w", "pending")]))
        await apply(store, unit(run=run("closed", status="completed", closed=True)))
        for id in ("active", "suspended"):
            await apply(store, unit(run=run(id), jobs=[job(f"{id}.a.1", "blue", run=id)]))
        _, suspended = await claim(store, "blue")
        await apply(store, unit(claim=suspended, outcome=Suspended()))
        assert await store.stuck_runs() == []

        await apply(store, unit(run=run("loose"), events=[event()]))
        await apply(store, unit(run=run("loose.b"), jobs=[job("loose.b.a.1", run="loose.b")]))
        await apply(store, unit(run=run("done"), jobs=[job("done.a.1", "green", run="done")]))
        await apply(store, unit(claim=await claim_one(store, "green"), outcome=Completed()))
        await apply(store, unit(waits=[SettleWait("w", "resolved")]))
        assert sorted(await store.stuck_runs()) == ["done", "loose", "pending"]
        assert len(await store.stuck_runs(limit=2)) == 2


async def _paged(store: Store, flow: str | None = None, statuses: Sequence[str] = (), **which: Any) -> list[str]:
    found: list[str] = []
    while page := await store.runs(flow=flow, statuses=statuses, **which, before=found[-1] if found else None, limit=2):
        found += ids(page)
    return found
