"""Keys that are functions of a TypeScript config: a worker evaluates them, and each starts its work once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from msgspec.structs import replace
from node_files import SharedRunner

import postgres_server
from penstock import App, Node
from penstock.commit.command_sink import DirectSink
from penstock.core.errors import NodeMissing, NotRouted, RunFailed
from penstock.dags import DagBuilder
from penstock.flows.routed_starts import StartRouteWork
from penstock.ports.unit import JobState
from penstock.testing import TestApp, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILES = {
    "bill.ts": """
        export const config = {
          flow: { id: 'bill', role: 'main', startOn: [{ kind: 'order.placed' }], webhook: 'orders' },
          idempotencyKey: (input: { order: string }) => `bill-${input.order}`,
        }
        export default async (input: { order: string, cents?: number }) => input.cents ?? 0
    """,
    "mail.ts": """
        export const config = { idempotencyKey: (input) => input.to, rateLimit: { max: 1, duration: '1h' }, rateKey: (input) => input.to.length }
        export default async (input) => `mailed ${input.to}`
    """,
    "slow.ts": """
        export const config = { rateLimit: { max: 1, duration: '1h' }, rateKey: (input) => input.shop }
        export default async (input) => input.n
    """,
    "broken.ts": """
        export const config = { idempotencyKey: (input) => input.x.y }
        export default async () => 1
    """,
    "impure.ts": """
        let calls = 0
        export const config = { flow: { id: 'impure', role: 'main' }, idempotencyKey: () => `impure-${++calls}` }
        export default async () => 1
    """,
    "lost.ts": """
        export const config = { flow: { id: 'lost', role: 'main' }, idempotencyKey: (input) => (input ? input.id : {}) }
        export default async () => 1
    """,
    "ship.ts": """
        export const config = {
          flow: { id: 'orders', step: 'ship', mode: 'each', triggers: 'ordered' },
          rateLimit: { max: 1, duration: '1h' }, rateKey: (input) => input.shop.toUpperCase(),
        }
        export default async (input) => input.n
    """,
    "ship_node.ts": """
        export const config = { node: 'ship-node', rateLimit: { max: 1, duration: '1h' }, rateKey: (input) => input.shop }
        export default async (input) => input
    """,
    "waits.ts": """
        export const config = { flow: { id: 'waits', role: 'main', accepts: ['approved'] }, idempotencyKey: (input) => `waits-${input.id}` }
        export default async (input, ctx) => { await ctx.await.event({ kind: 'approved' }); return 1 }
    """,
    "large.ts": """
        export const config = { flow: { id: 'when', step: 'large', subscriptions: [{ kind: 'counted', when: (event) => event.data > 5 }] } }
        export default async (input) => input
    """,
    "starter.py": '''
        from penstock import flow, job

        @flow("starter", emits=[])
        async def starter(order, ctx):
            job, run = ctx.enqueue("mail", {"to": "eve"}), ctx.start("bill", {"order": order, "cents": 3})
            return [job, run, await ctx.call("bill", {"order": f"{order}-child", "cents": 4})]

        @flow("caller", emits=[])
        async def caller(input, ctx):
            return await ctx.call("lost", {"id": "not an id!"}, on_failure="return")

        @flow("when", emits=["counted"])
        async def when(input, ctx):
            ctx.emit("counted", input["n"])

        @flow("launcher", emits=[])
        async def launcher(input, ctx):
            return ctx.start("bill", {"order": "launched", "cents": 8})

        @flow("orders", emits=["ordered"])
        async def orders(inputs, ctx):
            for one in inputs:
                ctx.emit("ordered", one)

        @job(queue="parent")
        async def parent(input, ctx):
            return list((await ctx.children_values()).values())
    ''',
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host() -> AsyncIterator[SharedRunner]:
    shared = SharedRunner()
    yield shared
    await shared.inner.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("keys") / "workers"
    root.mkdir()
    for name, text in FILES.items():
        lines = text.splitlines()
        indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
        (root / name).write_text("\n".join(line[indent:] for line in lines))
    return root


@pytest.fixture
def make(folder: Path, host: SharedRunner, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TestApp]:
    host.install(monkeypatch)
    return lambda url=":memory:", **more: TestApp(url, folder, **more)


Make = Callable[..., TestApp]


async def start_both(app: TestApp) -> list[str]:
    return [await app.start("bill", {"order": "7", "cents": cents}) for cents in (5, 6)]


async def test_the_key_is_the_id_of_the_run(make: Make, url: str) -> None:
    """A function of TypeScript gives the run of a Python one: the same id, the same events, once."""
    async with make(url) as app:
        assert app.registry.problems == ()
        first, again = await start_both(app)
        assert (await app.finish(first)).id == "bill-7"
        assert [await app.result(run) for run in (first, again, "bill-7")] == [5, 5, 5], "each stands for the one run"
        await app.emit("order.placed", {"order": "7", "cents": 8})
        receipt = await app.webhooks.receive("orders", body=b'{"order": "8", "cents": 9}')
        again = await app.webhooks.receive("orders", body=b'{"order": "8", "cents": 10}')
        await app.settle()
        assert sorted(run.id for run in await app.runs.list(flow="bill")) == ["bill-7", "bill-8"]
        assert [await app.result(one.run or "") for one in (receipt, again)] == [9, 9]
        assert [e.data["run"] for e in await app.events.read_all("nq:webhook:orders")] == ["bill-8"]
        kinds = [event.kind for event in await app.events.read_all("nq:flow:bill-7")]
        assert kinds == ["flow.started", "step.started", "step.completed", "flow.completed"], "as if started at once"
        assert (await app.runs.get("bill-7")).correlation_id == "bill-7"
        assert await app.store.stuck_runs() == []


async def test_every_call_takes_the_id_that_was_returned(make: Make) -> None:
    async with make() as app:
        run = await app.start("waits", {"id": "w"})
        await app.settle()
        assert [wait.run for wait in await app.pending_waits(run)] == ["waits-w"]
        assert await app.runs.pause(run)
        assert await app.runs.resume(run)
        assert "approved" in " ".join(await app.runs.why(run))
        assert (await app.runs.export(run)).startswith(b'{"penstock"')
        assert (await app.runs.diagram(run))["nodes"]
        await app.emit("approved", run=run)
        assert (await app.finish(run)).status == "completed"
        assert [event.kind async for event in limited(app.runs.follow(run), 1)] == ["flow.started"]
        other = await app.runs.replay(run)
        await app.settle()
        assert await app.runs.cancel(other)


async def limited(events: AsyncIterator[Any], count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await anext(events)


async def test_without_a_worker_nothing_has_started(folder: Path, tmp_path: Path, make: Make) -> None:
    """A process without Node starts and enqueues. Readers say what is missing; those who wait go on waiting."""
    url = f"sqlite:///{tmp_path}/keys.db"
    async with App(url, folder) as web:
        web._node.make_runner = find_no_node  # type: ignore[method-assign]
        run, job = await web.start("bill", {"order": "1", "cents": 2}), await web.enqueue("mail", {"to": "ada"})
        limited_job = await web.enqueue("slow", {"shop": "x", "n": 1}, key="by-hand")
        assert limited_job == "by-hand"
        for read in (web.runs.get(run), web.jobs.get(job), web.jobs.get(limited_job), web.runs.cancel(run)):
            with pytest.raises(NotRouted, match="a worker with Node"):
                await read
        waiting = [
            asyncio.create_task(one) for one in (web.result(run), web.jobs.result(job), web.jobs.result(limited_job))
        ]
        async with App(url, folder) as worker, worker.workers.background():
            assert await asyncio.wait_for(asyncio.gather(*waiting), 30) == [2, "mailed ada", 1]
        assert (await web.jobs.get(job)).id == "ada"
        assert (await web.runs.get(run)).id == "bill-1"


async def test_jobs_are_added_once(make: Make, url: str) -> None:
    async with make(url) as app:
        ids = await app.jobs.enqueue_many("mail", [{"to": "ada"}, {"to": "eve"}, {"to": "ada"}])
        await app.settle()
        assert [(await app.jobs.get(id)).id for id in ids] == ["ada", "eve", "ada"]
        assert (await app.queues.counts("mail"))["completed"] == 1, "the rate key of both is 3: one an hour"
        added = [e.subject for e in await app.events.read_all("nq:queue:mail") if e.kind == "job.added"]
        assert added == ["ada", "eve"]
        assert [await app.jobs.result(id) for id in ids] == ["mailed ada", "mailed eve", "mailed ada"]


async def test_rate_keys_of_jobs_and_steps(make: Make, url: str) -> None:
    async with make(url) as app:
        inputs = [{"shop": shop, "n": n} for n, shop in enumerate(("a", "a", "b"))]
        ids = await app.jobs.enqueue_many("slow", inputs)
        run = await app.start("orders", inputs)
        await app.settle()
        assert [(await app.jobs.get(id)).state for id in ids] == ["completed", "delayed", "completed"]
        view = await app.runs.get(run)
        assert sorted(
            e.data["result"]
            for e in await app.events.read_all(f"nq:flow:{run}")
            if e.step == "ship" and e.kind == "step.completed"
        ) == [0, 2]
        assert view.status == "running"
        assert (await app.finish(run)).result == [0, 1, 2]


async def test_handlers_and_trees_start_work_with_keys(make: Make, url: str) -> None:
    async with make(url) as app:
        job, run, child = (await app.run_flow("starter", "9")).result
        assert (await app.jobs.result(job), (await app.runs.get(run)).id, child) == ("mailed eve", "bill-9", 4)
        (called,) = [one.id for one in await app.runs.list(flow="bill") if one.id != "bill-9"]
        assert called == "bill-9-child"
        tree = await app.jobs.enqueue_tree(
            Node("parent", input=1, key="root", children=[Node("mail", input={"to": "leaf"})])
        )
        assert await app.jobs.result(tree.id) == ["mailed leaf"]
        assert [one.id for one in await app.jobs.children("root")] == ["leaf"]
        assert (await app.jobs.get(tree.children[0].id)).id == "leaf"
        assert await app.store.stuck_runs() == []


async def test_a_key_function_that_fails(make: Make) -> None:
    """Nothing starts, and the id that was returned tells why; a dead letter starts it again after a fix."""
    async with make() as app:
        job, run = await app.enqueue("broken", {}), await app.start("lost", {"id": "not an id!"})
        for read in (app.jobs.get(job), app.runs.get(run)):
            await app.settle()
            with pytest.raises(RunFailed, match=r"TypeError|BadId"):
                await read
        failed = (await app.run_flow("caller")).result
        assert (failed["status"], "BadId" in failed["error"]) == ("failed", True)
        assert len(await app.dead_letters.list("penstock-events")) == 2
        view = await app.run_flow("orders", [{"shop": None, "n": 1}])
        (step,) = [e for e in await app.events.read_all(f"nq:flow:{view.id}") if e.kind == "step.failed"]
        assert (view.status, step.step, step.data["code"]) == ("failed", "ship", "rate_key_failed")
        assert await app.store.stuck_runs() == []


async def test_a_start_in_a_transaction(make: Make) -> None:
    """What follows in the transaction reaches the run, whose own id nobody knows yet."""
    url = postgres_server.url()
    async with make(url) as app:
        tx = await asyncpg.connect(url.partition("?")[0])
        async with tx.transaction():
            run = await app.start("waits", {"id": "t"}, tx=tx)
            await app.emit("approved", run=run, tx=tx)
        await tx.close()
        assert (await app.finish(run)).id == "waits-t"


@pytest.mark.parametrize("is_atomic", [True, False], ids=["one commit", "mutant"])
async def test_a_route_that_is_repeated_starts_one_run(
    make: Make, monkeypatch: pytest.MonkeyPatch, is_atomic: bool
) -> None:
    """Its worker dies after the function has returned a key, and the function returns another one the next time."""
    evaluate, on_success, deaths = StartRouteWork._evaluate, StartRouteWork.on_success, ["first"]

    async def evaluate_and_start(self: StartRouteWork) -> None:
        await evaluate(self)
        assert self._routed is not None
        await self._engine.start(
            replace(self._routed.start, run=self._key, correlation_id=self._key), DirectSink(app._committer)
        )

    def die_once(self: StartRouteWork, success: Any) -> Any:
        if deaths:
            raise ConnectionError(deaths.pop())
        return on_success(self, success)

    monkeypatch.setattr(StartRouteWork, "on_success", die_once)
    if not is_atomic:
        monkeypatch.setattr(StartRouteWork, "_evaluate", evaluate_and_start)
    async with make() as app:
        assert (await app.finish(await app.start("impure"))).status == "completed"
        assert (len(await app.runs.list(flow="impure")) == 1) is is_atomic


async def test_a_schedule_waits_for_a_job_that_is_about_to_be_added(make: Make) -> None:
    async with make() as app:
        app._node.make_runner = find_no_node  # type: ignore[method-assign]
        await app.schedules.add("often", every="1m", queue="slow", input={"shop": "a", "n": 1}, overlap="skip")
        await app.advance("10m")
        rows = [job for job in await app.store.jobs("penstock-events", JobState.DELAYED) if job.name == "route-job"]
        assert len(rows) == 1, "one slot, though its job is nowhere yet"


async def test_routes_are_exported(folder: Path, make: Make, tmp_path: Path) -> None:
    """An event whose `when` nobody has evaluated, a step without its rate key, a start without its key."""
    async with App(f"sqlite:///{tmp_path}/old.db", folder) as old:
        old._node.make_runner = find_no_node  # type: ignore[method-assign]
        order, many = await old.start("when", {"n": 1}, key="one"), await old.start("when", {"n": 7}, key="seven")
        await old.start("orders", [{"shop": "a", "n": 1}], key="steps")
        await old.start("launcher", key="launches")
        async with old.workers.background():
            await until(lambda: has_routes(old, 4), 20)
        lines = [line async for line in old.runs.export_all()]
    async with App(f"sqlite:///{tmp_path}/new.db", folder) as new:
        assert sorted(await new.runs.import_(b"\n".join(lines))) == ["launches", "one", "seven", "steps"]
        async with new.workers.background():
            for run in (order, many, "steps", "launches"):
                await new.runs.wait(run, timeout=20)
            assert [list((await new.runs.get(run)).steps) for run in (order, many)] == [["when"], ["when", "large"]]
            assert await new.result("steps") == [1]
            assert await new.result(await new.result("launches"), timeout=20) == 8


def find_no_node() -> Any:
    raise NodeMissing("no Node here")


async def has_routes(app: App, count: int) -> bool:
    jobs = [job for state in ("waiting", "delayed") for job in await app.store.jobs("penstock-events", JobState(state))]
    return sum(job.name.startswith("route") for job in jobs) == count


async def test_one_handler_is_executed_by_its_key(make: Make) -> None:
    async with make() as app:
        frames = [frame async for frame in app.execute("mail", {"to": "frames"})]
        assert (frames[-1].event, frames[-1].job) == ("completed", "frames")
        (again,) = [frame async for frame in app.execute("mail", {"to": "frames"})]
        assert again.data["result"] == "mailed frames"


async def test_a_node_has_a_rate_key(make: Make) -> None:
    async with make() as app:
        dag = DagBuilder("two")
        for name in ("one", "two"):
            dag.add(name, "ship-node")
        await app.dags.register(dag.build())
        run = await app.dags.start("two", {"shop": "a"})
        await app.settle()
        view = await app.runs.get(run.id)
        assert sum(step.status == "completed" for step in view.steps.values()) == 1
        assert (await app.finish(run.id)).status == "completed"
