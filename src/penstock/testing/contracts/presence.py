"""Presence: workers that report themselves, and expire if they no longer do."""

from __future__ import annotations

from ...ports.monitoring import WorkerRow
from ...ports.store import Retention, Store
from ..clock import FakeClock
from .store_under_test import StoreUnderTest


class PresenceContract(StoreUnderTest):
    """A worker is listed from its first report until it is removed, or until its last report expires."""

    async def test_no_worker_has_reported(self, store: Store) -> None:
        assert await store.workers() == []

    async def test_workers_are_listed_by_id_with_their_last_report(self, store: Store, clock: FakeClock) -> None:
        first = clock.now_ms()
        await store.report_worker("b", b'{"n":1}', 1000)
        await store.report_worker("a", b'{"n":2}', 3000)
        clock.advance("500ms")
        await store.report_worker("b", b'{"n":3}', 1000)
        assert await store.workers() == [
            WorkerRow("a", b'{"n":2}', first, first + 3000),
            WorkerRow("b", b'{"n":3}', first + 500, first + 1500),
        ]

    async def test_a_worker_that_no_longer_reports_expires(self, store: Store, clock: FakeClock) -> None:
        await store.report_worker("a", b"{}", 1000)
        clock.advance("999ms")
        assert [row.id for row in await store.workers()] == ["a"]
        clock.advance("1ms")
        assert await store.workers() == []
        await store.report_worker("a", b"{}", 1000)  # it was only stopped for a while
        assert [row.id for row in await store.workers()] == ["a"]

    async def test_a_worker_that_stops_is_removed(self, store: Store) -> None:
        await store.report_worker("a", b"{}", 1000)
        await store.report_worker("b", b"{}", 1000)
        await store.remove_worker("a")
        await store.remove_worker("unknown")
        assert [row.id for row in await store.workers()] == ["b"]

    async def test_a_sweep_removes_expired_reports(self, store: Store, clock: FakeClock) -> None:
        for id in ("a", "b", "c"):
            await store.report_worker(id, b"{}", 1000)
        clock.advance("1s")
        await store.report_worker("b", b"{}", 1000)
        assert (await store.sweep(Retention(), limit=1))["others"] == 1
        assert (await store.sweep(Retention(), limit=10))["others"] == 1
        assert (await store.sweep(Retention(), limit=10))["others"] == 0
        assert [row.id for row in await store.workers()] == ["b"]

    async def test_facts_come_back_byte_for_byte(self, store: Store) -> None:
        facts = b'{"host":"caf\xc3\xa9\\n","lines":"a\\nb"}\n{"more":1}'
        await store.report_worker("a", facts, 1000)
        assert [row.facts for row in await store.workers()] == [facts]
