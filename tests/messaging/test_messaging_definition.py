"""Messaging as data: one setting chooses the bridge, and mistakes are refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App
from penstock.core.errors import ConfigError, DefinitionError
from penstock.entities import make_entity
from penstock.messaging import EmitEvent, EmitToEntity, read_messaging
from penstock.messaging.bullmq import BullMQ
from penstock.messaging.kafka import Kafka
from penstock.ports.unit import KeepJobs

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


def make_order(**parts: Any) -> Any:
    """Return an entity as spec 002's `register` has it: a definition with kafka or bullmq."""
    return make_entity(
        {
            "name": "order",
            "states": {"initial": "open", "idles": ["open"], "finals": ["paid"]},
            "transitions": [{"event": "pay", "from": "open", "to": "paid"}],
            **parts,
        }
    )


PAY = {"queue": "billing", "event": "pay", "jobName": "order-paid"}
BULLMQ = {
    "connection": {"host": "queues", "port": 6379},
    "events": [PAY],
    "defaultJobOptions": {
        "attempts": 5, "backoff": {"type": "fixed", "delay": 100}, "removeOnComplete": True, "removeOnFail": False,
    },
    "deadLetterQueue": {"enabled": True, "suffix": "-dead"},
}  # fmt: skip
KAFKA = {"brokers": "broker:9092", "events": [{"topic": "billing", "event": "pay"}]}


@pytest.mark.spec("002-2.4", "002-2.8", "002-2.9", "002-2.10", "002-4.4", "002-5.5", "002-6.3")
def test_a_definition_has_its_messages() -> None:
    (bridge,) = App(":memory:", handlers=[make_order(bullmq=BULLMQ)])._entity_bridges
    assert isinstance(bridge, BullMQ)
    assert bridge._consume == {"billing": {"order-paid": EmitToEntity("pay", "order")}}
    options = bridge._options
    assert (options.retry.attempts, options.retry.backoff.type, options.retry.backoff.delay_ms) == (5, "fixed", 100)
    assert (options.keep_completed, options.keep_failed) == (KeepJobs(0), None)
    assert options.dead_letters.suffix == "-dead"
    (other,) = App(":memory:", handlers=[make_order(kafka={**KAFKA, "clientId": "orders"})])._entity_bridges
    assert isinstance(other, Kafka)
    assert other._consume == {"billing": {"*": EmitToEntity("pay", "order")}}
    assert other._address.client_id == "orders"
    for parts in ({}, {"bullmq": {**BULLMQ, "enabled": False}}, {"kafka": {**KAFKA, "enabled": False}}):
        assert App(":memory:", handlers=[make_order(**parts)])._entity_bridges == []


@pytest.mark.spec("002-4.4", "002-2.11")
def test_one_setting_of_a_definition_chooses() -> None:
    both = {"bullmq": {"enabled": True, "config": BULLMQ}, "kafka": {"enabled": False, **KAFKA}}
    (bridge,) = App(":memory:", handlers=[make_order(**both)])._entity_bridges
    assert isinstance(bridge, BullMQ)
    both["kafka"]["enabled"] = True
    with pytest.raises(ConfigError, match="entity 'order': messaging enables both bullmq and kafka"):
        App(":memory:", handlers=[make_order(**both)])


@pytest.mark.spec("002-5.5")
def test_mistakes_of_a_definition_are_found_at_the_start() -> None:
    wrong = {**BULLMQ, "events": [{**PAY, "event": "payd"}]}
    with pytest.raises(ConfigError, match="entity 'order': no target for event 'payd'; did you mean 'pay'"):
        App(":memory:", handlers=[make_order(bullmq=wrong)])
    with pytest.raises(ConfigError, match="unknown field `brokrs`"):
        App(":memory:", handlers=[make_order(kafka={"brokrs": "x"})])
    with pytest.raises(DefinitionError, match="move them into messaging"):
        make_order(bullmq=BULLMQ, messaging={"events": [PAY]})
    other = make_order(bullmq=BULLMQ, name="parcel")
    with pytest.raises(ConfigError, match="queue 'billing' has events of the entities 'order' and 'parcel'"):
        App(":memory:", handlers=[make_order(bullmq=BULLMQ), other])


@pytest.mark.spec("002-2.5", "002-2.6", "002-2.7", "002-2.8")
def test_the_defaults_are_those_of_the_specification() -> None:
    (bridge,) = read_messaging(define(True, False), TARGETS)
    assert isinstance(bridge, BullMQ)
    options = bridge._options
    assert (options.retry.attempts, options.retry.backoff.type, options.retry.backoff.delay_ms) == (
        3, "exponential", 30_000,
    )  # fmt: skip
    assert (options.keep_completed, options.keep_failed) == (KeepJobs(1000), KeepJobs(5000))
    assert (options.dead_letters.enabled, options.dead_letters.suffix) == (True, "-dlq")
