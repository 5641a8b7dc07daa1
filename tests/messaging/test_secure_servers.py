"""Bridges to servers that require more than an address: TLS, a login, Sentinel, Cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import kafka_server
from certificate_authority import Authority
from faults.faultkit.proxy import Proxy
from penstock import App
from penstock.core.errors import BadArgument, StoreError
from penstock.handlers.decorators import job
from penstock.messaging import AddJob
from penstock.messaging.bullmq import BullMQ
from penstock.messaging.kafka import Kafka
from penstock.ports.bridge import Message
from penstock.testing.until import until
from redis_groups import SentinelGroup, cluster
from redis_server import Server
from secure_broker import SecureBroker

TIMEOUT_S = 60
LOGIN = {"username": "ann", "password": "p:w@d"}
RIGHTS = "resetchannels ~bull:* ~bull-bridge:* &bull-bridge:live:* -@all +@read +@write +@connection +@pubsub +@scripting +select +info +time"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[kafka_server.Broker]:
    one = kafka_server.Broker()
    one.create("billing", 1)
    one.create("billing-dlq", 1)
    yield one
    one.stop()


@job(queue="mail")
async def mail(input: Any) -> Any:
    return input


async def pass_messages(bridge: Any) -> None:
    """Let a message become a job, and one fail for good."""
    async with App(":memory:", handlers=[mail], bridges=[bridge]) as app, app.workers.background():
        assert await bridge.is_healthy()
        await bridge.produce("billing", "paid", {"urn": "a", "payload": 1})
        done = await until(lambda: app.jobs.list("mail", state="completed"), TIMEOUT_S)
        assert [one.input for one in done] == [{"urn": "a", "payload": 1}]
        letters: list[Any] = []

        async def keep(message: Message) -> None:
            letters.append((message.name, message.data["originalData"]))

        await bridge.consume("billing-dlq", keep)
        await bridge.produce("billing", "bad", {"urn": "b"})
        await until(lambda: letters, TIMEOUT_S)
        assert letters == [("bad-failed", {"urn": "b"})]


CONSUME = {"billing": {"paid": AddJob("mail")}}


async def test_kafka_with_tls(broker: kafka_server.Broker, authority: Authority) -> None:
    async with SecureBroker(broker.address, authority.context()) as secure:
        ca = {"ca": str(authority.file)}
        await pass_messages(Kafka(secure.address, client_id="billing", consume=CONSUME, tls=ca, retry=1))
        assert secure.clients == {"billing"}
        async with Kafka(secure.address, tls=True) as stranger:
            assert not await stranger.is_healthy(), "the certificate is not trusted"


async def test_kafka_with_a_login(broker: kafka_server.Broker, authority: Authority) -> None:
    login = (LOGIN["username"], LOGIN["password"])
    async with SecureBroker(broker.address, authority.context(), login) as secure:
        tls = {"ca": str(authority.file)}
        await pass_messages(Kafka(secure.address, consume=CONSUME, tls=tls, sasl=LOGIN, retry=1))
        async with Kafka(secure.address, tls=tls, sasl={**LOGIN, "password": "wrong"}) as stranger:
            assert not await stranger.is_healthy()
            with pytest.raises(StoreError, match="cannot send to topic 'billing'") as problem:
                await stranger.produce("billing", "paid", {"urn": "a"})
            assert "wrong" not in str(problem.value).replace("wrong password", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sasl": {"username": "ann"}}, "sasl requires username and password"),
        ({"tls": {"cafile": "ca.pem"}}, "unknown option 'cafile' of tls; the options are ca, cert, key, password"),
        ({"tls": {"ca": "none.pem"}}, "tls: the files cannot be read"),
    ],
)
def test_wrong_options_of_kafka_are_refused(options: Any, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        Kafka("broker:9092", **options)


async def test_bullmq_with_tls_and_a_user(tmp_path: Path, authority: Authority) -> None:
    """The user has the rights that docs/messaging.md lists."""
    server = Server(tmp_path)
    server.command("ACL", "SETUSER", "ann", "on", f">{LOGIN['password']}", *RIGHTS.split())
    server.command("ACL", "SETUSER", "default", "off")

    try:
        async with Proxy(server.port, authority.context()) as secure:
            url = f"rediss://ann:p%3Aw%40d@127.0.0.1:{secure.port}/0?ca={authority.file}"
            await pass_messages(BullMQ(url, consume=CONSUME, poll="20ms", retry=1))
    finally:
        server.stop()


async def test_bullmq_by_sentinels(tmp_path: Path) -> None:
    group = SentinelGroup(tmp_path)
    try:
        await pass_messages(BullMQ(group.url(), consume=CONSUME, poll="20ms", retry=1))
    finally:
        group.stop()


@pytest.mark.spec("002-7.5")
async def test_bullmq_on_a_cluster() -> None:
    with cluster() as nodes:
        await pass_messages(
            BullMQ(f"redis://127.0.0.1:{nodes[0].port}/0", prefix="{bull}", consume=CONSUME, poll="20ms", retry=1)
        )
