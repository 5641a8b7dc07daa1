"""Run search: by creation time and by the data of the first event, with the same meaning on every store."""

from __future__ import annotations

from typing import Any

from ...ports.store import Store
from ...stores import run_search
from ..clock import FakeClock
from .samples import apply, event, run, unit
from .store_under_test import StoreUnderTest

# The input of a run, the searched part, whether the run is found.
MATCHES: list[tuple[Any, Any, bool]] = [
    ({"customer": 7, "lines": []}, {"customer": 7}, True),
    ({"customer": 7}, {"customer": 7.0}, True),
    ({"customer": 7}, {"customer": "7"}, False),
    ({"customer": 7}, {"customer": 7, "paid": None}, False),
    ({"customer": 7, "paid": None}, {"paid": None}, True),
    ({"customer": True}, {"customer": 1}, False),
    ({"customer": False}, {"customer": None}, False),
    ({"to": {"town": "Köln", "zip": "1"}}, {"to": {"town": "Köln"}}, True),
    ({"to": {"town": "Köln"}}, {"town": "Köln"}, False),
    ({"lines": [{"sku": "a", "n": 2}, {"sku": "b"}]}, {"lines": [{"sku": "b"}]}, True),
    ({"lines": [{"sku": "a", "n": 2}, {"sku": "b", "n": 1}]}, {"lines": [{"sku": "b", "n": 2}]}, False),
    ({"lines": [[1, 2], [3]]}, {"lines": [[2]]}, True),
    ({"lines": ["a"]}, {"lines": "a"}, False),
    ({"lines": []}, {"lines": {}}, False),
    ({"lines": ["a"]}, {"lines": []}, True),
    ({"rate": 0.1}, {"rate": 0.1}, True),
    ({"rate": 1e22}, {"rate": 1e22}, True),
    ({"note": "a\0b"}, {"note": "a\0b"}, True),
    ({"note": "a\0b"}, {"note": "a\x01b"}, False),
    ({"note": "a\0b", "customer": 7}, {"customer": 7}, True),
    ({"note": "\\u0000"}, {"note": "\\u0000"}, True),
    ({"note": "\\u0000"}, {"note": "\0"}, False),
    ({"note": 'it\'s "so" \U0001f9ea'}, {"note": 'it\'s "so" \U0001f9ea'}, True),
    ("alone", "alone", True),
    ("alone", "al", False),
    ([1, 2], [2], True),
    ([1, 2], 2, False),
    (None, {"customer": 7}, False),
]


async def start_run(store: Store, id: str, input: Any = None, **fields: Any) -> None:
    first = event("flow.started", f"nq:flow:{id}", {"input": input})
    later = event("step.completed", f"nq:flow:{id}", {"input": "later"})
    await apply(store, unit(run=run(id, **fields), events=[first, later]))


async def find(store: Store, input: Any, **which: Any) -> list[str]:
    return [row.id for row in await store.runs(first_event={"data": {"input": input}}, **which)]


class RunSearchContract(StoreUnderTest):
    """One meaning of containment on every store, with pages."""

    async def test_runs_are_found_by_a_part_of_their_input(self, store: Store) -> None:
        for n, (input, _, _) in enumerate(MATCHES):
            await start_run(store, f"r{n}", input)
        found = [f"r{n}" in await find(store, wanted) for n, (_, wanted, _) in enumerate(MATCHES)]
        assert found == [expected for _, _, expected in MATCHES]

    async def test_only_the_first_event_counts(self, store: Store) -> None:
        await start_run(store, "r", "first")
        assert await find(store, "later") == []
        assert await find(store, "first") == ["r"]
        await store.trim("nq:flow:r", keep=1)
        assert await find(store, "first") == await find(store, "later") == []

    async def test_streams_that_are_not_runs_are_not_found(self, store: Store) -> None:
        await start_run(store, "r", 7)
        for stream in ("nq:entity:r", "nq:flow:gone", "xx:flow:r", "nq:queue:r"):
            await apply(store, unit(events=[event("flow.started", stream, {"input": 8})]))
        assert await find(store, 8) == []

    async def test_when_a_run_was_created(self, store: Store, clock: FakeClock) -> None:
        created: dict[str, int] = {}
        for n in range(6):
            await start_run(store, f"r{n}", n % 2)
            created[f"r{n}"] = clock.now_ms()
            clock.advance("1ms" if n % 2 else 0)  # two share a millisecond
        for since in (None, *created.values()):
            for until in (None, *created.values()):
                wanted = [
                    id for id, ms in created.items() if (since is None or ms >= since) and (until is None or ms < until)
                ]
                rows = await store.runs(since=since, until=until)
                assert sorted(row.id for row in rows) == wanted
                odd = [id for id in wanted if int(id[1:]) % 2]
                assert sorted(await find(store, 1, since=since, until=until)) == odd

    async def test_all_filters_together_with_pages(self, store: Store, clock: FakeClock) -> None:
        for n in range(24):
            fields = {"flow": "shop" if n % 2 else "mail", "status": "failed" if n % 3 else "running"}
            await start_run(store, f"r{n:02}", {"customer": n % 4}, **fields)
            clock.advance("1ms" if n % 5 else 0)
        start = (await store.runs(limit=1))[0].created - 14
        which = {"flow": "shop", "statuses": ["failed"], "since": start}
        wanted = [row.id for row in await store.runs(**which) if int(row.id[1:]) % 4 == 1]  # type: ignore[arg-type]
        assert len(wanted) > 2
        found: list[str] = []
        while page := await find(store, {"customer": 1}, before=found[-1] if found else None, limit=2, **which):
            found += page
        assert found == wanted

    async def test_a_search_reads_beyond_the_first_page(self, store: Store) -> None:
        await start_run(store, "a", "rare")
        for n in range(run_search.PAGE_RUNS + 1):
            await start_run(store, f"b{n}", "common")
        assert await find(store, "rare") == ["a"]
        assert len(await find(store, "common", limit=1000)) == run_search.PAGE_RUNS + 1
