"""A network that is gone without a word: nothing is acknowledged, nothing is refused. It is noticed long before the
longest time a command may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from faultkit.proxy import Proxy

import postgres_server
from penstock import App
from penstock.stores.postgres import PostgresStore, connection, silence
from penstock.testing.until import until

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(60)]
TEST_TIMEOUT_S = 20.0


@pytest.fixture(autouse=True)
def _only_silence_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "COMMAND_SECONDS", 2 * TEST_TIMEOUT_S)
    monkeypatch.setattr(silence, "SECONDS", 1)


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with Proxy(postgres_server.server().port) as one:
        yield one


def through(proxy: Proxy) -> str:
    return postgres_server.url().replace(f":{postgres_server.server().port}/", f":{proxy.port}/")


async def _said_after_silence(proxy: Proxy, patience: float = TEST_TIMEOUT_S) -> list[str]:
    async with App(through(proxy), handlers=[]) as app:
        await app.emit("first", 0)  # the lines are there
        proxy.deafen()
        said = asyncio.create_task(app.emit("said", 1))
        try:
            await until(said.done, patience)
        finally:
            await said  # the command's own timeout is what is left
        return [event.kind for event in await app.events.read_all("nq:global")]


async def test_a_commit_on_a_silent_line_is_made_on_another(proxy: Proxy) -> None:
    assert await _said_after_silence(proxy) == ["first", "said"]


async def test_a_line_that_only_listens_is_found_silent_too(proxy: Proxy) -> None:
    async with App(through(proxy), handlers=[]) as app:
        assert isinstance(app.store, PostgresStore)
        wakeups = app.store._wakeups
        before = await until(lambda: wakeups._connection, TEST_TIMEOUT_S)
        proxy.deafen()
        after = await until(lambda: wakeups._connection is not before and wakeups._connection, TEST_TIMEOUT_S)
        assert not after.is_closed()


async def test_a_line_nobody_watches_is_waited_for(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "COMMAND_SECONDS", 4.0)
    monkeypatch.setattr(connection, "notice_silence", lambda line: None)
    with pytest.raises(AssertionError):
        await _said_after_silence(proxy, 2)
