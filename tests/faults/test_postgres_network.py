"""A network that cuts, delays and drops packets, the reply to a COMMIT among them: nothing is lost or done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from faultkit.config import FULL
from faultkit.load import run_load
from faultkit.network_faults import inject_network_faults, lose_replies
from faultkit.proxy import Proxy

import postgres_server
from penstock import App
from penstock.core.ids import new_token
from penstock.ports.unit import ClaimRequest, CommitReply, Unit
from penstock.stores.postgres import PostgresStore, connection
from penstock.stores.postgres.notify import Notifier

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]
FAULTS = 200 if FULL else 4


@pytest.fixture
async def url(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a store that exists, and time out sooner than in production from then on: on a busy machine, creating
    its tables takes longer."""
    url = postgres_server.url()
    async with App(url, handlers=[]):
        pass
    monkeypatch.setattr(connection, "COMMAND_TIMEOUT_S", 0.3)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.5)
    return url


def through(proxy: Proxy, url: str) -> str:
    return url.replace(f":{postgres_server.server().port}/", f":{proxy.port}/")


async def test_connections_that_are_cut_delayed_and_dropped(
    url: str, tmp_path: Path, show: Callable[[str], None]
) -> None:
    async with (
        Proxy(postgres_server.server().port) as proxy,
        run_load(through(proxy, url), tmp_path) as load,
    ):
        await inject_network_faults(proxy, load, FAULTS)
    show(f"{FAULTS} faults, {proxy.connections_cut} connections cut, {proxy.replies_dropped} replies dropped, {load}")
    assert load.problems == []
    assert proxy.replies_dropped >= FAULTS // 4


@pytest.fixture
def _no_notifications(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sure that the dropped reply is the commit's, not that of a wake-up."""
    monkeypatch.setattr(Notifier, "notify", lambda self, topics: None)


async def _emit_while_a_reply_is_dropped(url: str, kind: str = "second") -> int:
    """Return how often an event is stored that was emitted once, and whose first reply was dropped."""
    async with (
        Proxy(postgres_server.server().port) as proxy,
        App(through(proxy, url), handlers=[]) as app,
    ):
        await app.emit("first", 0)  # connects and prepares the statements
        dropping = asyncio.create_task(lose_replies(proxy))
        await asyncio.sleep(0)  # start dropping
        await app.emit(kind, 1)
        await dropping
        return [event.kind for event in await app.events.read_all("nq:global")].count(kind)


@pytest.mark.usefixtures("_no_notifications")
async def test_an_event_emitted_once_is_stored_once(url: str) -> None:
    assert await _emit_while_a_reply_is_dropped(url) == 1


@pytest.mark.usefixtures("_no_notifications")
async def test_a_unit_with_another_id_is_stored_twice(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PostgresStore._commit

    async def commit(self: PostgresStore, units: Sequence[Unit], request: ClaimRequest | None) -> CommitReply:
        return await real(self, [msgspec.structs.replace(unit, id=new_token()) for unit in units], request)

    monkeypatch.setattr(PostgresStore, "_commit", commit)
    counts: list[int] = []
    while 2 not in counts and len(counts) < 5:  # on a busy machine the dropped reply may not be the commit's
        counts.append(await _emit_while_a_reply_is_dropped(url, f"second.{len(counts)}"))
    assert 2 in counts, f"stored {counts} times"
