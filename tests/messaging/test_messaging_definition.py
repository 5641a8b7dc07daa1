"""Messaging as data: one setting chooses the bridge, and mistakes are refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import ConfigError
from penstock.messaging import EmitEvent, read_messaging
from penstock.messaging.bullmq import BullMQ
from penstock.messaging.kafka import Kafka

TARGETS = {"paid": EmitEvent("payment.received"), "unpaid": EmitEvent("payment.missed")}
EVENTS = [
    {"queue": "billing", "jobName": "ok", "event": "paid"},
    {"queue": "billing", "jobName": "no", "event": "unpaid"},
]


def define(bullmq: bool, kafka: bool, **more: Any) -> dict[str, Any]:
    return {
        "events": EVENTS,
        "bullmq": {"enabled": bullmq, "connection": {"host": "queues", "port": 6380, "password": "p@s", "db": 2}},
        "kafka": {"enabled": kafka, "brokers": "broker:9092", "clientId": "billing"},
        **more,
    }


@pytest.mark.spec("002-1.3", "002-4.3")
def test_one_setting_chooses_the_bridge() -> None:
    (one,) = read_messaging(define(True, False), TARGETS)
    (other,) = read_messaging(define(False, True), TARGETS)
    assert (type(one), type(other)) == (BullMQ, Kafka)
    assert one._consume == other._consume == {"billing": {"ok": TARGETS["paid"], "no": TARGETS["unpaid"]}}
    assert read_messaging(define(False, False), TARGETS) == []


@pytest.mark.spec("002-2.11")
def test_both_enabled_is_an_error() -> None:
    with pytest.raises(ConfigError, match="enables both bullmq and kafka"):
        read_messaging(define(True, True), TARGETS)


@pytest.mark.spec("002-2.3")
def test_a_connection_becomes_a_url() -> None:
    (bridge,) = read_messaging(define(True, False), TARGETS)
    assert isinstance(bridge, BullMQ)
    assert bridge._url == "redis://:p%40s@queues:6380/2"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"events": [{"queue": "q", "event": "payd"}]}, "did you mean 'paid'"),
        ({"events": [{"event": "paid"}]}, "either a queue or a topic"),
        (
            {"events": [{"queue": "q", "event": "paid"}, {"queue": "q", "event": "unpaid"}]},
            "two events with no jobName",
        ),
        ({"defaultJobOptions": {"backoff": {"type": "linear"}}}, "backoff.type"),
        ({"evnts": []}, "evnts"),
    ],
)
def test_a_wrong_definition_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_messaging(define(True, False, **more), TARGETS)
