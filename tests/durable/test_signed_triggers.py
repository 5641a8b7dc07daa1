"""Triggers that accept only signed calls: a signature covers what the step receives, one trigger, and one call."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock import Await, Context, Signature, flow, sign
from penstock.core.errors import (
    BadArgument,
    BadSignature,
    DefinitionError,
    NotJSON,
    PayloadTooLarge,
    SchemaViolation,
    SettingError,
    TriggerError,
    TriggerUsed,
)
from penstock.core.signatures import TOLERANCE_S
from penstock.durable.trigger_signatures import ID_KEPT_S
from penstock.ports.store import Retention
from penstock.testing import FakeContext, TestApp

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()


def sign_body(id: str, at: int, body: bytes, key: bytes = KEY) -> Signature:
    """Sign as Standard Webhooks defines it, with the standard library alone."""
    digest = hmac.digest(key, b"%b.%d.%b" % (id.encode(), at, body), hashlib.sha256)
    return Signature(id, at, "v1," + base64.b64encode(digest).decode(), body)


def make_flow(tokens: list[str], **options: Any) -> Any:
    """Return a flow that appends its token to `tokens` and waits for a signed call."""

    @flow("pay", emits=[])
    async def pay(order: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("bank", signed="BANK_SECRET", **options)
        await ctx.run("publish", tokens.append, trigger.token)
        return await trigger.wait()

    return pay


class Bank:
    """Runs that wait for signed calls, with their tokens, and the sender of those calls."""

    def __init__(self, app: TestApp, tokens: list[str], runs: list[str]) -> None:
        self.app = app
        self.tokens = tokens
        self.runs = runs

    @property
    def ids(self) -> list[str]:
        return [token.partition(".")[0] for token in self.tokens]

    @property
    def now(self) -> int:
        return self.app.time.now_ms() // 1000

    def sign(self, body: bytes, id: str | None = None, key: bytes = KEY, age: int = 0) -> Signature:
        return sign_body(id or self.ids[0], self.now - age, body, key)

    async def fire(self, signature: Signature | None, which: int = 0, data: Any = None) -> str:
        return await self.app.waits.fire(self.tokens[which], data, signature=signature)

    async def result(self, which: int = 0) -> Any:
        return (await self.app.finish(await self.run_of(which))).result

    async def run_of(self, which: int) -> str:
        row = await self.app.store.wait_row(self.ids[which])
        assert row is not None
        return row.run

    async def is_waiting(self, which: int = 0) -> bool:
        await self.app.settle()
        return (await self.app.runs.get(await self.run_of(which))).status == "waiting"


@asynccontextmanager
async def open_bank(kit: Any, runs: int = 1, **options: Any) -> AsyncIterator[Bank]:
    tokens: list[str] = []
    async with kit(make_flow(tokens, **options)) as app:
        started = [await app.start("pay") for _ in range(runs)]
        await app.settle()
        yield Bank(app, tokens, started)


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANK_SECRET", SECRET)


async def test_the_step_receives_the_signed_body(kit: Any) -> None:
    async with open_bank(kit) as bank:
        await bank.fire(bank.sign(b' {"amount": 1,\n "name": "Zo\\u00eb"} '))
        assert await bank.result() == {"amount": 1, "name": "Zoë"}
        (event,) = [e for e in await bank.app.events.read_all(f"nq:trigger:{bank.ids[0]}") if e.kind == "trigger.fired"]
        assert event.data["payload"] == {"amount": 1, "name": "Zoë"}


@pytest.mark.parametrize(
    "data", [{"amount": 1_000_000}, {"amount": 1.0}, {"amount": True}, {"amount": 1, "x": 2}, [], 0]
)
async def test_data_that_differs_from_the_signed_body_is_refused(kit: Any, data: Any) -> None:
    async with open_bank(kit) as bank:
        with pytest.raises(BadSignature, match="differs from the signed body, which is what the step receives"):
            await bank.fire(bank.sign(b'{"amount":1}'), data=data)
        assert await bank.is_waiting()
        await bank.fire(bank.sign(b'{"amount":1}'))
        assert await bank.result() == {"amount": 1}


async def test_data_that_equals_the_signed_body_is_accepted(kit: Any) -> None:
    async with open_bank(kit) as bank:
        await bank.fire(bank.sign(b'{"a": 1, "b": [2.5, null]}'), data={"b": [2.5, None], "a": 1})
        assert await bank.result() == {"a": 1, "b": [2.5, None]}


async def test_wrong_calls_are_refused(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_bank(kit) as bank:
        good = bank.sign(b"1")
        wrong = [
            None,
            bank.sign(b"1", key=b"k" * 32),
            bank.sign(b"1", age=TOLERANCE_S + 1),
            bank.sign(b"1", age=-TOLERANCE_S - 1),
            Signature(good.id, good.timestamp, good.value, b"2"),
            Signature(good.id, good.timestamp + 1, good.value, good.body),
            Signature(good.id, 2**63, good.value, good.body),
            Signature(good.id, "soon", good.value, good.body),  # type: ignore[arg-type]
            Signature("\ud800\x00", good.timestamp, good.value, good.body),
        ]
        for one in wrong:
            with pytest.raises(BadSignature):
                await bank.fire(one)
        with pytest.raises(BadArgument, match="signature must be a Signature, got a str"):
            await bank.fire(good.value)  # type: ignore[arg-type]
        with pytest.raises(NotJSON, match="the signed body for trigger 'bank' is not valid JSON"):
            await bank.fire(bank.sign(b"amount=1"))
        with pytest.raises(PayloadTooLarge, match="the signed body"):
            await bank.fire(bank.sign(b'"' + b"x" * 70_000 + b'"'))
        monkeypatch.delenv("BANK_SECRET")
        with pytest.raises(TriggerError, match="BANK_SECRET, which is not set in this process"):
            await bank.fire(good)
        monkeypatch.setenv("BANK_SECRET", "whsec_c2VjcmV0")
        with pytest.raises(SettingError, match="BANK_SECRET is a key of 6 bytes"):
            await bank.fire(good)
        monkeypatch.setenv("BANK_SECRET", SECRET)
        assert await bank.is_waiting()
        await bank.fire(bank.sign(b"1", age=TOLERANCE_S - 1))
        assert await bank.result() == 1


async def test_a_signature_for_one_trigger_does_not_fire_another(kit: Any) -> None:
    async with open_bank(kit, runs=2) as bank:
        for_first = bank.sign(b'"first"')
        with pytest.raises(
            BadSignature, match=f"signed with the id '{bank.ids[0]}', not with the id of trigger {bank.ids[1]}"
        ):
            await bank.fire(for_first, 1)
        with pytest.raises(BadSignature, match="signed_id='any' if the sender chooses its ids"):
            await bank.fire(bank.sign(b"1", id="msg_1"))
        await bank.fire(for_first)
        assert await bank.result() == "first"
        assert await bank.is_waiting(1)


async def test_a_signed_call_is_accepted_once(kit: Any) -> None:
    async with open_bank(kit, runs=3, signed_id="any") as bank:
        call = bank.sign(b"1", id="msg_1")
        await bank.fire(call)
        with pytest.raises(TriggerUsed):
            await bank.fire(call)
        for again in (call, bank.sign(b"2", id="msg_1")):
            with pytest.raises(BadSignature, match="a call with the signed id 'msg_1' was already accepted"):
                await bank.fire(again, 1)
        await bank.fire(bank.sign(b"2", id="msg_2"), 1)
        assert (await bank.result(0), await bank.result(1)) == (1, 2)
        assert await bank.is_waiting(2)


async def test_two_senders_may_use_the_same_id(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_bank(kit, runs=2, signed_id="any") as bank:
        await bank.fire(bank.sign(b"1", id="msg_1"))
        monkeypatch.setenv("BANK_SECRET", "another secret of 32 characters!")
        await bank.fire(bank.sign(b"2", id="msg_1", key=b"another secret of 32 characters!"), 1)
        assert (await bank.result(0), await bank.result(1)) == (1, 2)


async def test_a_refused_call_does_not_use_up_its_id(kit: Any) -> None:
    async with open_bank(kit, signed_id="any", schema={"type": "integer"}) as bank:
        with pytest.raises(SchemaViolation):
            await bank.fire(bank.sign(b'"one"', id="msg_1"))
        await bank.fire(bank.sign(b"1", id="msg_1"))
        assert await bank.result() == 1


@pytest.mark.parametrize("age", [TOLERANCE_S, -TOLERANCE_S])
async def test_used_ids_are_kept_as_long_as_the_call_is_valid(kit: Any, age: int) -> None:
    async with open_bank(kit, runs=2, signed_id="any") as bank:
        app, call = bank.app, bank.sign(b"1", id="msg_1", age=age)
        await bank.fire(call)
        while (left := call.timestamp + TOLERANCE_S - bank.now) >= 0:
            await app.store.sweep(Retention())
            with pytest.raises(BadSignature, match="already accepted"):
                await bank.fire(call, 1)
            app.time.advance(min(left, 100) + 1)
        with pytest.raises(BadSignature, match="off by 301 s"):
            await bank.fire(call, 1)


async def test_used_ids_are_removed_when_the_call_is_no_longer_valid(kit: Any) -> None:
    async with open_bank(kit) as bank:
        store, time = bank.app.store, bank.app.time
        await bank.fire(bank.sign(b"1"))
        (kept,) = await store.states("signed/")
        assert bank.ids[0] not in kept.key
        assert kept.expires == (bank.now + ID_KEPT_S) * 1000
        time.advance(ID_KEPT_S)
        assert await store.states("signed/") == []
        assert (await store.sweep(Retention()))["states"] == 1


async def test_of_two_concurrent_calls_one_is_accepted(kit: Any) -> None:
    async with open_bank(kit, runs=6, signed_id="any") as bank:
        call = bank.sign(b"1", id="msg_1")
        fires = await asyncio.gather(*(bank.fire(call, n) for n in range(6)), return_exceptions=True)
        assert sorted(type(one).__name__ for one in fires) == ["BadSignature"] * 5 + ["str"]


CALLER = """
import asyncio, json, sys
from penstock import App, Signature
from penstock.core.errors import PenstockError

async def main(url, calls):
    async with App(url, handlers=[]) as app:
        async def fire(token, id, at, value, body):
            try:
                await app.waits.fire(token, signature=Signature(id, at, value, body.encode()))
            except PenstockError as problem:
                return problem.code
            return "accepted"
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(await asyncio.gather(*(fire(*call) for call in calls))))

asyncio.run(main(*json.loads(sys.stdin.readline())))
"""


async def test_of_two_processes_one_accepts_a_call(shared_url: str, app_factory: Any) -> None:
    """Each call goes to two triggers, in two processes at the same time."""
    tokens: list[str] = []
    async with app_factory(shared_url)(make_flow(tokens, signed_id="any")) as app, app.workers.background():
        runs = [await app.start("pay") for _ in range(20)]
        for run in runs:
            await app.wait_for_step(run, "pay", "suspended")
        at = app.clock.now_ms() // 1000
        calls = [sign_body(f"msg_{n}", at, b"%d" % n) for n in range(10)]
        halves = [
            [[token, c.id, c.timestamp, c.value, c.body.decode()] for token, c in zip(half, calls, strict=True)]
            for half in (tokens[:10], tokens[10:])
        ]
        answers = await asyncio.to_thread(call_in_processes, shared_url, halves)
    outcomes = [sorted(pair) for pair in zip(*answers, strict=True)]
    assert outcomes == [["accepted", "bad_signature"]] * 10


def call_in_processes(url: str, halves: list[Any]) -> list[list[str]]:
    """Fire the calls of each half in a process of its own, at the same time, and return the outcomes."""
    processes = [
        subprocess.Popen([sys.executable, "-c", CALLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in halves
    ]
    for process, half in zip(processes, halves, strict=True):
        assert process.stdin is not None
        process.stdin.write(json.dumps([url, half]) + "\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [json.loads(process.communicate(timeout=60)[0]) for process in processes]


async def test_a_signature_of_an_unsigned_trigger_is_refused(kit: Any) -> None:
    tokens: list[str] = []

    @flow("ask", emits=[])
    async def ask(order: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("approval")
        await ctx.run("publish", tokens.append, trigger.token)
        return await trigger.wait()

    async with kit(ask) as app:
        await app.start("ask")
        await app.settle()
        signature = sign_body(tokens[0].partition(".")[0], app.time.now_ms() // 1000, b"1")
        with pytest.raises(BadSignature, match="trigger 'approval' was created without signed="):
            await app.fire(tokens[0], signature=signature)
        with pytest.raises(BadSignature, match="trigger 'approval' was created without signed="):
            await app.waits.sign(tokens[0], 1)


async def test_a_call_signed_by_the_app(kit: Any) -> None:
    async with open_bank(kit, runs=2) as bank:
        signature = await bank.app.waits.sign(bank.tokens[0], {"amount": 1})
        assert signature == sign_body(bank.ids[0], bank.now, b'{"amount":1}')
        assert signature.value == sign(SECRET, bank.ids[0], bank.now, b'{"amount":1}')
        with pytest.raises(BadSignature, match="not with the id of trigger"):
            await bank.fire(signature, 1)
        await bank.fire(signature, data={"amount": 1})
        assert await bank.result() == {"amount": 1}


async def test_a_trigger_fired_by_name_checks_a_signature_it_is_given(kit: Any) -> None:
    async with open_bank(kit) as bank:
        forged = bank.sign(b'{"amount":1}', key=b"k" * 32)
        with pytest.raises(BadSignature, match="does not match"):
            await bank.app.fire("bank", signature=forged)
        with pytest.raises(BadSignature, match="differs from the signed body"):
            await bank.app.fire("bank", {"amount": 2}, signature=bank.sign(b'{"amount":1}'))
        await bank.app.fire("bank", signature=bank.sign(b'{"amount":1}'))
        assert await bank.result() == {"amount": 1}


async def test_a_weak_secret_is_refused_where_the_trigger_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANK_SECRET", "whsec_c2VjcmV0")
    with pytest.raises(DefinitionError, match="BANK_SECRET is a key of 6 bytes"):
        Await("trigger", signed="BANK_SECRET")
    with pytest.raises(SettingError, match="BANK_SECRET is a key of 6 bytes"):
        await make_flow([])(None, FakeContext(triggers={"bank": 1}))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"signed": SECRET}, "signed must be the name of an environment variable, got a secret"),
        ({"signed": ""}, "signed must be the name of an environment variable, such as 'BANK_SECRET', got ''"),
        ({"signed": "A=B"}, "got 'A=B'"),
        ({"signed": "A\x00"}, "got 'A"),
        ({"signed": 5}, "got 5"),
        ({"signed": "BANK_SECRET", "signed_id": "some"}, "signed_id must be 'trigger' or 'any', got 'some'"),
    ],
)
async def test_wrong_options_are_refused(options: Any, problem: str) -> None:
    with pytest.raises(BadArgument) as found:
        FakeContext().wait.trigger("bank", **options)
    assert problem in str(found.value)
    assert SECRET not in str(found.value)
    with pytest.raises(DefinitionError) as declared:
        Await("trigger", **options)
    assert problem in str(declared.value)


def test_only_triggers_are_signed() -> None:
    with pytest.raises(DefinitionError, match="the option signed requires a wait of type 'trigger'"):
        Await("event", event="bank.paid", signed="BANK_SECRET")


async def test_a_declared_trigger_is_signed(kit: Any) -> None:
    tokens: list[str] = []
    wait = {"type": "trigger", "signed": "BANK_SECRET", "signedId": "any"}

    @flow("pay", emits=[], wait={**wait, "announce": lambda trigger, _input: tokens.append(trigger.token)})
    async def pay(order: Any, ctx: Context) -> Any:
        return ctx.awaited

    async with kit(pay) as app:
        run = await app.start("pay")
        await app.settle()
        with pytest.raises(BadSignature, match="accepts only signed calls"):
            await app.fire(tokens[0], 1)
        await app.fire(tokens[0], signature=sign_body("msg_1", app.time.now_ms() // 1000, b"1"))
        assert (await app.finish(run)).result == 1
