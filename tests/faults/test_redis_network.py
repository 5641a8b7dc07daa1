"""A network that drops, delays and discards: nothing is lost, nothing happens twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faultkit import redis_mutants
from faultkit.config import FULL
from faultkit.load import run_load
from faultkit.network_faults import inject_network_faults, lose_replies
from faultkit.proxy import Proxy

from penstock import App
from penstock.stores.redis import connection, lease_client, pubsub
from redis_server import Server

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]
TROUBLES = 200 if FULL else 4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    one = Server(tmp_path)
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture(autouse=True)
def _short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use shorter timeouts than in production."""
    monkeypatch.setattr(connection, "REPLY_TIMEOUT_S", 0.3)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.5)
    monkeypatch.setattr(lease_client, "RENEW_TIMEOUT_S", 0.5)
    monkeypatch.setattr(pubsub, "PING_INTERVAL_S", 0.2)


async def test_connections_that_drop_delay_and_discard(
    server: Server, tmp_path: Path, show: Callable[[str], None]
) -> None:
    async with Proxy(server.port) as proxy, run_load(f"redis://127.0.0.1:{proxy.port}/0", tmp_path) as load:
        await inject_network_faults(proxy, load, TROUBLES)
    show(f"{TROUBLES} troubles, {proxy.connections_cut} lines cut, {proxy.replies_dropped} silenced, {load}")
    assert load.problems == []
    assert proxy.replies_dropped >= TROUBLES // 4


async def _emit_while_a_reply_is_lost(server: Server) -> int:
    """Emit an event whose first reply is lost; return how often it was written."""
    async with Proxy(server.port) as proxy, App(f"redis://127.0.0.1:{proxy.port}/0", handlers=[]) as app:
        await app.state.set("any", 1)  # the first commit also claims the prefix
        swallowing = asyncio.create_task(lose_replies(proxy))
        await asyncio.sleep(0)  # let it start
        await app.emit("ping", 1)
        await swallowing
        return len(await app.events.read_all("nq:global"))


async def test_an_event_with_a_lost_reply_is_written_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsub, "PING_INTERVAL_S", 60)  # so that the lost reply is the commit's
    assert await _emit_while_a_reply_is_lost(server) == 1


async def test_an_unrecognised_repeat_is_caught(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsub, "PING_INTERVAL_S", 60)
    redis_mutants.repeats_not_recognised(monkeypatch)
    assert await _emit_while_a_reply_is_lost(server) == 2
