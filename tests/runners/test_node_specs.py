"""The TypeScript worker files of the specifications run as written, in Node."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from node_files import SharedRunner

from penstock.testing import TestApp

pytestmark = pytest.mark.asyncio(loop_scope="module")
FILES = Path(__file__).with_name("spec_workers")
DAY = 86_400_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host() -> AsyncIterator[SharedRunner]:
    shared = SharedRunner()
    yield shared
    await shared.inner.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(FILES, tmp_path_factory.mktemp("specs") / "server")


@pytest.fixture
def workers(files: Path, host: SharedRunner, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TestApp]:
    host.install(monkeypatch)
    return lambda folder, url=":memory:": TestApp(url, files / folder)


Workers = Callable[..., TestApp]


@pytest.mark.spec("000-5.3")
async def test_a_plain_worker(workers: Workers) -> None:
    async with workers("plain") as app:
        assert app.registry.problems == ()
        assert await app.run_job("image-resize", {"url": "u", "width": 3}) == {"ok": True, "result": {"url": "..."}}
        kinds = [e.kind for e in await app.events.read_all("nq:queue:image-resize")]
        assert {"job.progress", "log"} <= set(kinds), kinds


async def test_a_flow_with_a_triggered_step(workers: Workers, url: str) -> None:
    async with workers("image", url) as app:
        assert app.registry.problems == ()
        run = await app.run_flow("image-pipeline", {"url": "u"})
        assert run.status == "completed"
        assert [kind for kind, _ in await app.emitted(run.id)] == [
            "resize.requested", "resize.progress", "resize.completed", "thumbnail.completed",
        ]  # fmt: skip
        assert run.state == {f"thumb:{run.id}": {"url": "...?thumb"}}


async def test_time_waits_are_milliseconds_or_dates(workers: Workers) -> None:
    async with workers("waits") as app:
        assert app.registry.problems == ()
        start = app.time.now_ms()
        run = await app.run_flow("my-step")
        assert run.result == {"done": True}
        assert app.time.now_ms() - start > 5000


async def test_an_event_wait_with_a_where(workers: Workers) -> None:
    async with workers("waits") as app:
        run = await app.start("approval", {"orderId": 7})
        await app.settle()
        await app.emit("approval.granted", {"orderId": 8, "approved": False})
        await app.emit("approval.granted", {"orderId": 7, "approved": True})
        assert (await app.finish(run)).result == {"approved": True}


async def test_a_trigger_wait(workers: Workers) -> None:
    async with workers("waits") as app:
        run = await app.start("webhook", {"orderId": 7})
        await app.settle()
        await app.fire("trigger", {"ok": 1})
        assert (await app.finish(run)).result == {"webhookData": {"ok": 1}}


async def test_a_timeout_is_caught_by_its_code(workers: Workers) -> None:
    async with workers("waits") as app:
        assert (await app.run_flow("with-timeout")).result == {"timedOut": True}


async def test_a_step_that_fails_is_retried_and_makes_a_trigger(workers: Workers) -> None:
    async with workers("waits") as app:
        run = await app.run_flow("resilient")
        assert run.result["data"] == {"rows": 3}
        assert run.steps["resilient"].attempt == 2
        assert "token" not in run.result["approval"]


async def test_the_retry_policy_of_a_config(workers: Workers) -> None:
    async with workers("waits") as app:
        with pytest.raises(Exception, match="down"):
            await app.run_job("retried")
        failed = [e for e in await app.events.read_all("nq:queue:retried") if e.kind == "job.failed"]
        assert [e.data["name"] for e in failed] == ["NetworkError", "NetworkError", "OtherError"]


async def test_errors_that_decide_about_their_retry(workers: Workers) -> None:
    async with workers("errors") as app:
        run = await app.run_flow("errors")
        events = [e for e in await app.events.read_all(f"nq:flow:{run.id}") if e.kind in ("step.failed", "step.retry")]
        first, retry, last = events
        assert (first.data["code"], first.data["willRetry"]) == ("NETWORK_TIMEOUT", True)
        assert retry.data["delayMs"] == 5000
        assert (last.data["error"], last.data["willRetry"]) == ("Invalid input", False)


async def test_separated_steps_with_when_map_and_where(workers: Workers, url: str) -> None:
    """`when` and `map` are functions: a worker evaluates them, and the flow looks as if they were decided at once."""
    async with workers("orders", url) as app:
        assert app.registry.problems == ()
        unpaid = await app.run_flow("create-order", {"id": 7})
        assert (unpaid.status, unpaid.result) == ("completed", {"orderId": 7})
        assert "wait-for-payment" not in unpaid.steps
        run = await app.start("create-subscription", {"id": 8})
        await app.settle()
        await app.emit("payment.confirmed", {"orderId": 9})
        await app.emit("payment.confirmed", {"orderId": 8})
        assert (await app.finish(run)).status == "completed"
        assert await app.step_result(run, "wait-for-payment") == {"paid": True, "orderId": 8}
        assert await app.step_result(run, "fulfill-order") == {"fulfilled": True}
        assert [kind for kind, _ in await app.emitted(run)] == ["order.created", "order.paid", "order.fulfilled"]
        events = await app.events.read_all(f"nq:flow:{run}")
        started = next(e for e in events if e.kind == "step.started" and e.step == "wait-for-payment")
        assert started.data == {"input": {"orderId": 8, "amount": 9}}
        assert await app.store.stuck_runs() == []


async def test_the_timeout_of_a_declared_await_is_milliseconds(workers: Workers) -> None:
    async with workers("orders") as app:
        start = app.time.now_ms()
        run = await app.run_flow("create-subscription", {"id": 8})
        assert app.time.now_ms() - start >= DAY
        assert await app.step_result(run.id, "cancel-order") == {"cancelled": 8}
