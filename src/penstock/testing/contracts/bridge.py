"""The contract every bridge keeps, as tests. A bridge's author subclasses one class:

    class TestMyBridge(BridgeContract):
        def make_bridge(self, consume=None, **options):
            return MyBridge(consume=consume, **options)
        ...

The other system is real: `send` adds a message as another program does, and `read_dead_letters` returns what that
program finds.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from ...app.app import App
from ...app.bridges import AppBridgeHost
from ...core.errors import BadArgument, Permanent, StoreUnavailable
from ...handlers.decorators import flow, job
from ...handlers.entities import entity
from ...messaging.targets import AddJob, EmitEvent, EmitToEntity, StartFlow
from ...ports.bridge import BridgeHost, Message, WriteUnits
from ..until import until

TIMEOUT_S = 30


async def note(entity: Any, payload: Any) -> None:
    """Append what an event brought."""
    entity.setdefault("seen", []).append(payload)


@flow("order")
async def order(input: Any) -> Any:
    return input


@job(queue="mail")
async def mail(input: Any) -> Any:
    return {"sent": input}


@entity("counter", queue="counters")
class CounterMachine:
    """Counts, and keeps what it was given in order."""

    states: ClassVar[Any] = {"initial": "open", "idles": ["open"], "finals": ["closed"], "failed": "failed"}
    transitions: ClassVar[Any] = [
        {"event": "counted", "from": "open", "to": "open", "actions": [note]},
        {"event": "closed", "from": "open", "to": "closed"},
    ]


class BridgeContract(ABC):
    """What a message does, how it fails, and what a bridge does when it stops."""

    @abstractmethod
    def make_bridge(self, consume: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Return a bridge. A message has three attempts, without a pause between them."""

    @abstractmethod
    async def make_queue(self, name: str) -> None:
        """Create a queue with its dead letter queue, if the other system requires that."""

    @abstractmethod
    async def send(self, queue: str, name: str, data: Any) -> None:
        """Add a message as another program does."""

    @abstractmethod
    async def read_dead_letters(self, queue: str) -> list[tuple[str, Any]]:
        """Return name and original data of the dead letters of a queue, as another program finds them."""

    @abstractmethod
    async def is_done(self, queue: str) -> bool:
        """Return whether no message of the queue is open."""

    @abstractmethod
    def make_unreachable_bridge(self) -> Any:
        """Return a bridge to an address where nothing listens."""

    async def _new_queue(self) -> str:
        name = f"q{uuid4().hex[:10]}"
        await self.make_queue(name)
        return name

    async def _until_done(self, queue: str) -> None:
        async def done() -> bool:
            return await self.is_done(queue)

        await until(done, TIMEOUT_S)

    def _app(self, bridge: Any) -> App:
        return App(":memory:", handlers=[order, mail, CounterMachine], bridges=[bridge])

    async def test_a_message_starts_a_run(self) -> None:
        queue = await self._new_queue()
        bridge = self.make_bridge({queue: StartFlow("order")})
        async with self._app(bridge) as app, app.workers.background():
            await self.send(queue, "placed", {"n": 1})
            await until(lambda: _count_runs(app, 1), TIMEOUT_S)
            (row,) = await app.runs.list()
            assert await app.result(row.id, timeout=TIMEOUT_S) == {"n": 1}
            await self._until_done(queue)

    async def test_depth_is_how_many_messages_wait(self) -> None:
        queue = await self._new_queue()
        bridge = self.make_bridge({queue: StartFlow("order")})
        async with self._app(bridge) as app:
            assert await bridge.depth(queue) == 0
            for n in range(3):
                await self.send(queue, "placed", {"n": n})

            async def depth(expected: int) -> bool:
                return await bridge.depth(queue) == expected  # type: ignore[no-any-return]

            await until(lambda: depth(3), TIMEOUT_S)
            async with app.workers.background():
                await until(lambda: depth(0), TIMEOUT_S)

    async def test_a_message_emits_an_event_or_becomes_a_job(self) -> None:
        one, other = await self._new_queue(), await self._new_queue()
        bridge = self.make_bridge({one: EmitEvent("order.paid"), other: AddJob("mail")})
        async with self._app(bridge) as app, app.workers.background():
            await self.send(one, "paid", {"n": 1})
            await self.send(other, "letter", {"n": 2})
            await self._until_done(one)
            await self._until_done(other)
            assert [e.data for e in await app.events.read("nq:global") if e.kind == "order.paid"] == [{"n": 1}]
            jobs = await until(lambda: app.jobs.list("mail", state="completed"), TIMEOUT_S)
            assert [row.result for row in jobs] == [{"sent": {"n": 2}}]

    async def test_messages_reach_their_entities_in_order(self) -> None:
        queue = await self._new_queue()
        bridge = self.make_bridge({queue: {"counted": EmitToEntity("counted"), "closed": EmitToEntity("closed")}})
        async with self._app(bridge) as app, app.workers.background():
            for n in range(20):
                data = {"urn": f"counter:{n % 2}", "payload": n, "jobName": "counted"}
                await self.send(queue, "counted", data)
            for n in range(2):
                await self.send(queue, "closed", {"urn": f"counter:{n}", "jobName": "closed"})
            for n in range(2):
                await app.entities.wait_for(f"counter:{n}", "closed", timeout=TIMEOUT_S)
                found = await app.entities.get(f"counter:{n}")
                assert found.data == {"seen": list(range(n, 20, 2))}
            await self._until_done(queue)

    async def test_a_message_without_a_urn_is_a_dead_letter_at_once(self) -> None:
        queue = await self._new_queue()
        async with self._app(self.make_bridge({queue: EmitToEntity("counted")})) as app, app.workers.background():
            await self.send(queue, "counted", {"payload": 1})
            ((_, data),) = await until(lambda: self.read_dead_letters(queue), TIMEOUT_S)
            assert data == {"payload": 1}

    async def test_each_message_reaches_one_target_by_its_name(self) -> None:
        queue, seen = await self._new_queue(), []

        def take(label: str) -> Any:
            async def handle(message: Message) -> None:
                seen.append((label, message.data["payload"]))

            return handle

        routes = {"paid": take("paid"), "cancelled": take("cancelled"), "*": take("rest")}
        async with self._app(self.make_bridge({queue: routes})) as app, app.workers.background():
            for n, name in enumerate(["paid", "cancelled", "paid", "shipped"]):
                await self.send(queue, name, {"urn": "urn:order:1", "payload": n, "jobName": name})
            await until(lambda: len(seen) >= 4, TIMEOUT_S)
            await self._until_done(queue)
        assert sorted(seen) == [("cancelled", 1), ("paid", 0), ("paid", 2), ("rest", 3)]

    async def test_a_message_without_a_target_is_a_dead_letter(self) -> None:
        queue = await self._new_queue()
        bridge = self.make_bridge({queue: {"paid": EmitEvent("order.paid")}})
        async with self._app(bridge) as app, app.workers.background():
            await self.send(queue, "payed", {"urn": "a", "payload": 1, "jobName": "payed"})
            ((_, data),) = await until(lambda: self.read_dead_letters(queue), TIMEOUT_S)
            assert data["payload"] == 1

    async def test_a_poison_message_is_one_dead_letter_and_the_rest_continue(self) -> None:
        queue, attempts, done = await self._new_queue(), [], []

        async def handle(message: Message) -> None:
            n = message.data["payload"]
            if n == 1:
                attempts.append(message.attempt)
                raise OSError("poison")
            done.append(n)

        async with self._app(self.make_bridge({queue: handle})) as app, app.workers.background():
            for n in range(5):
                await self.send(queue, "paid", {"urn": f"urn:order:{n}", "payload": n})
            await until(lambda: len(done) == 4, TIMEOUT_S)
            await until(lambda: self.read_dead_letters(queue), TIMEOUT_S)
            await self._until_done(queue)
            letters = await self.read_dead_letters(queue)
        assert attempts == [1, 2, 3]
        assert sorted(done) == [0, 2, 3, 4]
        assert [data for _, data in letters] == [{"urn": "urn:order:1", "payload": 1}]

    async def test_a_failure_that_passes_is_retried(self) -> None:
        queue, attempts = await self._new_queue(), []

        async def handle(message: Message) -> None:
            attempts.append(message.attempt)
            if message.attempt < 3:
                raise OSError("not yet")

        async with self._app(self.make_bridge({queue: handle})) as app, app.workers.background():
            await self.send(queue, "paid", {"urn": "a"})
            await until(lambda: len(attempts) == 3, TIMEOUT_S)
            await self._until_done(queue)
            assert await self.read_dead_letters(queue) == []
        assert attempts == [1, 2, 3]

    async def test_a_permanent_failure_is_not_retried(self) -> None:
        queue, attempts = await self._new_queue(), []

        async def handle(message: Message) -> None:
            attempts.append(message.attempt)
            raise Permanent("never")

        async with self._app(self.make_bridge({queue: handle})) as app, app.workers.background():
            await self.send(queue, "paid", {"urn": "a"})
            await until(lambda: self.read_dead_letters(queue), TIMEOUT_S)
        assert attempts == [1]

    async def test_an_effect_whose_answer_is_lost_happens_once(self) -> None:
        """The store commits, and its answer does not arrive: the message is delivered again."""
        queue = await self._new_queue()
        bridge = self.make_bridge({queue: AddJob("mail")})
        async with App(":memory:", handlers=[order, mail]) as app:
            host = LosingHost(app)
            await bridge.open(host)
            running = asyncio.create_task(bridge.run())
            await self.send(queue, "letter", {"n": 1})
            await self.send(queue, "letter", {"n": 2})
            await self._until_done(queue)
            running.cancel()
            await asyncio.wait((running,))
            await bridge.close()
            rows = await app.jobs.list("mail", state="waiting")
        assert host.lost == 2
        assert Counter(row.input["n"] for row in rows) == {1: 1, 2: 1}

    async def test_messages_keep_their_order(self) -> None:
        queue, seen = await self._new_queue(), []

        async def handle(message: Message) -> None:
            seen.append(message.data["payload"])

        async with self._app(self.make_bridge({queue: handle})) as app, app.workers.background():
            for n in range(30):
                await self.send(queue, "counted", {"urn": "urn:order:1", "payload": n})
            await until(lambda: len(seen) == 30, TIMEOUT_S)
        assert seen == list(range(30))

    async def test_produce_and_consume_without_an_app(self) -> None:
        queue, seen = await self._new_queue(), []

        async def handle(message: Message) -> None:
            seen.append((message.name, message.data["urn"], message.data["payload"]))

        bridge = self.make_bridge()
        await bridge.open()
        try:
            assert await bridge.is_healthy()
            consumption = await bridge.consume(queue, handle)
            assert await bridge.produce(queue, "paid", {"urn": "urn:order:7", "payload": {"amount": 3}})
            await until(lambda: seen, TIMEOUT_S)
            await consumption.close()
            assert not consumption.is_running
        finally:
            await bridge.close()
        assert seen == [("paid", "urn:order:7", {"amount": 3})]

    @pytest.mark.parametrize("data", [None, {}, {"payload": 1}, {"urn": 7}, {"urn": "a", "event": "b"}])
    async def test_produce_requires_a_urn(self, data: Any) -> None:
        bridge = self.make_bridge()
        await bridge.open()
        try:
            with pytest.raises(BadArgument, match="urn"):
                await bridge.produce("anything", "paid", data)
        finally:
            await bridge.close()

    async def test_close_completes_what_is_in_hand(self) -> None:
        queue, started, may_end, ended = await self._new_queue(), asyncio.Event(), asyncio.Event(), []

        async def handle(message: Message) -> None:
            started.set()
            await may_end.wait()
            ended.append(message.attempt)

        bridge = self.make_bridge(grace="30s")
        await bridge.open()
        consumption = await bridge.consume(queue, handle)
        await self.send(queue, "paid", {"urn": "a"})
        async with asyncio.timeout(TIMEOUT_S):
            await started.wait()
            closing = asyncio.create_task(bridge.close())
            await asyncio.sleep(0)
            may_end.set()
            await closing
        assert ended == [1]
        assert not consumption.is_running
        await self._until_done(queue)

    async def test_a_bridge_that_is_closed_or_unreachable_is_not_healthy(self) -> None:
        bridge = self.make_bridge()
        assert not await bridge.is_healthy()
        away = self.make_unreachable_bridge()
        try:
            await away.open()
        except StoreUnavailable:
            pass  # a bridge may refuse to open
        else:
            with pytest.raises(StoreUnavailable, match="anything"):
                await away.produce("anything", "paid", {"urn": "a"})
        assert not await away.is_healthy()
        await away.close()


class LosingHost(AppBridgeHost):
    """A host that loses the first answer of the store for each message."""

    def __init__(self, app: App, write: WriteUnits | None = None, seen: set[str] | None = None) -> None:
        super().__init__(app, write)
        self._seen: set[str] = seen if seen is not None else set()

    @property
    def lost(self) -> int:
        return len(self._seen)

    def with_writer(self, write: WriteUnits) -> BridgeHost:
        return LosingHost(self._app, write, self._seen)

    async def enqueue(self, queue: str, name: str | None, payload: Any, key: str) -> None:
        await super().enqueue(queue, name, payload, key)
        if key not in self._seen:
            self._seen.add(key)
            raise StoreUnavailable("the answer was lost")


async def _count_runs(app: App, count: int) -> bool:
    return len(await app.runs.list()) == count
