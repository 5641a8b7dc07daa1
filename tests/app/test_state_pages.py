"""`state.list` returns a page that says whether it was cut."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Context, flow


@pytest.mark.spec("000-4.3.4")
async def test_pages_of_the_shared_state(app: Any) -> None:
    async with app() as a:
        for n in range(5):
            await a.state.set(f"k{n}", n)
        first = await a.state.list("k", limit=2)
        assert (first, first.next) == ({"k0": 0, "k1": 1}, "k1")
        second = await a.state.list("k", after=first.next, limit=3)
        assert (second, second.next) == ({"k2": 2, "k3": 3, "k4": 4}, None)
        assert (await a.state.list("k", limit=5)).next is None


async def test_pages_in_a_handler_count_its_own_writes(app: Any) -> None:
    pages: list[Any] = []

    @flow("pages")
    async def work(input: Any, ctx: Context) -> None:
        for n in range(4):
            ctx.state.set(f"k{n}", n)
        await ctx.wait.time("1ms")
        ctx.state.delete("k1")
        ctx.state.set("k9", 9)
        page = await ctx.state.list("k", limit=2)
        pages.append((dict(page), page.next))
        page = await ctx.state.list("k", after=page.next, limit=2)
        pages.append((dict(page), page.next))

    async with app(work) as a, a.workers.background():
        await a.run_to_end("pages")
    assert pages == [({"k0": 0, "k2": 2}, "k2"), ({"k3": 3, "k9": 9}, None)]
