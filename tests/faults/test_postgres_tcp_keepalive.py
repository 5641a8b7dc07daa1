"""A network that drops every packet: TCP keepalive detects it long before a command times out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from faultkit.proxy import Proxy

import postgres_server
from penstock import App
from penstock.stores.postgres import PostgresStore, connection, tcp_keepalive
from penstock.testing.until import until

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(60)]
TEST_TIMEOUT_S = 20.0


@pytest.fixture(autouse=True)
def _short_keepalive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "COMMAND_TIMEOUT_S", 2 * TEST_TIMEOUT_S)
    monkeypatch.setattr(tcp_keepalive, "TIMEOUT_S", 1)


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with Proxy(postgres_server.server().port) as one:
        yield one


def through(proxy: Proxy) -> str:
    return postgres_server.url().replace(f":{postgres_server.server().port}/", f":{proxy.port}/")


async def _emit_after_packets_are_dropped(proxy: Proxy, timeout: float = TEST_TIMEOUT_S) -> list[str]:
    async with App(through(proxy), handlers=[]) as app:
        await app.emit("first", 0)  # connects
        proxy.drop_packets()
        emitting = asyncio.create_task(app.emit("second", 1))
        try:
            await until(emitting.done, timeout)
        finally:
            await emitting  # after the command's own timeout at the latest
        return [event.kind for event in await app.events.read_all("nq:global")]


async def test_a_commit_is_repeated_on_a_new_connection(proxy: Proxy) -> None:
    assert await _emit_after_packets_are_dropped(proxy) == ["first", "second"]


async def test_an_idle_listening_connection_is_replaced_too(proxy: Proxy) -> None:
    async with App(through(proxy), handlers=[]) as app:
        assert isinstance(app.store, PostgresStore)
        notifier = app.store._notifier
        before = await until(lambda: notifier._connection, TEST_TIMEOUT_S)
        proxy.drop_packets()
        after = await until(lambda: notifier._connection is not before and notifier._connection, TEST_TIMEOUT_S)
        assert not after.is_closed()


async def test_without_keepalive_the_command_times_out(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "COMMAND_TIMEOUT_S", 4.0)
    monkeypatch.setattr(connection, "enable_keepalive", lambda sock: None)
    with pytest.raises(AssertionError):
        await _emit_after_packets_are_dropped(proxy, 2)
