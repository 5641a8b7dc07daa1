"""Large values: kept in the blob store by reference, and read back unchanged everywhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from http_server import serve_app
from penstock import App, flow, job, step
from penstock.blobs.memory import MemoryObjects
from penstock.client import Client
from penstock.core.errors import BlobUnavailable, NotJSON, PayloadTooLarge, RunFailed
from penstock.core.references import MARK
from penstock.errors import BlobStoreMissing
from penstock.ports.unit import NewJob, Unit
from penstock.stores.offload import units
from penstock.stores.offload.sweep import ValueSweeper
from penstock.testing.until import until

BIG = "é" * 100_000  # 200 KB, above all limits
OTHER = "o" * 300_000
HUGE = "é" * 1_500_000  # 3 MB, above the usual limit of a frame


@job(queue="jobs", retry={"attempts": 2, "backoff": {"type": "fixed", "delay": "1ms", "jitter": False}})
async def work(text: str, ctx: Any) -> str:
    assert text == BIG
    found = await ctx.run("call", lambda: text + "!")
    if ctx.attempt == 1:
        raise ValueError("once")
    assert found == BIG + "!"
    assert ctx.log("replayed") is not None
    return found


@flow("large", emits=["piece"])
async def large(text: str, ctx: Any) -> None:
    ctx.partial(OTHER)
    ctx.emit("piece", {"text": text, "n": 1})


@step(subscriptions=[{"eventKind": "piece", "when": lambda event: event.data["text"] == BIG}])
async def checked(data: dict[str, Any]) -> str:
    return data["text"] + "?"


@flow("waits")
async def waits(_: Any, ctx: Any) -> Any:
    found = await ctx.wait.event("go", match={"text": OTHER})
    return [found.data["n"], found.data["text"] == OTHER]


@flow("approval")
async def approval(_: Any, ctx: Any) -> Any:
    waiting = await ctx.wait.trigger("ok")
    return await waiting.wait()


def objects_of(app: App) -> MemoryObjects:
    objects = app._objects
    assert isinstance(objects, MemoryObjects)
    return objects


async def names_in(objects: MemoryObjects) -> set[str]:
    return {one.path for one in await objects.list("values/", limit=1000)}


async def references(app: Any) -> set[str]:
    return {row.key for row in await app.store._inner.states("blob/ref/", limit=1000)}


@pytest.mark.spec("000-16.21", "001-1.15")
async def test_inputs_results_memos_and_events_of_a_job(app: Callable[..., Any]) -> None:
    async with app(work, blobs=MemoryObjects()) as a, a.workers.background():
        id = await a.enqueue(work, BIG)
        await a.emit("go", {"id": 7, "text": OTHER})
        assert await a.jobs.result(id, timeout=20) == BIG + "!"
        raw = await a.store._inner.job(id)
        assert MARK in raw.payload
        assert MARK in raw.result
        view = await a.jobs.get(id)
        assert (view.input, view.result) == (BIG, BIG + "!")
        kinds = {one.kind: one.data for one in await a.events.read_all("nq:queue:jobs")}
        assert kinds["job.added"] is None  # the job has its input
        assert kinds["job.completed"]["result"] == BIG + "!"
        assert [one.data["text"] for one in await a.events.read_all("nq:global")] == [OTHER]
        assert [item.event.data["text"] for item in await a.store.events_by_kind("go")] == [OTHER]


@pytest.mark.spec("000-16.21", "001-1.15")
async def test_inputs_events_conditions_and_results_of_a_run(app: Callable[..., Any]) -> None:
    async with app(large, checked, blobs=MemoryObjects()) as a, a.workers.background():
        run = await a.start(large, BIG)
        assert await a.result(run, timeout=20) == BIG + "?"
        view = await a.runs.get(run)
        assert (view.input, view.result, view.status) == (BIG, BIG + "?", "completed")
        [partial] = await a.events_of(run, "flow.partial") or await a.events_of(run, "step.partial")
        assert partial.data["chunk"] == OTHER
        stored = await a.store._inner.read(f"nq:flow:{run}")
        assert all(len(str(event.data)) < 60_000 for event in stored)
        async for item in a.store.tail(f"nq:flow:{run}"):
            if item.kind == "piece":
                assert item.data["text"] == BIG
                break


async def test_a_wait_looks_into_a_large_event(app: Callable[..., Any]) -> None:
    async with app(waits, blobs=MemoryObjects()) as a, a.workers.background():
        run = await a.start(waits)
        await a.wait_for_step(run, "waits", "suspended")
        for number, text in enumerate(("x" * 300_000, OTHER)):
            await a.emit("go", {"n": number, "text": text})
        assert await a.result(run, timeout=20) == [1, True]


async def test_a_trigger_takes_a_large_payload_over_http(app: Callable[..., Any]) -> None:
    async with app(approval, blobs=MemoryObjects()) as a, a.workers.background(), serve_app(a) as http:
        run = await a.start(approval, None)

        async def find() -> Any:
            return next(iter(await a.waits.list(run=run)), None)

        await until(find, 20)
        async with Client(str(http.base_url)) as client:
            await client.waits.resolve((await find()).id, {"text": OTHER})
            assert (await client.runs.result(run))["text"] == OTHER


async def test_a_trigger_is_fired_with_a_large_body(app: Callable[..., Any]) -> None:
    @flow("asks")
    async def asks(_: Any, ctx: Any) -> Any:
        waiting = await ctx.wait.trigger("ok")
        await ctx.state.set("url", waiting.url)
        return await waiting.wait()

    async with app(asks, blobs=MemoryObjects()) as a, a.workers.background(), serve_app(a) as http:
        run = await a.start(asks)
        await a.wait_for_step(run, "asks", "suspended")
        url = await a.state.of_run(run).get("url")
        assert (await http.post(url, json={"text": OTHER})).status_code == 200
        assert (await a.result(run, timeout=20))["text"] == OTHER


def test_the_command_line_reads_and_shows_large_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from penstock.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_BLOB_URL", "file:blobs")
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers/big.py").write_text(
        "from penstock import flow\n\n@flow('big')\nasync def big(text):\n    return text + '!'\n"
    )
    (tmp_path / "in.json").write_text(json.dumps(OTHER))
    assert main(["run", "big", "--input", "@in.json", "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["input"], shown["result"]) == (OTHER, OTHER + "!")
    assert main(["runs", "show", shown["id"], "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["result"] == OTHER + "!"


async def test_equal_values_exist_once_and_go_with_their_last_owner(app: Callable[..., Any]) -> None:
    objects = MemoryObjects()

    async with app(work, blobs=objects, blob_grace="1ms") as a:
        ids = [await a.enqueue("jobs", BIG, key=f"job-{n}") for n in range(20)]
        assert len(await names_in(objects)) == 1
        assert len(await references(a)) == 20
        sweeper = a._value_sweeper
        assert await sweeper.sweep_all() == {"references": 0, "values": 0}
        for id in ids[:-1]:
            await a.jobs.remove(id)
        await a.store.trim("nq:queue:jobs", keep=0)
        assert (await sweeper.sweep_all())["values"] == 0
        assert len(await names_in(objects)) == 1
        assert (await a.jobs.get(ids[-1])).input == BIG
        await a.jobs.remove(ids[-1])
        await asyncio.sleep(0.01)
        assert (await sweeper.sweep_all())["values"] == 1
        assert not await names_in(objects)
        assert not await references(a)


async def test_retention_removes_the_values_of_a_run(app: Callable[..., Any]) -> None:
    objects = MemoryObjects()
    options: dict[str, Any] = {"blobs": objects, "blob_grace": "1ms", "keep_runs": 0, "keep_jobs": 0}
    async with app(large, checked, **options) as a:
        async with a.workers.background():
            await a.result(await a.start(large, BIG), timeout=20)
        assert await names_in(objects)
        await a.workers._sweep_all()
        await asyncio.sleep(0.01)
        await a._value_sweeper.sweep_all()
        assert not await references(a)
        assert not await names_in(objects)


async def test_a_crash_between_upload_and_commit_leaves_an_object_that_the_sweep_removes(
    app: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = MemoryObjects()
    async with app(work, blobs=objects, blob_grace="1h") as a:

        async def crash(*_: Any) -> Any:
            raise SystemError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(a.store._inner, "commit", crash)
            with pytest.raises(SystemError):
                await a.enqueue("jobs", BIG)
        assert len(await names_in(objects)) == 1
        assert not await references(a)
        assert (await a._value_sweeper.sweep_all())["values"] == 0  # its commit may be on the way
        soon = ValueSweeper(a.store._inner, objects, a.store.clock, a._runtime.new_unit_id, -1)
        assert (await soon.sweep_all())["values"] == 1
        assert not await names_in(objects)


class SlowSweep(MemoryObjects):
    """Pauses before it deletes, so that a commit comes between."""

    def __init__(self) -> None:
        super().__init__()
        self.before_delete: Callable[[], Any] | None = None

    async def delete(self, path: str) -> None:
        if self.before_delete is not None:
            call, self.before_delete = self.before_delete, None
            await call()
        await super().delete(path)


async def reuse_while_it_is_deleted(a: Any) -> Any:
    """Use a value again between the sweep's last look and its deletion, and return what is read back.

    The committing process knows the value, so it does not upload it again: only the fence can save it."""
    await a.enqueue("jobs", BIG, key="first")
    await a.jobs.remove("first")
    await a.store.trim("nq:queue:jobs", keep=0)
    await asyncio.sleep(0.01)

    async def reuse() -> None:
        await a.enqueue("jobs", BIG, key="second")

    a._objects.before_delete = reuse
    assert (await a._value_sweeper.sweep_all())["values"] == 1
    a.store._values._cache.clear()
    return (await a.jobs.get("second")).input


async def test_a_commit_that_uses_a_value_while_it_is_deleted_keeps_it(app: Callable[..., Any]) -> None:
    async with app(work, blobs=SlowSweep(), blob_grace="1ms") as a:
        assert await reuse_while_it_is_deleted(a) == BIG


async def test_without_the_fence_it_would_be_lost(memory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the test above."""
    write = units._write_references
    monkeypatch.setattr(units, "_write_references", lambda *args: [one for one in write(*args) if one.expect is None])
    async with memory(work, blobs=SlowSweep(), blob_grace="1ms") as a:
        assert list(await reuse_while_it_is_deleted(a)) == ["$penstock:blob"]


async def commit_before_the_fence(a: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Use a value again between the sweep's first look and its fence, and return what is read back."""
    await a.enqueue("jobs", BIG, key="first")
    await a.jobs.remove("first")
    await a.store.trim("nq:queue:jobs", keep=0)
    await asyncio.sleep(0.01)
    sweeper = a._value_sweeper
    write = sweeper._write

    async def write_late(change: Any) -> bool:
        if change.key.startswith("blob/fence/") and change.value is not None:
            await a.enqueue("jobs", BIG, key="second")
        return bool(await write(change))

    monkeypatch.setattr(sweeper, "_write", write_late)
    await sweeper.sweep_all()
    a.store._values._cache.clear()
    return (await a.jobs.get("second")).input


async def test_a_commit_just_before_the_fence_is_found(
    app: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = MemoryObjects()
    async with app(work, blobs=objects, blob_grace="1ms") as a:
        assert await commit_before_the_fence(a, monkeypatch) == BIG
        await a.enqueue("jobs", BIG, key="third")  # the fence is gone again
        assert len(await names_in(objects)) == 1


async def test_without_the_second_look_it_would_be_lost(
    memory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the test above."""
    async with memory(work, blobs=MemoryObjects(), blob_grace="1ms") as a:

        async def find_nothing(_: str) -> bool:
            return False

        monkeypatch.setattr(a._value_sweeper, "_is_referenced", find_nothing)
        assert list(await commit_before_the_fence(a, monkeypatch)) == ["$penstock:blob"]


class Broken(MemoryObjects):
    """Does not answer for some calls."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0

    async def put(self, path: str, data: Any, content_type: str | None = None) -> str | None:
        if self.failures > 0:
            self.failures -= 1
            raise BlobUnavailable("the blob store does not answer")
        return await super().put(path, data, content_type)


async def test_uploads_are_retried(app: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.stores.offload.values.PAUSE_S", 0.001)
    objects = Broken()

    @job(queue="make")
    async def make(_: Any) -> str:
        objects.failures = 7  # more than one upload tries
        return BIG

    async with app(make, work, blobs=objects) as a, a.workers.background(["make"]):
        objects.failures = 2
        await a.enqueue("jobs", BIG)
        objects.failures = 100
        with pytest.raises(BlobUnavailable):
            await a.enqueue("jobs", OTHER)
        objects.failures = 0
        id = await a.enqueue(make)
        assert await a.jobs.result(id, timeout=20) == BIG
        assert (await a.jobs.get(id)).attempt == 1
        small = await a.enqueue("jobs", 1)  # others are not affected
        assert (await a.jobs.get(small)).input == 1


class Slow(MemoryObjects):
    """Uploads nothing before it is allowed to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go = asyncio.Event()
        self.waiting = 0

    async def put(self, path: str, data: Any, content_type: str | None = None) -> str | None:
        self.waiting += 1
        await self.may_go.wait()
        return await super().put(path, data, content_type)


async def test_a_slow_upload_holds_up_no_other_commit(app: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a command and of a result."""
    monkeypatch.setattr("penstock.stores.offload.store.UPLOAD_WAIT_S", 0.01)
    objects = Slow()

    @job(queue="make")
    async def make(text: str) -> str:
        return text * 100_000

    async with app(make, work, blobs=objects) as a, a.workers.background(["make"]):
        command = asyncio.create_task(a.enqueue("jobs", BIG))
        result = await a.enqueue(make, "r")
        while objects.waiting < 2:
            await a.enqueue("jobs", "small")
        assert not command.done()
        assert (await a.store.job(result)).state.value == "active"
        objects.may_go.set()
        assert (await a.jobs.get(await command)).input == BIG
        assert await a.jobs.result(result, timeout=20) == "r" * 100_000
        assert (await a.jobs.get(result)).attempt == 1


async def test_a_worker_without_the_blob_store_leaves_the_job_to_another(
    shared: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.worker.worker.UNLOADED_PAUSE_MS", 10)
    objects = MemoryObjects()
    async with shared(large, checked) as without, shared(large, checked, blobs=objects) as complete:
        run = await complete.start(large, BIG)
        async with without.workers.background():
            await until(lambda: _logged(caplog), 20)
        assert (await complete.runs.get(run)).status not in ("failed", "completed")
        async with complete.workers.background():
            assert await complete.result(run, timeout=20) == BIG + "?"
        view = await complete.runs.get(run)
        assert {one.attempt for one in view.steps.values()} == {1}


async def _logged(caplog: pytest.LogCaptureFixture) -> bool:
    return any(BlobStoreMissing.code in record.getMessage() for record in caplog.records)


async def test_without_a_blob_store_the_error_says_how_to_set_it(memory: Callable[..., Any]) -> None:
    async with memory(work) as a:
        with pytest.raises(PayloadTooLarge, match="Set blob_url"):
            await a.enqueue("jobs", BIG)
    async with memory(work, blobs=MemoryObjects(), blob_threshold=0) as a:
        with pytest.raises(PayloadTooLarge):
            await a.enqueue("jobs", BIG)


async def test_values_stay_readable_when_offload_is_turned_off(shared: Callable[..., Any]) -> None:
    objects = MemoryObjects()
    async with shared(work, blobs=objects) as on, shared(work, blobs=objects, blob_threshold=0) as off:
        id = await on.enqueue("jobs", BIG)
        assert (await off.jobs.get(id)).input == BIG
        with pytest.raises(PayloadTooLarge):
            await off.enqueue("jobs", BIG)


async def test_state_keeps_its_limit(memory: Callable[..., Any]) -> None:
    async with memory(work, blobs=MemoryObjects()) as a:
        with pytest.raises(PayloadTooLarge, match="state"):
            await a.state.set("key", BIG)


async def test_nobody_can_write_a_reference(memory: Callable[..., Any]) -> None:
    """It would read any value whose hash is known."""
    async with memory(work, blobs=MemoryObjects()) as a:
        with pytest.raises(NotJSON, match="reserved"):
            await a.enqueue("jobs", {"a": [{"$penstock:blob": "0" * 64}]})
        await a.enqueue("jobs", '{"$penstock:blob":"x"}', key="text")  # text is text
        assert (await a.jobs.get("text")).input == '{"$penstock:blob":"x"}'


@pytest.mark.parametrize("has_blobs", [True, False], ids=["blobs", "no blobs"])
@pytest.mark.parametrize("text", ['{"$penstock:blob":"%s"}' % ("0" * 64), '{"a":{"$penstock:blob":"x"}}'])
async def test_a_reference_that_another_producer_wrote_fails_its_job_alone(
    app: Callable[..., Any], text: str, has_blobs: bool
) -> None:
    """Nobody could ever load its value: the job would be released again and again."""
    async with app(work, blobs=MemoryObjects() if has_blobs else None) as a:
        written = NewJob("foreign", "jobs", "work", text.encode())
        await a.store.commit([Unit(next(a._unit_ids), jobs=[written])])
        async with a.workers.background():
            with pytest.raises(RunFailed, match="reserved"):
                await a.jobs.result("foreign", timeout=20)
        assert (await a.jobs.get("foreign")).attempt == 1


async def test_a_damaged_or_missing_value_fails_nothing_for_good(
    app: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.worker.worker.UNLOADED_PAUSE_MS", 10)
    objects = MemoryObjects()

    @job(queue="size")
    async def size(text: str) -> int:
        return len(text)

    async with app(size, blobs=objects) as a:
        id = await a.enqueue(size, BIG)
        [name] = await names_in(objects)
        kept = objects._objects.pop(name)
        a.store._values._cache.clear()
        shown = (await a.jobs.get(id)).input
        assert list(shown) == ["$penstock:blob"]
        async with a.workers.background():
            await until(lambda: _is_delayed(a, id), 20)
            objects._objects[name] = kept
            assert await a.jobs.result(id, timeout=20) == len(BIG)


async def _is_delayed(a: Any, id: str) -> bool:
    return (await a.store.job(id)).state.value == "delayed"


async def test_redaction_comes_first(app: Callable[..., Any]) -> None:
    objects = MemoryObjects()
    async with app(large, checked, blobs=objects) as a:
        run = await a.start(large, {"password": BIG, "list": [BIG]})
        [started] = await a.events_of(run, "flow.started")
        assert started.data["input"]["password"] == "[redacted]"
        assert started.data["input"]["list"] == [BIG]
        assert (await a.runs.get(run)).input["password"] == "[redacted]"


async def test_values_in_a_folder(app: Callable[..., Any], tmp_path: Path) -> None:
    async with app(large, checked, blob_url=f"file://{tmp_path}/blobs") as a, a.workers.background():
        assert await a.result(await a.start(large, BIG), timeout=20) == BIG + "?"
        assert not await a.blobs.list()  # values are not blobs of the user


IN_A_CHILD = """
from penstock import Context, job

@job(queue="child", runner="process")
async def child(text: str, ctx: Context) -> str:
    return await ctx.run("call", lambda: text + "!")
"""
IN_NODE = """
export const queue = "node"
export const config = {}
export default async function handle(text: string, ctx: any) {
  return await ctx.run("call", () => text + "!")
}
"""


async def test_handlers_in_a_child_process(memory: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers/child.py").write_text(IN_A_CHILD)
    options = {"dir": f"{tmp_path}/workers", "blob_url": "memory:", "process_pool": 1}
    async with memory(**options) as a, a.workers.background(["child"]):
        assert await a.jobs.result(await a.enqueue("child", HUGE), timeout=60) == HUGE + "!"


async def test_handlers_in_node(memory: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers/node.ts").write_text(IN_NODE)
    async with memory(dir=f"{tmp_path}/workers", blob_url="memory:") as a, a.workers.background(["node"]):
        assert await a.jobs.result(await a.enqueue("node", HUGE), timeout=60) == HUGE + "!"
