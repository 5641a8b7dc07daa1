"""Apps of several namespaces in one process share connections, and nothing else."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

import postgres_server
import redis_server
from penstock import App, Context, flow
from penstock.app import SharedConnections
from penstock.core.errors import StoreClosed, StoreError
from penstock.testing.until import until

NAMESPACES = [f"tenant{n}" for n in range(20)]


@flow("whoami", emits=[])
async def whoami(input: Any, ctx: Context) -> Any:
    await ctx.state.set("name", input)
    event = await ctx.wait.event("go")
    return [input, event.data, await ctx.state.get("name")]


async def open_all(stack: AsyncExitStack, url: str, shared: SharedConnections | None, count: int = 20) -> list[App]:
    apps = [App(url, namespace=name, handlers=[whoami], connections=shared) for name in NAMESPACES[:count]]
    return [await stack.enter_async_context(app) for app in apps]


async def run_each(apps: list[App]) -> None:
    """Run a flow with a wait in each namespace, with a worker in each."""
    names = NAMESPACES[: len(apps)]
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app.workers.background())
        runs = [await app.start("whoami", name) for app, name in zip(apps, names, strict=True)]
        for app, name in zip(apps, names, strict=True):
            await app.emit("go", name)
        found = await asyncio.gather(*(app.result(run, timeout=30) for app, run in zip(apps, runs, strict=True)))
        assert found == [[name, name, name] for name in names]
    for app in apps:
        assert len(await app.runs.list()) == 1, "each namespace sees its own run only"


async def count_redis(app: App) -> int:
    clients = (await app.store._client.call("CLIENT", "LIST")).decode()  # type: ignore[attr-defined]
    db = app.store.address.db  # type: ignore[attr-defined]
    return sum("name=penstock-" in line and f" db={db} " in line for line in clients.splitlines())


@pytest.mark.parametrize("is_shared", [True, False])
async def test_twenty_namespaces_on_redis(is_shared: bool) -> None:
    url, shared = redis_server.url(), SharedConnections() if is_shared else None
    async with AsyncExitStack() as stack:
        apps = await open_all(stack, url, shared)
        await run_each(apps)
        # One for calls and one for wake-ups; the one that renews leases opens with the first renewal.
        assert await count_redis(apps[0]) == (2 if is_shared else 40)
    async with App(url, namespace=NAMESPACES[0], handlers=[whoami]) as app:

        async def only_its_own() -> bool:
            return await count_redis(app) == 2

        await until(only_its_own, 10)


async def test_namespaces_on_postgres() -> None:
    url = f"{postgres_server.url().partition('?')[0]}?schema={{namespace}}&pool=3"
    shared = SharedConnections()
    async with AsyncExitStack() as stack:
        apps = await open_all(stack, url, shared, 6)
        await run_each(apps)
        pools = {id(app.store._connections._pool) for app in apps}  # type: ignore[attr-defined]
        assert len(pools) == 1
        pool = apps[0].store._connections._pool  # type: ignore[attr-defined]
        assert pool.in_use + len(pool.idle) <= 3
    assert (pool.is_closed, pool.idle) == (True, [])


@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_closing_one_app_leaves_the_others(kind: str) -> None:
    shared = SharedConnections()
    url = redis_server.url() if kind == "redis" else f"{postgres_server.url().partition('?')[0]}?schema={{namespace}}"
    async with App(url, namespace="left", handlers=[whoami], connections=shared) as left:
        async with App(url, namespace="closed", handlers=[whoami], connections=shared) as closed:
            await closed.start("whoami", 1)
        with pytest.raises(StoreClosed):
            await closed.store.runs()
        async with left.workers.background():
            run = await left.start("whoami", "left")
            await left.emit("go", 1)
            assert await left.result(run, timeout=30) == ["left", 1, "left"]
    # The last one closed the connections: another App opens new ones.
    async with App(url, namespace="left", handlers=[whoami], connections=shared) as again:
        assert len(await again.runs.list()) == 1


@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_an_app_that_cannot_open_closes_nothing_of_the_others(kind: str) -> None:
    shared = SharedConnections()
    url = redis_server.url() if kind == "redis" else postgres_server.url()
    async with App(url, namespace="first", handlers=[whoami], connections=shared) as first:
        await first.start("whoami", 1)
        prefix = f"{'&' if '?' in url else '?'}prefix=first:bull" if kind == "redis" else ""
        second = App(url + prefix, namespace="second", handlers=[whoami], connections=shared)
        with pytest.raises(StoreError, match="first"):
            await second.open()
        assert len(await first.runs.list()) == 1
