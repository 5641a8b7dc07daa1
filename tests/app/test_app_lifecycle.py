"""The lifecycle of an App: what opens also closes, several Apps are independent, settings and their sources."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import App, SyncApp, flow, job, step
from penstock.core.errors import ConfigError, RunFailed, SettingError, StoreUnavailable, UnknownQueue
from penstock.core.ids import BadId
from penstock.entities import States, Transition, entity
from penstock.settings import Settings
from penstock.testing.until import until


@flow("shop", emits=["ordered"])
async def order(input: Any, ctx: Any) -> None:
    ctx.emit("ordered", input)


@step(on="ordered")
def ship(input: Any, ctx: Any) -> Any:
    ctx.log("shipping")
    return {"shipped": input}


@job(queue="sums")
def add(input: Any) -> int:
    return sum(input)


# Names


PACKAGES = ("penstock", "penstock.app", "penstock.dags", "penstock.entities", "penstock.testing")


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_are_sorted_and_have_docstrings(name: str) -> None:
    package = import_module(name)
    assert package.__all__ == sorted(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    for public in package.__all__:
        assert (getattr(package, public).__doc__ or "").strip(), f"{public} has no docstring"
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nope'"):
        _ = package.nope


def test_few_names_are_in_the_package_itself() -> None:
    assert set(penstock.__all__) == {
        *("App", "Context", "Event", "Run", "SyncApp", "SyncContext", "SyncRun", "flow", "job", "step"),
        *("Await", "Backoff", "Node", "RetryPolicy", "Signature", "Subscription", "sign"),
        *("AwaitTimeout", "ChildFailure", "PenstockError", "Permanent", "RateLimited", "Retry"),
    }
    kinds = [set(import_module(name).__all__) for name in ("penstock.dags", "penstock.entities")]
    assert not set(penstock.__all__) & kinds[0] | kinds[0] & kinds[1] | kinds[1] & set(penstock.__all__)


def test_a_worker_file_loads_only_what_it_needs() -> None:
    code = """
import sys
from penstock import Context, flow, job, step
from penstock.dags import Fail, Next, Skip, node
from penstock.entities import Rejected, States, Transition, entity, on_event
heavy = {"cyclopts", "fastapi", "jsonschema_rs", "penstock.dags.engine", "penstock.entities.engine", "pydantic", "rich"}
print(sorted(heavy & set(sys.modules)))
"""
    out = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


# Opening and closing


def ours() -> set[str]:
    """Return our living threads."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")}


@pytest.mark.spec("000-4.1.1", "000-12.1")
async def test_everything_that_starts_also_stops(app: Any) -> None:
    before = asyncio.all_tasks()
    async with app(order, ship, add, concurrency=5) as a:
        received: list[Any] = []
        await a.events.on_kind("flow.completed", received.append)
        await a.schedules.add("s", queue="sums", input=[1], every="1h")
        async with a.workers.background():
            for n in range(5):
                await a.run_for_result("shop", n)
                await a.jobs.result(await a.enqueue("sums", [1, n]), timeout=20)
        assert ours() or a.settings.url.startswith("redis"), "a store of files has threads while it is open"
    await until(lambda: not ours())
    left = {task.get_name() for task in asyncio.all_tasks() - before}
    assert left == set()


async def test_closing_waits_for_the_last_live_output(app: Any) -> None:
    @job(queue="talks")
    def talks(ctx: Any) -> None:
        for i in range(400):
            ctx.log(f"line {i}")

    before = asyncio.all_tasks()
    async with app(talks) as a, a.workers.background():
        for _ in range(5):
            await a.jobs.result(await a.enqueue("talks"), timeout=20)
    await until(lambda: not ours())
    assert {task.get_name() for task in asyncio.all_tasks() - before} == set()


@pytest.mark.spec("000-4.1.1")
async def test_closing_twice_and_opening_twice(memory: Any) -> None:
    a = memory(order)
    await a.close()
    await a.open()
    with pytest.raises(ConfigError, match="already open"):
        await a.open()
    await a.close()
    await a.close()


async def test_a_closed_app_raises(app: Any) -> None:
    async with app(order) as a:
        await a.start("shop")
    for ask in (
        lambda: a.start("shop"),
        lambda: a.runs.list(),
        lambda: a.enqueue("sums", [1]),
        lambda: a.events.read("nq:global"),
    ):
        with pytest.raises(StoreUnavailable, match=r"^this App is closed \(store .*\); use it inside"):
            await ask()


async def test_a_closed_app_works_on_nothing(memory: Any) -> None:
    """Its worker would wait for a store that does not come back, also if the App had no worker while it was open."""
    async with memory(order) as a:
        pass
    await asyncio.wait_for(a.workers.run(), 5)


@pytest.mark.spec("000-4.1.1")
async def test_an_app_that_was_never_opened_raises(memory: Any) -> None:
    a = memory(order)
    for ask in (
        lambda: a.start("shop"),
        lambda: a.runs.list(),
        lambda: a.enqueue("sums", [1]),
        lambda: a.runs.cancel("x"),
    ):
        with pytest.raises(ConfigError, match="async with"):
            await ask()


async def test_an_app_can_be_opened_again(shared: Any) -> None:
    a = shared(order, ship)
    async with a:
        run = await a.start("shop", 1)
    async with a, a.workers.background():
        assert await a.result(run, timeout=20) == {"shipped": 1}


async def test_a_store_that_cannot_be_opened_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "not-a-db").write_bytes(b"this is no database, by any means" * 100)
    before = ours()
    app = App(f"sqlite:///{tmp_path}/not-a-db", handlers=[order])
    with pytest.raises(penstock.PenstockError):
        await app.open()
    await until(lambda: ours() <= before)
    await app.close()


async def test_two_apps_in_one_process_are_independent(memory: Any) -> None:
    async with memory(order, ship) as a, memory(order, ship) as b, a.workers.background(), b.workers.background():
        run, other = await a.start("shop", "a", key="k"), await b.start("shop", "b", key="k")
        assert await a.result(run, timeout=20) == {"shipped": "a"}
        assert await b.result(other, timeout=20) == {"shipped": "b"}
        await a.state.set("x", 1)
        assert await b.state.get("x") is None
        assert len(await a.runs.list()) == len(await b.runs.list()) == 1


async def test_an_app_inside_a_server_that_handles_requests(app: Any) -> None:
    """As in a web application: opened once, a worker in the background, many concurrent requests, some of which are cancelled."""
    async with app(order, ship, concurrency=20) as a:
        worker = asyncio.create_task(a.workers.run())

        async def request(n: int) -> Any:
            return await a.run_for_result("shop", n)

        async def impatient(n: int) -> None:
            task = asyncio.create_task(a.start("shop", f"impatient {n}"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

        answers, _ = await asyncio.gather(
            asyncio.gather(*(request(n) for n in range(50))), asyncio.gather(*(impatient(n) for n in range(20)))
        )
        assert answers == [{"shipped": n} for n in range(50)]
        for row in await a.runs.list(limit=100):
            assert await a.wait_for_end(row.id) == "completed", "a request that gave up leaves a whole run or none"
        a.workers.stop()
        await worker


@pytest.mark.spec("003-3.5")
async def test_runs_are_listed_by_flow_and_status_and_by_page(app: Any) -> None:
    @flow("other")
    async def other() -> None:
        raise ValueError("no")

    async with app(order, ship, other) as a, a.workers.background():
        shops = [(await a.run_to_end("shop", n))[0] for n in range(5)]
        bad, _ = await a.run_to_end("other")
        assert {row.id for row in await a.runs.list()} == {*shops, bad}
        assert [row.id for row in await a.runs.list(flow="other")] == [bad]
        assert [row.id for row in await a.runs.list(status="failed")] == [bad]
        assert await a.runs.list(flow="shop", status="failed") == []
        first = await a.runs.list(flow="shop", limit=2)
        rest = await a.runs.list(flow="shop", before=first[-1].id, limit=10)
        assert [row.id for row in (*first, *rest)] == [row.id for row in await a.runs.list(flow="shop")]
        assert await a.runs.list(flow="shop", before=rest[-1].id) == []
        for search in ({}, {"flow": "shop"}, {"where": 1}):
            with pytest.raises(BadId, match="no run with id 'nope'; before= must be"):
                await a.runs.list(before="nope", **search)


# Without an event loop


def test_a_plain_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from penstock import SyncApp, flow, step, job

            @flow("shop", emits=["ordered"])
            def order(input, ctx):
                ctx.emit("ordered", input)

            @step(on="ordered")
            def ship(input):
                return {"shipped": input}

            @job(queue="sums")
            def add(input):
                return sum(input)

            with SyncApp(":memory:", handlers=[order, ship, add]) as app:
                app.workers.start()
                run = app.start("shop", 7)
                print(app.result(run, timeout=20), app.runs.wait(run).status, app.runs.get(run).status)
                print(app.jobs.result(app.enqueue("sums", [1, 2]), timeout=20))
                print([app.jobs.result(id, timeout=20) for id in app.jobs.enqueue_many("sums", [[1], [2]])])
                print(next(app.runs.follow(run)).kind, app.runs.cancel(run))
                app.emit("anything", 1)
                print(app.schedules.add("s", queue="sums", input=[1], every="1h").id)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", str(script)], capture_output=True, text=True, timeout=60
    )
    # On a busy machine the event loop's debug mode logs slow iterations, which is not a failure.
    assert [line for line in done.stderr.splitlines() if not line.startswith("Executing ")] == []
    assert done.stdout.splitlines() == [
        "{'shipped': 7} completed completed",
        "3",
        "[1, 2]",
        "flow.started False",
        "s",
    ]


def test_a_sync_app_raises_errors_and_always_stops() -> None:
    @flow("fails")
    def fails() -> None:
        raise ValueError("no luck")

    before = threading.active_count()
    with SyncApp(":memory:", handlers=[fails]) as app:
        app.workers.start()
        run = app.start("fails")
        with pytest.raises(RunFailed, match="no luck"):
            app.result(run, timeout=20)
    _gone(before)


def test_a_sync_app_waits_for_an_event_of_an_entity() -> None:
    @entity("door")
    class Door:
        states = States("shut", idles=["shut", "open"])
        transitions = (Transition("push", "shut", "open"), Transition("pull", "open", "shut"))

    with SyncApp(":memory:", handlers=[Door]) as app:
        app.workers.start()
        assert app.entities.emit("urn:door:1", "push").result(timeout=20).to == "open"


def test_a_sync_app_that_cannot_open_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "not-a-db").write_bytes(b"this is no database, by any means" * 100)
    before = threading.active_count()
    with pytest.raises(penstock.PenstockError), SyncApp(f"sqlite:///{tmp_path}/not-a-db", handlers=[]):
        pytest.fail("it opened")
    with pytest.raises(SettingError), SyncApp("nosuch://place", handlers=[]):
        pytest.fail("it opened")
    SyncApp(":memory:", handlers=[])  # never entered: nothing to close
    gc.collect()  # an unclosed event loop would warn here, and warnings are errors
    _gone(before)


def test_a_sync_worker_of_an_unknown_queue_raises() -> None:
    with SyncApp(":memory:", handlers=[add]) as app:
        with pytest.raises(UnknownQueue, match="known queues: sums"):
            app.workers.start(queues=["summs"])
        app.workers.start(queues=["sums"])
        assert app.jobs.result(app.enqueue("sums", [1, 2]), timeout=20) == 3


def _gone(before: int) -> None:
    """Wait until no thread is left that did not exist before."""

    async def fewer() -> None:
        await until(lambda: threading.active_count() <= before)

    asyncio.run(fewer())


# Settings


@pytest.mark.spec("000-3.6")
def test_settings_from_the_environment_and_arguments_over_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "PENSTOCK_URL": "sqlite:///env.db",
        "PENSTOCK_CONCURRENCY": "7",
        "PENSTOCK_LEASE": "2s",
        "PENSTOCK_GRACE": "500ms",
        "PENSTOCK_QUEUES": "a, b",
        "PENSTOCK_RETAIN_RUNS": "never",
        "PENSTOCK_NAMESPACE": "acme",
    }.items():
        monkeypatch.setenv(name, value)
    settings = App(handlers=[]).settings
    assert (settings.url, settings.concurrency, settings.lease, settings.grace) == ("sqlite:///env.db", 7, 2000, 500)
    assert (settings.queues, settings.retain_runs, settings.namespace) == (("a", "b"), None, "acme")
    given = App("sqlite:///given.db", handlers=[], concurrency=3).settings
    assert (given.url, given.concurrency, given.lease) == ("sqlite:///given.db", 3, 2000)


def test_defaults() -> None:
    settings = Settings.load(env={})
    assert (settings.url, settings.dir, settings.namespace) == ("sqlite:///.penstock/penstock.db", "workers", "nq")


@pytest.mark.parametrize(
    ("given", "env", "message"),
    [
        ({"concurency": 3}, {}, "did you mean 'concurrency'"),
        ({}, {"PENSTOCK_CONCURENCY": "3"}, "PENSTOCK_CONCURENCY.*did you mean 'concurrency'"),
        ({}, {"PENSTOCK_ZZZ": "3"}, "known settings:"),
        ({"concurrency": 0}, {}, "at least 1"),
        ({"concurrency": "ten"}, {}, "ten"),
        ({"lease": "10ms"}, {}, "at least 500ms"),
        ({"lease": "soon"}, {}, "invalid duration"),
        ({"lease": "never"}, {}, "cannot be switched off"),
        ({"queue_names": "export"}, {}, "filename"),
        ({"namespace": "a:b"}, {}, "a:b"),
        ({"max_crashes": -1}, {}, "at least 0"),
    ],
)
def test_a_bad_setting_names_its_source_and_valid_values(
    given: dict[str, Any], env: dict[str, str], message: str
) -> None:
    with pytest.raises(penstock.PenstockError, match=message):
        Settings.load(given, env)


@pytest.mark.spec("000-3.6")
@pytest.mark.parametrize("url", ["nosuch://x", "mysql://u:s3cret@h/db", "file.db", ""])
async def test_an_unknown_url_scheme_is_refused_without_the_password(url: str) -> None:
    app = App(url or "nonsense", handlers=[])
    with pytest.raises(SettingError) as refusal:
        await app.open()
    assert "sqlite:///file.db" in str(refusal.value)
    assert "s3cret" not in str(refusal.value)


def test_the_package_needs_no_extra() -> None:
    """What a plain install has is enough to import everything that pages name."""
    blocked = "asyncpg redis bullmq starlette uvicorn httpx aiokafka sqlalchemy yaml pydantic obstore"
    code = f"""
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked.split()!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
for name in ("", ".errors", ".testing", ".cli", ".messaging", ".settings"):
    importlib.import_module("penstock" + name)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
