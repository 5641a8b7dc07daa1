"""Sentinels, cluster nodes and other servers that answer nonsense: our error with the address, soon, and no more memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import hiredis
import pytest

import redis_server
from penstock import App
from penstock.core.errors import StoreError, StoreUnavailable
from penstock.stores.redis import RedisStore, connection, pubsub, sentinels
from penstock.stores.redis.address import parse
from penstock.stores.redis.connection import Client
from penstock.stores.redis.lease_client import LeaseClient
from penstock.stores.redis.scripts import scripts
from penstock.stores.redis.topology import Topology

TEST_TIMEOUT_S = 30
HANG, CLOSE = b"hang", b"close"
Answer = Callable[[list[bytes]], bytes]


class FakeServer:
    """Answers each command with the bytes that a function returns."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.port = 0
        self.connections = 0
        self.never = asyncio.Event()  # kept here: the event loop has no other reference to tasks that wait for it

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        parser = hiredis.Reader()
        try:
            while data := await reader.read(65536):
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    if not await self._reply(self.answer(command), writer):
                        return
        except (ConnectionError, asyncio.CancelledError):
            pass  # the test is over
        finally:
            writer.transport.abort()

    async def _reply(self, data: bytes, writer: asyncio.StreamWriter) -> bool:
        if data == HANG:
            await self.never.wait()
        if data == CLOSE:
            return False
        if data.endswith(b"..."):  # without an end
            writer.write(data[:-3])
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        if data.endswith(CLOSE):
            writer.write(data.removesuffix(CLOSE))
            await writer.drain()
            return False
        writer.write(data)
        return True


@asynccontextmanager
async def fake(answer: Answer) -> AsyncIterator[FakeServer]:
    one = FakeServer(answer)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
        for _ in range(5):  # a connection that was accepted last starts its task
            await asyncio.sleep(0)
        for task in asyncio.all_tasks():
            if task.get_coro().__qualname__.startswith("FakeServer."):  # type: ignore[union-attr]
                task.cancel()
                await asyncio.wait((task,))
        await asyncio.sleep(0)  # closes their sockets


def flat(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def master(ip: bytes, port: bytes, flags: bytes = b"master") -> bytes:
    return flat(b"name", b"main", b"ip", ip, b"port", port, b"flags", flags)


SENTINEL_REPLIES = {
    "nothing": flat(),
    "nil": b"*-1\r\n",
    "a nil string": b"$-1\r\n",
    "an odd list": flat(b"name", b"main", b"ip"),
    "a list of lists": b"*1\r\n*2\r\n$1\r\na\r\n*-1\r\n",
    "nested nils": b"*4\r\n$2\r\nip\r\n$-1\r\n$4\r\nport\r\n$-1\r\n",
    "a number": b":7\r\n",
    "text": b"+OK\r\n",
    "an unknown name": b"-ERR No such master with that name\r\n",
    "no permission": b"-NOAUTH Authentication required.\r\n",
    "an error of bytes": b"-\xff\xfe\r\n",
    "a host that is not UTF-8": master(b"\xff\xfe", b"6379"),
    "a host with a space": master(b"a b", b"6379"),
    "a host with a zero byte": master(b"a\0b", b"6379"),
    "no host": master(b"", b"6379"),
    "a long host": master(b"h" * 5000, b"6379"),
    "text as port": master(b"127.0.0.1", b"many"),
    "port 0": master(b"127.0.0.1", b"0"),
    "port 99999": master(b"127.0.0.1", b"99999"),
    "a negative port": master(b"127.0.0.1", b"-1"),
    "a long port": master(b"127.0.0.1", b"9" * 5000),
    "other digits": master(b"127.0.0.1", "٣٣".encode()),
    "down": master(b"127.0.0.1", b"6379", b"s_down,o_down,master"),
    "a replica": master(b"127.0.0.1", b"6379", b"slave"),
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a bad length": b"*-7\r\n",
    "a huge list": b"*4294967295\r\n" + CLOSE,
    "a huge string": b"$999999999999\r\n...",
    "no end": b"+...",
    "closed in the middle": master(b"127.0.0.1", b"6379")[:-9] + CLOSE,
    "closed": CLOSE,
    "no answer": HANG,
}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentinels, "SENTINEL_TIMEOUT_S", 0.3)


def url_of(*servers: FakeServer) -> str:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"redis+sentinel://{hosts}/main/0"


@pytest.mark.parametrize("reply", SENTINEL_REPLIES.values(), ids=SENTINEL_REPLIES)
async def test_a_sentinel_that_answers_nonsense(reply: bytes) -> None:
    real = redis_server.server().port
    async with fake(lambda _: reply) as bad, fake(lambda _: master(b"127.0.0.1", b"%d" % real)) as good:
        address, both = parse(url_of(bad)), parse(url_of(bad, good))
        match = (
            rf"cannot find the master of redis at 127.0.0.1:{bad.port} \(main\).*check that the sentinels are running"
        )
        async with asyncio.timeout(TEST_TIMEOUT_S):
            with pytest.raises(StoreUnavailable, match=match) as problem:
                await RedisStore(url_of(bad)).open()
            assert len(str(problem.value)) < 600
            with pytest.raises(StoreUnavailable, match=match):
                await asyncio.to_thread(sentinels.find_master_blocking, address)
            # The next sentinel is asked.
            assert await sentinels.find_master(both) == ("127.0.0.1", real)
            assert await asyncio.to_thread(sentinels.find_master_blocking, both) == ("127.0.0.1", real)
        assert bad.connections <= 5


async def test_a_password_that_a_sentinel_refuses() -> None:
    async with fake(lambda _: b"-WRONGPASS invalid username-password pair\r\n") as bad:
        with pytest.raises(StoreUnavailable, match="WRONGPASS"):
            await sentinels.find_master(parse(url_of(bad) + "?sentinel_password=x"))


async def test_a_store_works_with_one_good_sentinel() -> None:
    real = redis_server.server().port
    async with (
        fake(lambda _: b"*-1\r\n") as bad,
        fake(lambda _: master(b"127.0.0.1", b"%d" % real)) as good,
        App(url_of(bad, good), handlers=(), namespace="sentinels") as app,
    ):
        await app.emit("order.made", {"n": 1})
        assert [event.data for event in await app.events.read("sentinels:global")][-1] == {"n": 1}


def node(reply: bytes) -> Answer:
    """Return a node that lets clients in and answers everything else with `reply`."""

    def answer(command: list[bytes]) -> bytes:
        name = command[0].upper()
        if name == b"SCRIPT":
            return flat(b"0" * 40)[4:]
        return b"+OK\r\n" if name in (b"CLIENT", b"SELECT", b"AUTH", b"PING", b"HELLO") else reply

    return answer


MOVES = {
    "no node": b"-MOVED\r\n",
    "no address": b"-MOVED 12\r\n",
    "text as slot": b"-MOVED x 127.0.0.1:6379\r\n",
    "no port": b"-MOVED 12 127.0.0.1\r\n",
    "text as port": b"-MOVED 12 127.0.0.1:many\r\n",
    "port 0": b"-MOVED 12 127.0.0.1:0\r\n",
    "port 99999": b"-MOVED 12 127.0.0.1:99999\r\n",
    "a host that is not UTF-8": b"-MOVED 12 \xff\xfe:6379\r\n",
    "a host with a zero byte": b"-MOVED 12 a\0b:6379\r\n",
    "a long label": b"-MOVED 12 " + b"h" * 200 + b".example:6379\r\n",
    "empty labels": b"-MOVED 12 a..b:6379\r\n",
    "a long text": b"-MOVED 12 " + b"h" * 100_000 + b":6379\r\n",
    "ask": b"-ASK 12 127.0.0.1:6379\r\n",
    "try again": b"-TRYAGAIN later\r\n",
    "down": b"-CLUSTERDOWN The cluster is down\r\n",
}


@pytest.mark.parametrize("reply", MOVES.values(), ids=MOVES)
async def test_a_node_that_names_no_other(reply: bytes) -> None:
    async with fake(node(reply)) as bad:
        topology = Topology(parse(f"redis://127.0.0.1:{bad.port}"))
        client, leases = Client(topology, "test"), LeaseClient(topology, "test")
        async with asyncio.timeout(TEST_TIMEOUT_S):
            with pytest.raises(StoreError, match=rf"redis at 127.0.0.1:{bad.port}"):
                await client.call("GET", "a")
            with pytest.raises(StoreError, match=rf"redis at 127.0.0.1:{bad.port}"):
                await asyncio.to_thread(leases.evaluate, next(iter(scripts().values())), [0])
        await client.close()
        leases.close()
        assert bad.connections < 12


async def test_a_loop_of_nodes() -> None:
    ports: list[int] = []

    def answer(command: list[bytes]) -> bytes:
        hop[0] += 1
        return node(b"-MOVED 12 127.0.0.1:%d\r\n" % ports[hop[0] % 2])(command)

    hop = [0]
    async with fake(answer) as one, fake(answer) as other:
        ports += [one.port, other.port]
        url = f"redis://127.0.0.1:{one.port}"
        client, leases = Client(Topology(parse(url)), "test"), LeaseClient(Topology(parse(url)), "test")
        async with asyncio.timeout(TEST_TIMEOUT_S):
            with pytest.raises(StoreUnavailable, match=rf"redis at 127.0.0.1:{one.port} .*MOVED"):
                await client.call("GET", "a")
            with pytest.raises(StoreUnavailable, match="MOVED"):
                await asyncio.to_thread(leases.evaluate, next(iter(scripts().values())), [0])
            with pytest.raises(StoreUnavailable, match="MOVED"):
                await anext(RedisStore(url).job_events("mail"))
        await client.close()
        leases.close()
        assert one.connections + other.connections <= 4 * (connection.MAX_REDIRECTS + 1)


NO_REDIS = {
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a bad length": b"$-7\r\n",
    "a huge list": b"*4294967295\r\n",
    "a huge string": b"$999999999999\r\n...",
    "no end": b"+...",
    "closed": CLOSE,
    "closed in the middle": b"$100\r\nabc" + CLOSE,
    "no answer": HANG,
}


@pytest.mark.parametrize("reply", NO_REDIS.values(), ids=NO_REDIS)
@pytest.mark.parametrize("is_at_once", [True, False], ids=["at once", "after the handshake"])
async def test_a_server_that_is_not_redis(
    reply: bytes, is_at_once: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "MAX_REPLY_BYTES", 2**20)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 1.0)
    monkeypatch.setattr(connection, "REPLY_TIMEOUT_S", 1.0)
    async with fake((lambda _: reply) if is_at_once else node(reply)) as bad:
        async with asyncio.timeout(TEST_TIMEOUT_S):
            with pytest.raises(StoreUnavailable, match=rf"redis at 127.0.0.1:{bad.port}"):
                await RedisStore(f"redis://127.0.0.1:{bad.port}").open()
    assert [one.message for one in caplog.records if one.name == "asyncio"] == []  # no error of the event loop


ODD_REPLIES = {
    "a number": b":7\r\n",
    "text": b"+OK\r\n",
    "nil": b"$-1\r\n",
    "nothing": b"*0\r\n",
    "nested": b"*1\r\n*1\r\n*-1\r\n",
    "an old version": b"$19\r\nredis_version:five\r\n\r\n",
    "bytes": b"$2\r\n\xff\xfe\r\n",
}


@pytest.mark.parametrize("reply", ODD_REPLIES.values(), ids=ODD_REPLIES)
async def test_a_server_that_answers_something_else(reply: bytes) -> None:
    async with fake(node(reply)) as bad:
        async with asyncio.timeout(TEST_TIMEOUT_S):
            with pytest.raises(StoreError, match=rf"redis at 127.0.0.1:{bad.port}"):
                await RedisStore(f"redis://127.0.0.1:{bad.port}").open()


async def test_bytes_that_come_one_by_one_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends a byte now and then never completes a reply."""
    monkeypatch.setattr(connection, "REPLY_TIMEOUT_S", 0.3)
    monkeypatch.setattr(connection, "SLOW_REPLY_TIMEOUT_S", 1.0)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"+")
        try:
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    host = server.sockets[0].getsockname()[:2]
    loop = asyncio.get_running_loop()
    _, one = await loop.create_connection(lambda: connection.Connection("redis at x", host), *host)
    async with asyncio.timeout(TEST_TIMEOUT_S):
        with pytest.raises(StoreUnavailable, match="redis at x"):
            await one.call(b"PING\r\n", 1)
    server.close()
    await asyncio.sleep(0.1)  # until the server has noticed


async def test_junk_on_the_channel_of_wake_ups(caplog: pytest.LogCaptureFixture) -> None:
    """Any program may publish there. The subscription stays."""
    url = redis_server.url()
    async with App(url, handlers=()) as app:
        subscription: pubsub.Subscription = app.store._subscription  # type: ignore[attr-defined]
        before, channel = subscription._connection, subscription._listeners[0].channel
        with app.store.signals.listen("after") as listener:
            for message in (b"\xff\xfe", b"", b"\n\xff", b"x" * 100_000, b"a\nafter"):
                await app.store._client.call("PUBLISH", channel, message)  # type: ignore[attr-defined]
            await listener.wait(TEST_TIMEOUT_S)
        assert subscription._connection is before
    assert [one.message for one in caplog.records if one.name == "asyncio"] == []


@pytest.mark.parametrize("host", ["h" * 200, "a..b", "."])
async def test_a_host_that_no_resolver_takes(host: str) -> None:
    with pytest.raises(StoreUnavailable, match="redis at"):
        await RedisStore(f"redis://{host}:6379").open()
