"""A namespace has a store of its own: one file, one schema, or one prefix of keys and queues."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis

import postgres_server
import redis_server
from penstock import App, flow, job
from penstock.core.errors import ConfigError, NamespaceMismatch, StoreError
from penstock.settings import Settings
from penstock.stores.redis import RedisStore

SHARED = ("file", "postgres", "redis")


def one_store(kind: str, tmp_path: Path) -> str:
    """Return a URL that names the same store for every namespace."""
    if kind == "redis":
        return f"{redis_server.url()}?prefix=queues"
    return postgres_server.url() if kind == "postgres" else f"sqlite:///{tmp_path}/penstock.db"


def own_stores(kind: str, tmp_path: Path) -> str:
    """Return a URL that names another store for each namespace."""
    if kind == "redis":
        return redis_server.url()
    unique = os.urandom(3).hex()
    server = postgres_server.server()
    return server.url(f"n{unique}_{{namespace}}") if kind == "postgres" else f"sqlite:///{tmp_path}/{{namespace}}.db"


@flow("greet")
async def greet(input: str, ctx: Any) -> str:
    await ctx.state.set("name", input)
    return f"Hello {input}"


@job(queue="mail")
async def mail(input: str) -> str:
    return input.upper()


@pytest.mark.spec("000-3.12")
@pytest.mark.parametrize("kind", SHARED)
async def test_a_store_of_another_namespace_is_refused(kind: str, tmp_path: Path) -> None:
    url = one_store(kind, tmp_path)
    async with App(url, namespace="ada", handlers=[greet]) as app:
        run = await app.start("greet", "Ada")
    with pytest.raises(
        NamespaceMismatch, match=r"belongs to namespace 'ada'.*uses 'bob'; set PENSTOCK_NAMESPACE=ada, or"
    ):
        async with App(url, namespace="bob", handlers=[greet]):
            pass
    async with App(url, namespace="ada", handlers=[greet]) as app, app.workers.background():
        assert await app.runs.result(run, timeout=20) == "Hello Ada"


@pytest.mark.parametrize("kind", ["file", "postgres"])
async def test_of_two_apps_that_open_a_new_store_one_is_refused(kind: str, tmp_path: Path) -> None:
    url = one_store(kind, tmp_path)

    async def open_(namespace: str) -> str:
        async with App(url, namespace=namespace, handlers=[]):
            await asyncio.sleep(0)
            return namespace

    results = await asyncio.gather(*(open_(name) for name in ("ada", "bob")), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["NamespaceMismatch", "str"]


async def test_of_two_apps_on_one_new_prefix_the_second_to_write_is_refused() -> None:
    url = f"{redis_server.url()}?prefix=queues"
    async with App(url, namespace="ada", handlers=[mail]) as ada, App(url, namespace="bob", handlers=[mail]) as bob:
        await ada.enqueue("mail", "hi")
        with pytest.raises(NamespaceMismatch, match=r"prefix 'queues'.* belongs to namespace 'ada'"):
            await bob.enqueue("mail", "hi")


async def test_opening_a_redis_store_writes_nothing() -> None:
    url = redis_server.url()
    async with App(url, namespace="ada", handlers=[mail]) as app:
        assert await app.runs.list() == []
    client = redis.Redis.from_url(url)
    assert await client.keys() == []
    await client.aclose()


@pytest.mark.spec("000-3.12", "000-4.3.8")
@pytest.mark.parametrize("kind", SHARED)
async def test_namespaces_with_stores_of_their_own_see_nothing_of_each_other(kind: str, tmp_path: Path) -> None:
    url = own_stores(kind, tmp_path)
    async with (
        App(url, namespace="ada", handlers=[greet, mail]) as ada,
        App(url, namespace="bob", handlers=[greet, mail]) as bob,
    ):
        run = await ada.start("greet", "Ada", key="one")
        await bob.start("greet", "Bob", key="one")
        done = await ada.enqueue("mail", "hi", key="two")
        async with bob.workers.background():
            assert await bob.runs.result("one", timeout=20) == "Hello Bob"
        assert (await ada.runs.get(run)).status == "running"
        assert (await ada.jobs.get(done)).state == "waiting"
        assert [queue.name for queue in await bob.queues.list() if queue.counts.get("waiting")] == []
        async with ada.workers.background():
            assert await ada.runs.result("one", timeout=20) == "Hello Ada"
            assert await ada.jobs.result(done, timeout=20) == "HI"
        for app, name in ((ada, "Ada"), (bob, "Bob")):
            assert await app.state.of_run(run).get("name") == name
            assert [row.id for row in await app.runs.list()] == ["one"]
            kinds = [event.kind for event in await app.events.read_all(f"{app.settings.namespace}:flow:one")]
            assert kinds[-1] == "flow.completed"


async def test_the_queues_of_another_namespace_have_their_own_prefix() -> None:
    url = redis_server.url()
    async with App(url, namespace="acme", handlers=[mail]) as app:
        await app.enqueue("mail", "hi", key="one")
    client = redis.Redis.from_url(url)
    assert await client.exists("acme:bull:mail:one") == 1
    assert await client.keys("bull:*") == []
    await client.aclose()
    assert RedisStore(url)._prefix == "bull", "Node shares the queues of the default namespace without a setting"


@pytest.mark.parametrize("first", ["nq", "bull"])
async def test_a_namespace_is_not_named_as_the_prefix_of_another(first: str) -> None:
    """The run `bull:run:one` of a namespace `bull` would be the job `one` in the queue `run` of the default namespace."""
    url = redis_server.url()
    second = "nq" if first == "bull" else "bull"
    async with App(url, namespace=first, handlers=[greet, mail]) as app:
        await app.start("greet", "Ada", key="one")
        await app.enqueue("mail", "hi", key="two")
    with pytest.raises(ConfigError, match=r"'bull'.* would "):
        async with App(url, namespace=second, handlers=[greet]):
            pass


async def test_a_prefix_is_not_the_namespace() -> None:
    with pytest.raises(ConfigError, match=r"prefix 'ada' .* is also the namespace.*add \?prefix=\{namespace\}:bull"):
        async with App(f"{redis_server.url()}?prefix=ada", namespace="ada", handlers=[greet]):
            pass


async def test_an_owner_that_another_program_wrote_is_named() -> None:
    url = redis_server.url()
    client = redis.Redis.from_url(url)
    await client.rpush("bull:penstock:namespace", "x")
    await client.aclose()
    with pytest.raises(StoreError, match=r"the key bull:penstock:namespace .* must be a string.* delete it"):
        async with App(url, handlers=[greet]):
            pass


def test_a_url_may_contain_the_namespace() -> None:
    arguments = {"url": "sqlite:///data/{namespace}.db", "namespace": "{acme}"}
    assert Settings.load(arguments, env={}).url == "sqlite:///data/acme.db"
    assert Settings.load({"url": "sqlite:///{namespace}.db"}, env={}).url == "sqlite:///nq.db"
    by_variable = Settings.load({}, env={"PENSTOCK_URL": "redis://h/0?prefix={namespace}", "PENSTOCK_NAMESPACE": "b"})
    assert by_variable.url == "redis://h/0?prefix=b"
