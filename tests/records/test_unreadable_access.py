"""Tokens, tickets and webhooks that cannot be read, on every store: nobody gets in by them, and the others work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from damage import Damage
from penstock.app.tokens import Caller
from penstock.core.errors import UnreadableRecord

JUNK: dict[str, bytes] = {
    "no JSON": b"this is not JSON",
    "no text": b"\xff\xfe\x00\x80",
    "nothing": b"",
    "a number": b"5",
    "a list": b'["ada","admin"]',
    "null": b"null",
    "an unknown role": b'{"name":"eve","role":"root","hash":"x","created":1}',
    "a huge time": b'{"name":"eve","role":"admin","hash":"x","created":1000000000000000000000}',
    "wrong types": b'{"path":[],"name":[],"role":"admin","hash":7,"created":"x","event":"order.paid"}',
    "deep": b"[" * 100_000,
}


@pytest.fixture
def app(shared_url: str, app_factory: Any) -> Callable[[], Any]:
    return lambda: app_factory(shared_url)()


@pytest.fixture
def damage(shared_url: str) -> Damage:
    return Damage(shared_url)


@pytest.mark.parametrize("junk", JUNK)
async def test_a_damaged_token_opens_nothing(app: Callable[[], Any], damage: Damage, junk: str) -> None:
    async with app() as one:
        bad, bad_text = await one.tokens.add("bad", "admin")
        good, good_text = await one.tokens.add("good", "admin")
        damage.state(f"auth/token/{bad.id}", JUNK[junk])
    async with app() as two:
        assert await two.tokens.exist()
        assert await two.tokens.check(bad_text) is None
        assert await two.tokens.check(good_text) == Caller("good", "admin", good.id)
        listed = {token.id: token.unreadable is None for token in await two.tokens.list()}
        assert listed == {bad.id: False, good.id: True}
        assert (await two.tokens.revoke(good.id)).name == "good"
    async with app() as three:
        assert await three.tokens.exist()  # else this machine could call without a token
        assert (await three.tokens.revoke(bad.id)).unreadable is not None
        assert await three.tokens.list() == []
        assert not await three.tokens.exist()


@pytest.mark.parametrize("hash", ["é", "", "\\u0000"])
async def test_a_hash_that_is_none(app: Callable[[], Any], damage: Damage, hash: str) -> None:
    async with app() as one:
        token, text = await one.tokens.add("ada", "admin")
        damage.state(f"auth/token/{token.id}", f'{{"name":"ada","role":"admin","hash":"{hash}","created":1}}'.encode())
    async with app() as two:
        assert await two.tokens.check(text) is None


@pytest.mark.parametrize("junk", [*JUNK, "unknown role"])
async def test_a_damaged_ticket_opens_nothing(app: Callable[[], Any], damage: Damage, junk: str) -> None:
    async with app() as one:
        ticket = await one.tokens.issue_ticket(Caller("ada", "admin"))
        (row,) = await one.store.states("auth/ticket/")
        damage.state(row.key, b'["ada","root"]' if junk == "unknown role" else JUNK[junk])
        found = await one.tokens.take_ticket(ticket)
        assert found == (Caller("ada", "admin") if junk == "a list" else None)
        assert await one.tokens.take_ticket(ticket) is None


@pytest.mark.parametrize(
    "data",
    [
        *JUNK.values(),
        b'{"path":"hooks/bad"}',
        b'{"path":"hooks/bad","event":"order.paid","schema":{"type":7}}',
        b'{"path":"hooks/bad","event":"order.paid","schema":{"$ref":"http://127.0.0.1:9/"}}',
        b'{"path":"hooks/bad","event":"order.paid","schema":{"pattern":"("}}',
        b'{"path":"hooks/bad","event":"order.paid","schema":5}',
        b'{"path":"hooks/bad","event":"order.paid","methods":["TRACE"]}',
        b'{"path":"hooks/bad","event":"no kind"}',
        b'{"path":"hooks/bad","event":"order.paid","keyHeader":"a\\nb"}',
    ],
)
async def test_a_damaged_webhook_fails_alone(app: Callable[[], Any], damage: Damage, data: bytes) -> None:
    async with app() as one:
        for path in ("hooks/bad", "hooks/good"):
            await one.webhooks.register(path, event="order.paid")
        damage.state("webhook/hooks/bad", data)
        listed = {one.path: one.unreadable is None for one in await one.webhooks.list()}
        assert listed == {"hooks/bad": False, "hooks/good": True}
        assert (await one.webhooks.receive("hooks/good", body=b"{}")).event is not None
        with pytest.raises(UnreadableRecord, match=r"webhook 'hooks/bad' cannot be read.*register it again"):
            await one.webhooks.receive("hooks/bad", body=b"{}")
        await one.webhooks.register("hooks/bad", event="order.paid")
        assert (await one.webhooks.receive("hooks/bad", body=b"{}")).event is not None
        damage.state("webhook/hooks/bad", data)
        assert await one.webhooks.remove("hooks/bad")
