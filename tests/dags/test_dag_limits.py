"""Limits of dags: concurrency of a run, rates of types and nodes, and circuit breakers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Permanent, RateLimited
from penstock.core.errors import DagInvalid
from penstock.dags import DagBuilder, Fail
from penstock.dags import node as executor
from penstock.dags.breakers import Breakers
from penstock.dags.definition import read_dag
from penstock.testing import TestApp, until

RETRY = {"attempts": 2, "backoff": {"type": "fixed", "delay": "1s", "jitter": False}}


@executor("echo")
async def echo(input: Any) -> Any:
    return input


class Busy:
    """Counts how many calls are made at the same time."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.order: list[str] = []

    async def __aenter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    async def __aexit__(self, *_: Any) -> None:
        self.now -= 1


def fan_out(type: str, count: int, **options: Any) -> Any:
    dag = DagBuilder("d", **options)
    dag.add("start", "echo")
    for n in range(count):
        dag.add(f"n{n}", type, after="start")
    dag.add("end", "echo", after=[f"n{n}" for n in range(count)])
    return dag.build()


async def test_a_run_has_at_most_max_concurrency_nodes_at_once(app: Any) -> None:
    busy = Busy()

    @executor("work")
    async def work(input: Any, ctx: Any) -> str:
        async with busy:
            busy.order.append(ctx.step)
            await asyncio.sleep(0)
            return f"{ctx.step} {input}"

    async with app(echo, work) as a, a.workers.background():
        await a.dags.register(fan_out("work", 9, max_concurrency=2))
        result = await (await a.dags.start("d", "x", key="r1")).result(timeout=20)
        assert result == {f"n{n}": f"n{n} x" for n in range(9)}
        assert busy.most <= 2
        assert sorted(busy.order) == [f"n{n}" for n in range(9)]


async def test_a_waiting_node_leaves_its_place_to_others(kit: Any) -> None:
    dag = DagBuilder("d", max_concurrency=1)
    dag.add("wait", "delay", config={"duration": "1h"})
    dag.add("work", "echo")
    async with kit(echo) as a:
        await a.dags.register(dag.build())
        run = await a.dags.start("d", 5)
        await a.settle()
        assert (await a.runs.get(run.id)).steps["work"].status == "completed"
        assert (await a.finish(run.id)).result == {"wait": 5, "work": 5}


async def test_a_failed_node_of_a_limited_run_is_retried_with_its_input(memory: Any) -> None:
    @executor("flaky")
    async def flaky(input: Any, ctx: Any) -> Any:
        return input if ctx.n > 1 else Fail("not yet", retry=False)

    dag = DagBuilder("d", max_concurrency=1)
    dag.add("a", "echo")
    dag.add("b", "flaky", after="a")
    dag.add("c", "flaky")
    async with memory(echo, flaky) as a, a.workers.background():
        await a.dags.register(dag.build())
        run = await a.dags.start("d", {"x": 1}, key="r1")
        await a.runs.wait("r1", timeout=20)
        assert sorted(await a.dags.retry("r1")) == ["r1.b.2", "r1.c.2"]
        assert await run.result(timeout=20) == {"b": {"x": 1}, "c": {"x": 1}}


@pytest.mark.spec("004-3.4")
async def test_a_type_with_a_rate_limit_has_a_queue_of_its_own_and_all_workers_share_it(shared: Any) -> None:
    @executor("paced", rate_limit="3/1h")
    async def paced(input: Any) -> Any:
        return input

    @executor("slow", rate_limit="2/1h")
    async def slow(input: Any) -> Any:
        return input

    async with shared(echo, paced, slow) as a, shared(echo, paced, slow) as b:
        assert a.registry.problems == ()
        dag = DagBuilder("d")
        for n in range(6):
            dag.add(f"p{n}", "paced")
            dag.add(f"s{n}", "slow")
        dag.add("e", "echo")
        await a.dags.register(dag.build())
        async with a.workers.background(), b.workers.background():
            await a.dags.start("d", key="r1")

            async def find() -> Any:
                view = await a.runs.get("r1")
                done = [id for id, one in view.steps.items() if one.status == "completed"]
                return done if len(done) >= 6 else None

            done = await until(find)
        assert sorted(id[0] for id in done) == ["e", "p", "p", "p", "s", "s"]
        counts = await a.queues.counts("paced")
        assert counts["completed"] == 3


async def test_a_node_with_a_rate_limit_uses_no_attempt_while_it_waits(kit: Any) -> None:
    dag = DagBuilder("d")
    dag.add("a", "echo", rate_limit="2/1m")
    async with kit(echo) as a:
        await a.dags.register(dag.build())
        runs = [await a.dags.start("d", n) for n in range(5)]
        await a.settle()
        assert [(await a.runs.get(run.id)).status for run in runs].count("completed") == 2
        await a.advance("61s")
        assert [(await a.runs.get(run.id)).status for run in runs].count("completed") == 4
        views = [await a.finish(run.id) for run in runs]
        assert [view.result for view in views] == list(range(5))
        assert {view.steps["a"].attempt for view in views} == {1}


async def test_rate_limited_inside_a_node_uses_no_attempt(kit: Any) -> None:
    calls = []

    @executor("limited")
    async def limited(ctx: Any) -> Any:
        calls.append(ctx.attempt)
        if len(calls) < 3:
            raise RateLimited("10s")
        return "done"

    dag = DagBuilder("d")
    dag.add("a", "limited")
    async with kit(limited) as a:
        await a.dags.register(dag.build())
        run = await a.dags.start("d")
        view = await a.finish(run.id)
        assert (view.result, len(calls)) == ("done", 3)  # its policy has one attempt
        kinds = [event.kind for event in await a.events.read_all(f"nq:dag:{run.id}")]
        assert kinds.count("node.returned") == 2
        assert "node.failed" not in kinds


@pytest.mark.parametrize(
    ("dag", "expected"),
    [
        ({"maxConcurrency": 0}, "maxConcurrency: must be a whole number from 1, got 0"),
        ({"maxConcurrency": "2"}, "maxConcurrency: must be a whole number from 1, got '2'"),
        ({"concurrencyLockTTL": 5}, "concurrencyLockTTL: remove it"),
        ({"jobId": "x"}, "jobId: remove it"),
    ],
)
def test_a_wrong_limit_is_refused(dag: dict[str, Any], expected: str) -> None:
    with pytest.raises(DagInvalid) as problem:
        read_dag({"id": "d", "nodes": [{"id": "a", "type": "echo"}], **dag})
    assert problem.value.problems[0].startswith(expected)


def test_limits_are_read_back_as_they_are_shown() -> None:
    dag = read_dag(
        {"id": "d", "maxConcurrency": 3, "nodes": [{"id": "a", "type": "echo", "rateLimit": {"max": 2, "duration": "1m"}}]}
    )  # fmt: skip
    assert dag.nodes[0].rate_limit is not None
    assert (dag.nodes[0].rate_limit.max, dag.nodes[0].rate_limit.duration_ms) == (2, 60_000)
    assert read_dag(dag) == dag


async def test_a_rate_key_needs_an_input_when_the_node_is_enqueued() -> None:
    @executor("keyed", rate_limit="1/1m", rate_key="shop")
    async def keyed(input: Any) -> Any:
        return input

    joined = DagBuilder("d")
    joined.add("a", "echo")
    joined.add("b", "echo")
    joined.add("c", "keyed", after=["a", "b"])
    limited = DagBuilder("d", max_concurrency=1)
    limited.add("c", "keyed")
    async with TestApp(handlers=[echo, keyed]) as a:
        with pytest.raises(DagInvalid, match=r"nodes\[2\].type: 'keyed' has a rate_key, which a node with several"):
            a.dags.check(joined.build())
        with pytest.raises(DagInvalid, match="which a node with maxConcurrency cannot have"):
            a.dags.check(limited.build())


class Service:
    """A service that fails until it is healthy."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_healthy = False

    def answer(self, shop: str) -> str:
        self.calls.append(shop)
        if shop == "unknown":
            raise Permanent("no such shop")
        if not self.is_healthy:
            raise ConnectionError("no answer")
        return "ok"


async def test_a_breaker_opens_probes_once_and_closes(kit: Any) -> None:
    service = Service()

    @executor("shop", breaker={"failures": 3, "open_for": "30s", "key": "input.shop"})
    async def shop(input: Any) -> str:
        return service.answer(input["shop"])

    dag = DagBuilder("d")
    dag.add("a", "shop")
    async with kit(shop) as a:
        await a.dags.register(dag.build())

        async def call(shop: str) -> Any:
            return (await a.run_dag("d", {"shop": shop})).error

        assert "no answer" in await call("one")
        assert "no answer" in await call("one")
        assert [one.state for one in await a.dags.breakers()] == ["closed"]
        await call("one")
        (breaker,) = await a.dags.breakers()
        assert (breaker.type, breaker.key, breaker.state, breaker.failures) == ("shop", "one", "open", 3)
        assert "the circuit breaker of 'shop one' is open after 3 failures; the last one: ConnectionError" in (
            await call("one")
        )
        assert service.calls == ["one"] * 3
        await call("two")  # has a breaker of its own
        assert service.calls == ["one"] * 3 + ["two"]
        await a.advance("31s")
        await call("one")  # the probe
        await call("one")
        assert service.calls == ["one"] * 3 + ["two", "one"]
        await a.advance("31s")
        service.is_healthy = True
        assert await call("one") is None
        assert await call("one") is None
        assert [(one.key, one.state) for one in await a.dags.breakers()] == [("two", "closed")]


async def test_one_probe_at_a_time_over_all_workers(shared: Any) -> None:
    started, go = asyncio.Event(), asyncio.Event()
    service = Service()

    @executor("shop", breaker={"failures": 1, "open_for": "1ms"})
    async def shop(input: Any) -> str:
        if input == "probe":
            started.set()
            await go.wait()
            service.is_healthy = True
        return service.answer("one")

    dag = DagBuilder("d")
    dag.add("a", "shop")
    async with shared(shop) as a, shared(shop) as b, a.workers.background(), b.workers.background():
        await a.dags.register(dag.build())
        await a.dags.start("d", "fails", key="r0")
        await a.runs.wait("r0", timeout=20)
        await a.dags.start("d", "probe", key="probe")
        await started.wait()
        assert [one.state for one in await b.dags.breakers()] == ["half-open"]
        others = [await a.dags.start("d", "other", key=f"r{n}") for n in range(1, 9)]
        for run in others:
            await a.runs.wait(run.id, timeout=20)
            assert "the circuit breaker of 'shop' is half-open" in ((await a.runs.get(run.id)).error or "")
        go.set()
        assert (await a.runs.wait("probe", timeout=20)).status == "completed"
        assert await b.dags.breakers() == []
        assert await (await a.dags.start("d", "other")).result(timeout=20) == "ok"
        assert service.calls == ["one"] * 3


async def test_a_retry_waits_for_the_breaker_and_permanent_failures_do_not_count(kit: Any) -> None:
    service = Service()

    @executor("shop", breaker={"failures": 1, "open_for": "10m"}, retry=RETRY)
    async def shop(input: Any) -> str:
        return service.answer(input)

    dag = DagBuilder("d")
    dag.add("a", "shop")
    async with kit(shop) as a:
        await a.dags.register(dag.build())
        await a.run_dag("d", "unknown")
        assert await a.dags.breakers() == []
        first = await a.dags.start("d", "one")
        await a.settle()
        assert service.calls == ["unknown", "one"]
        second = await a.dags.start("d", "one")
        await a.settle()
        before = a.clock.now_ms()
        service.is_healthy = True
        assert (await a.finish(second.id)).result == "ok"
        assert a.clock.now_ms() - before >= 595_000  # not before a probe may be made
        await a.finish(first.id)


async def test_a_breaker_is_reset(memory: Any) -> None:
    service = Service()

    @executor("shop", breaker={"failures": 1, "open_for": "10m"})
    async def shop() -> str:
        return service.answer("one")

    dag = DagBuilder("d")
    dag.add("a", "shop")
    async with memory(shop) as a, a.workers.background():
        await a.dags.register(dag.build())
        await a.dags.start("d", key="r1")
        await a.runs.wait("r1", timeout=20)
        service.is_healthy = True
        assert await a.dags.reset_breaker("shop")
        assert not await a.dags.reset_breaker("shop")
        assert await (await a.dags.start("d")).result(timeout=20) == "ok"


async def test_a_lost_probe_is_replaced_by_another(kit: Any) -> None:
    """The worker that probed died: after a while another call probes."""
    service = Service()

    @executor("shop", breaker={"failures": 1, "open_for": "10s"})
    async def shop() -> str:
        return service.answer("one")

    dag = DagBuilder("d")
    dag.add("a", "shop")
    async with kit(shop) as a:
        await a.dags.register(dag.build())
        await a.run_dag("d")
        breakers: Breakers = a._dag_engine.breakers
        (found,) = await breakers.list()
        lost = type(found)("shop", "", "half-open", 1, a.clock.now_ms() + 60_000, "x", "lost.job")
        await breakers.change("shop", "", lambda _: lost)
        service.is_healthy = True
        assert (await a.run_dag("d")).status == "failed"
        await a.advance("61s")
        assert (await a.run_dag("d")).status == "completed"


@pytest.mark.parametrize(
    ("breaker", "expected"),
    [
        (5, "breaker must be a mapping"),
        ({"failures": 0}, "failures"),
        ({"key": "shop"}, "the key of a breaker must be a path such as"),
        ({"opens": 1}, "opens"),
    ],
)
def test_a_wrong_breaker_is_refused(breaker: Any, expected: str) -> None:
    with pytest.raises(Exception, match=expected):
        executor("shop", breaker=breaker)(echo)
