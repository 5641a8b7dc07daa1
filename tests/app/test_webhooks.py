"""Standing webhooks: calls start a run or emit an event, once, in the commit that records them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock import Context, flow, sign
from penstock.core.errors import (
    BadArgument,
    BadSignature,
    DefinitionError,
    PayloadError,
    SchemaViolation,
    UnknownFlow,
    UnknownWebhook,
    WebhookMethod,
)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@flow("order", webhook={"path": "shop/orders", "method": ["POST", "PUT"]})
async def order(order: Any, ctx: Context) -> Any:
    return order


@flow("pay")
async def pay(_: Any, ctx: Context) -> Any:
    return (await ctx.wait.event("paid")).data


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.spec("003-3.3")
async def test_a_call_starts_a_run_once(kit: Any) -> None:
    async with kit(order, redact=("password",)) as app:
        call = {"Idempotency-Key": "k-1", "X-Other": "1"}
        sent = {"id": 7, "password": "x"}
        first = await app.webhooks.receive("/shop/orders/", "put", call, body(sent), source="http", ip="192.0.2.7")
        assert first.is_new
        assert await app.result(first.run) == sent
        again = await app.webhooks.receive("shop/orders", "POST", call, body({"id": 8}))
        assert (again.is_new, again.run, again.differs) == (False, first.run, True)
        repeated = await app.webhooks.receive("shop/orders", "POST", call, body(sent))
        assert (first.differs, repeated.is_new, repeated.differs) == (False, False, False)
        (received,) = await app.events.read_all("nq:webhook:shop/orders")
        assert (received.kind, received.subject) == ("webhook.received", "shop/orders")
        assert received.data == {
            "method": "PUT",
            "payload": {"id": 7, "password": "[redacted]"},
            "source": "http",
            "ip": "192.0.2.7",
            "key": "k-1",
            "run": first.run,
        }
        other = await app.webhooks.receive("shop/orders", body=body({"id": 9}))
        assert other.run != first.run
        assert len(await app.events.read_all("nq:webhook:shop/orders")) == 2


@pytest.mark.spec("003-3.7")
async def test_a_registered_webhook_emits_an_event_once(kit: Any) -> None:
    async with kit(order, pay) as app:
        await app.webhooks.register("bank", event="paid", key_header="X-Request-Id")
        assert [(one.path, one.event, one.declared) for one in await app.webhooks.list()] == [
            ("bank", "paid", False),
            ("shop/orders", None, True),
        ]
        run = await app.start("pay")
        await app.settle()
        for is_new in (True, False):
            receipt = await app.webhooks.receive("bank", headers=[(b"x-request-id", b"r-1")], body=body({"by": "card"}))
            assert (receipt.is_new, receipt.event, receipt.key, receipt.differs) == (is_new, "paid", "r-1", False)
        other = await app.webhooks.receive("bank", headers={"x-request-id": "r-1"}, body=body({"by": "cheque"}))
        assert (other.is_new, other.differs) == (False, True)
        assert (await app.finish(run)).result == {"by": "card"}
        assert len(await app.events.read_all("nq:global")) == 1
        assert len(await app.events.read_all("nq:webhook:bank")) == 1
        assert await app.webhooks.remove("bank")
        assert not await app.webhooks.remove("bank")
        with pytest.raises(UnknownWebhook):
            await app.webhooks.receive("bank")


async def test_signed_calls(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANK_SECRET", SECRET)
    async with kit(order) as app:
        await app.webhooks.register("bank", flow="order", signed="BANK_SECRET")
        now, sent = app.clock.now_ms() // 1000, body({"id": 7})
        headers = {
            "webhook-id": "msg_1",
            "webhook-timestamp": str(now),
            "webhook-signature": sign(SECRET, "msg_1", now, sent),
        }
        for refused in ({}, {**headers, "webhook-id": "msg_2"}):
            with pytest.raises(BadSignature):
                await app.webhooks.receive("bank", headers=refused, body=sent)
        with pytest.raises(BadSignature):
            await app.webhooks.receive("bank", headers=headers, body=body({"id": 8}))
        assert await app.events.read_all("nq:webhook:bank") == []
        first = await app.webhooks.receive("bank", headers=headers, body=sent)
        again = await app.webhooks.receive("bank", headers=headers, body=sent)
        assert (first.is_new, again.is_new, first.run == again.run) == (True, False, True)
        assert await app.result(first.run) == {"id": 7}


async def test_calls_that_are_refused_leave_nothing(kit: Any) -> None:
    async with kit(order) as app:
        await app.webhooks.register("strict", flow="order", schema={"type": "object", "required": ["id"]})
        for options, problem in (
            ({"method": "GET"}, WebhookMethod),
            ({"body": b"{"}, PayloadError),
            ({"body": b"{}"}, SchemaViolation),
            ({"body": body({"id": "x" * 70_000})}, PayloadError),
            ({"body": "text"}, BadArgument),
            ({"headers": 7}, BadArgument),
        ):
            with pytest.raises(problem):
                await app.webhooks.receive("strict", **options)
        with pytest.raises(UnknownWebhook, match="did you mean 'strict'"):
            await app.webhooks.receive("strikt")
        assert await app.runs.list() == []
        assert await app.events.read_all("nq:webhook:strict") == []
        form = {"content-type": "application/x-www-form-urlencoded"}
        receipt = await app.webhooks.receive("strict", headers=form, body=b"id=7&tag=a&tag=b")
        assert await app.result(receipt.run) == {"id": "7", "tag": ["a", "b"]}


async def test_bad_webhooks(memory: Any) -> None:
    async with memory(order) as app:
        for path, options, words in (
            ("a b", {"flow": "order"}, "the path of a webhook"),
            ("shop/../orders", {"flow": "order"}, "no part that is"),
            ("a", {}, "must either start a flow or emit an event"),
            ("a", {"flow": "order", "event": "paid"}, "must either start a flow or emit an event"),
            ("a", {"event": "flow.started"}, "reserved"),
            ("a", {"flow": "order", "method": "BREW"}, "method must be '"),
            ("a", {"flow": "order", "key_header": "a b"}, "key_header"),
            ("shop/orders", {"flow": "order"}, "is declared by flow 'order'"),
        ):
            with pytest.raises(BadArgument, match=words):
                await app.webhooks.register(path, **options)
        with pytest.raises(UnknownFlow):
            await app.webhooks.register("a", flow="ordr")
    with pytest.raises(DefinitionError, match="webhook: the path of a webhook"):

        @flow("bad", webhook="a b")
        async def bad(_: Any) -> None: ...

    @flow("twice", webhook="shop/orders")
    async def twice(_: Any) -> None: ...

    assert [problem.code for problem in memory(order, twice).registry.problems] == ["duplicate_webhook"]


BAD_SCHEMAS: dict[str, tuple[dict[str, Any], str]] = {
    "a URL": ({"$ref": "http://127.0.0.1:9/s.json"}, "#/\\$ref must start with '#'.* got 'http://127.0.0.1:9/s.json'"),
    "a file": ({"allOf": [{"$ref": "file:///etc/hostname"}]}, "#/allOf/0/\\$ref must start with '#'"),
    "a relative address": ({"properties": {"enum": {"$ref": "s.json"}}}, "#/properties/enum/\\$ref must start with"),
    "an address by id": (
        {"$id": "http://127.0.0.1:9/", "allOf": [{"$id": "b/", "not": {"$ref": "#/const"}}], "const": {"$ref": "c"}},
        "is not a valid JSON schema",
    ),
    "no pattern": ({"pattern": "("}, "#/pattern must be a regular expression"),
    "itself": ({"$ref": "#"}, "is not a valid JSON schema: a \\$ref leads back to itself"),
    "itself on some data": ({"if": {"type": "object"}, "then": {"$ref": "#"}}, "a \\$ref leads back to itself"),
    "itself in a list": ({"allOf": [{"$ref": "#"}]}, "a \\$ref leads back to itself"),
    "no properties": ({"properties": 5}, "is not a valid JSON schema"),
    "a pattern that looks ahead": ({"pattern": "^(?!.*b)a"}, "#/pattern must not look ahead.* got '\\^\\(\\?!"),
    "a key that looks back": ({"patternProperties": {r"(a)\1": {}}}, "#/patternProperties must not look ahead"),
    "references that multiply": (
        {
            "$defs": {"40": {}} | {str(n): {"allOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(40)},
            "$ref": "#/$defs/0",
        },
        "its references multiply",
    ),
}


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **_options: Any) -> None:
        pytest.fail(f"loaded {args[0]}")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


@pytest.mark.parametrize(("schema", "words"), BAD_SCHEMAS.values(), ids=BAD_SCHEMAS)
@pytest.mark.usefixtures("no_network")
async def test_an_unsafe_schema_is_refused(memory: Any, schema: dict[str, Any], words: str) -> None:
    async with memory(order) as app:
        with pytest.raises(BadArgument, match=words):
            await app.webhooks.register("shop", flow="order", schema=schema)
        assert [one.path for one in await app.webhooks.list()] == ["shop/orders"]


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"id": {"$ref": "#/definitions/id"}}, "definitions": {"id": {"type": "integer"}}},
        {"properties": {"id": {"type": "integer"}, "child": {"$ref": "#"}, "$ref": {"type": "string"}}},
        {"properties": {"ip": {"pattern": r"^(\d{1,3}\.){3}\d{1,3}(:\d+(\.\d+)?)?$"}, "id": {"type": "integer"}}},
    ],
)
@pytest.mark.usefixtures("no_network")
async def test_a_safe_schema_is_kept_as_it_is(memory: Any, schema: dict[str, Any]) -> None:
    async with memory(order) as app:
        assert (await app.webhooks.register("shop", event="order.paid", schema=schema)).schema == schema
        await app.webhooks.receive("shop", body=body({"id": 1}))
        with pytest.raises(SchemaViolation):
            await app.webhooks.receive("shop", body=body({"id": "one"}))
