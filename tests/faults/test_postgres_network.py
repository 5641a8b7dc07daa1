"""A network between us and Postgres that drops, delays and swallows, the reply to a COMMIT among others: nothing is lost,
nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from faultkit.length import FULL
from faultkit.lines import make_trouble, swallow
from faultkit.proxy import Proxy
from faultkit.trouble import under_way

import postgres_server
from penstock import App
from penstock.core.ids import new_token
from penstock.ports.unit import ClaimRequest, CommitReply, Unit
from penstock.stores.postgres import PostgresStore, connection
from penstock.stores.postgres.wakeups import Wakeups

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]
TROUBLES = 200 if FULL else 4


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is taken for an answer sooner than in earnest."""
    monkeypatch.setattr(connection, "COMMAND_SECONDS", 0.3)
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.5)


def through(proxy: Proxy, url: str) -> str:
    return url.replace(f":{postgres_server.server().port}/", f":{proxy.port}/")


async def test_lines_that_drop_delay_and_swallow(tmp_path: Path, tell: Callable[[str], None]) -> None:
    url = postgres_server.url()
    async with (
        Proxy(postgres_server.server().port) as proxy,
        under_way(through(proxy, url), tmp_path) as load,
    ):
        await make_trouble(proxy, load, TROUBLES)
    tell(f"{TROUBLES} troubles, {proxy.cut} lines cut, {proxy.swallowed} silenced, {load}")
    assert load.problems == []
    assert proxy.swallowed >= TROUBLES // 4


@pytest.fixture
def _untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is the commit's reply that is swallowed, and not that to a wake-up."""
    monkeypatch.setattr(Wakeups, "tell", lambda self, topics: None)


async def _said_while_a_reply_is_swallowed() -> int:
    """How often something is written that was said once, and whose first answer never came."""
    url = postgres_server.url()
    async with (
        Proxy(postgres_server.server().port) as proxy,
        App(through(proxy, url), handlers=[]) as app,
    ):
        await app.emit("first", 0)  # the lines are there, and what they carry is known
        swallowing = asyncio.create_task(swallow(proxy))
        await asyncio.sleep(0)  # from here on
        await app.emit("said", 1)
        await swallowing
        return [event.kind for event in await app.events.read_all("nq:global")].count("said")


@pytest.mark.usefixtures("_untold")
async def test_what_was_said_once_is_written_once() -> None:
    assert await _said_while_a_reply_is_swallowed() == 1


@pytest.mark.usefixtures("_untold")
async def test_a_unit_that_is_not_recognised_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PostgresStore._transact

    async def transact(self: PostgresStore, write: Any, units: Sequence[Unit], ask: ClaimRequest | None) -> CommitReply:
        return await real(self, write, [msgspec.structs.replace(unit, id=new_token()) for unit in units], ask)

    monkeypatch.setattr(PostgresStore, "_transact", transact)
    assert await _said_while_a_reply_is_swallowed() == 2
