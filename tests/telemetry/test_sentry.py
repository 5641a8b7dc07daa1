"""Sentry: what is sent for final failures, retries and schedules, taken from a transport that keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.transport import Transport

from penstock import flow, job
from penstock.telemetry.sentry import Sentry
from penstock.testing import TestApp
from penstock.testing.until import until


class KeepingTransport(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[tuple[str, dict[str, Any]]] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.items += [(item.type, json.loads(item.payload.get_bytes())) for item in envelope.items]

    def of(self, type_: str) -> list[dict[str, Any]]:
        return [body for found, body in self.items if found == type_]


@pytest.fixture
def sent() -> Iterator[KeepingTransport]:
    transport = KeepingTransport()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(
            dsn="https://key@sentry.invalid/1",
            transport=transport,
            default_integrations=False,
            auto_enabling_integrations=False,
        )
        yield transport
        sentry_sdk.get_client().close()
        sentry_sdk.init()


@job(queue="mail", retry={"attempts": 2, "backoff": {"type": "fixed", "delayMs": 1}})
async def send(to: str) -> None:
    raise ValueError(f"password=hunter2 is wrong for {to}")


@flow("order", emits=[])
async def order(_: Any) -> None:
    raise KeyError("total")


async def test_a_final_failure_is_one_issue_with_its_retries_as_breadcrumbs(app: Any, sent: KeepingTransport) -> None:
    async with app(send, listeners=[Sentry()]) as a, a.workers.background(name="w1"):
        id = await a.enqueue("mail", "ann")
        await a.wait_for_state(id, "failed")
        await until(lambda: sent.of("event"))
    (event,) = sent.of("event")
    assert event["exception"]["values"][0]["type"] == "ValueError"
    assert "hunter2" not in json.dumps(sent.items)
    assert event["transaction"] == "mail/send"
    assert event["tags"]["queue"] == "mail"
    assert (event["contexts"]["penstock"]["job"], event["contexts"]["penstock"]["attempt"]) == (id, 2)
    assert "raise ValueError" in event["extra"]["stack"]
    (crumb,) = event["breadcrumbs"]["values"]
    assert crumb["message"].startswith("attempt 1 failed: ValueError: ")


async def test_failures_of_one_place_are_one_issue(memory: Any, sent: KeepingTransport) -> None:
    async with memory(order, listeners=[Sentry()]) as a, a.workers.background():
        for _ in range(2):
            await a.wait_for_end(await a.start("order"))
        await until(lambda: len(sent.of("event")) == 2)
    first, second = sent.of("event")
    assert first["fingerprint"] == second["fingerprint"] == ["penstock", "order/order", "KeyError", ""]
    assert first["contexts"]["penstock"]["run"] != second["contexts"]["penstock"]["run"]


async def test_slots_are_check_ins_and_their_failure_too(sent: KeepingTransport) -> None:
    async with TestApp(":memory:", handlers=[send], listeners=[Sentry()]) as app:
        await app.schedules.add("nightly", queue="mail", input="ann", every="1h")
        await app.advance("2h")
    check_ins = sent.of("check_in")
    assert {one["monitor_slug"] for one in check_ins} == {"nightly"}
    assert {one["status"] for one in check_ins} == {"ok", "error"}
