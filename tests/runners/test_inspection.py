"""Look at running handlers, and run one handler now: in this process, from another App, over HTTP and the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from inspected_handlers import HANDLERS, streams

from node_programs import node
from penstock import App, SyncApp
from penstock.app import inspections
from penstock.app.jobs import Jobs
from penstock.cli import main
from penstock.core.errors import RunError, UnknownJob, WaitTimeout
from penstock.testing.until import until

WHERE = {
    "looks-async": ("async", "wait_on_loop", "on the loop"),
    "looks-thread": ("thread", "wait_here", "on a thread"),
    "looks-process": ("process", "wait_here", "in a child"),
    "looks-process-async": ("process", "wait_on_loop", "in a child, on its loop"),
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/penstock.db"


@asynccontextmanager
async def running(url: str, queue: str, gate: Path) -> AsyncIterator[tuple[App, str]]:
    """A job whose handler runs until the file `gate` exists."""
    async with App(url, handlers=HANDLERS, process_pool=1) as app, app.workers.background():
        job = await app.enqueue(queue, {"gate": str(gate)})
        try:
            yield app, job
        finally:
            gate.touch()
            await app.jobs.result(job, timeout=30)


async def look(inspect: Callable[[], Awaitable[Any]], function: str, log: str) -> Any:
    """Look until the handler is in a function and has logged."""
    seen: list[Any] = []

    async def is_there() -> bool:
        try:
            seen.append(await inspect())
        except RunError:
            return False
        return function in seen[-1].stack and seen[-1].log == log

    await until(is_there, 60)
    return seen[-1]


@pytest.mark.parametrize("queue", WHERE)
async def test_a_running_handler_shows_where_it_is(url: str, tmp_path: Path, queue: str) -> None:
    runner, function, log = WHERE[queue]
    async with running(url, queue, tmp_path / "gate") as (app, job):
        found = await look(lambda: app.jobs.inspect(job), function, log)
        assert (found.job, found.queue, found.attempt, found.runner) == (job, queue, 1, runner)
        assert "inspected_handlers.py" in found.stack
        assert "penstock/worker" not in found.stack
        assert found.memory_mb > 1


@pytest.mark.parametrize("queue", ["looks-thread", "looks-process"])
async def test_an_app_without_the_worker_looks_at_its_handlers(
    url: str, tmp_path: Path, queue: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The request and its answer go through the store; the command line and a client do the same."""
    monkeypatch.setattr(inspections, "SERVE_INTERVAL_S", 0.02)
    _, function, log = WHERE[queue]
    async with running(url, queue, tmp_path / "gate") as (app, job), App(url, handlers=[]) as other:
        found = await look(lambda: other.jobs.inspect(job, timeout="20s"), function, log)
        assert found.worker == (await app.workers.list())[0].name
        assert (await app.store.states("inspect/ask/")) == []
        assert await asyncio.to_thread(main, ["jobs", "stack", job, "--url", url, "--timeout", "20s"]) == 0
        shown = capsys.readouterr().out
        assert (function in shown, f"last line: {log}" in shown) == (True, True)
        assert await asyncio.to_thread(main, ["jobs", "stack", job, "--url", url, "--timeout", "20s", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["runner"] == found.runner


async def test_what_cannot_be_looked_at(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with App(url, handlers=HANDLERS) as app:
        with pytest.raises(UnknownJob):
            await app.jobs.inspect("no-such-job")
        waiting = await app.enqueue(streams, {"n": 1})
        with pytest.raises(RunError, match="is waiting; only a running handler"):
            await app.jobs.inspect(waiting)
    monkeypatch.setattr(inspections, "SERVE_INTERVAL_S", 3600)  # a worker that does not answer
    async with running(url, "looks-async", tmp_path / "gate") as (app, job), App(url, handlers=[]) as other:
        await until(lambda: app.workers._worker and app.workers._worker.find_attempt(job), 30)
        with pytest.raises(WaitTimeout, match="has not answered within"):
            await other.jobs.inspect(job, timeout="50ms")


async def frames_of(frames: AsyncIterator[Any]) -> list[tuple[str, Any]]:
    return [(frame.event, frame.data) async for frame in frames]


async def test_execute_runs_a_handler_now_and_yields_its_frames(url: str) -> None:
    """No worker runs: this App runs the one job, and no other."""
    async with App(url, handlers=HANDLERS) as app:
        other = await app.enqueue(streams, {"n": 5})
        found = await frames_of(app.execute(streams, {"n": 21}))
        assert [event for event, _ in found] == ["added", "started", "log", "progress", "partial", "completed"]
        assert found[-1][1]["result"] == 42
        assert (await app.jobs.get(other)).state.value == "waiting"
        assert not app.workers.is_running


STREAMS_TS = """
export const queue = 'streams-node'
export default async (input: { n: number }, ctx: any) => {
  ctx.log('working', { n: input.n })
  ctx.emit({ type: 'progress', data: 50 })
  ctx.partial('half')
  return input.n * 2
}
"""
STREAMS_PY = """
from penstock import job

@job(queue="streams-process", runner="process")
def streams(input, ctx):
    ctx.log("working", n=input["n"])
    ctx.progress(50)
    ctx.partial("half")
    return input["n"] * 2
"""


@pytest.mark.spec("000-6.3", "000-16.10", "000-16.9")
@pytest.mark.parametrize("queue", ["streams-process", "streams-node"])
async def test_frames_of_other_processes_are_streamed(tmp_path: Path, queue: str) -> None:
    """What a child process or Node sends arrives as the events that every live stream has."""
    (tmp_path / "jobs.py").write_text(STREAMS_PY)
    (tmp_path / "jobs.ts").write_text(STREAMS_TS)
    async with App(":memory:", str(tmp_path), node=node(), process_pool=1) as app:
        found = await frames_of(app.execute(queue, {"n": 21}))
        assert [event for event, _ in found] == ["added", "started", "log", "progress", "partial", "completed"]
        assert (found[2][1]["msg"], found[2][1]["fields"]) == ("working", {"n": 21})
        assert (found[4][1], found[5][1]["result"]) == ({"chunk": "half"}, 42)
        live = [event.kind for event in await app.events.read_all(f"nq:queue:{queue}")]
        assert {"log", "job.progress", "job.partial"} <= set(live)


async def test_execute_yields_the_frames_of_a_job_that_ends_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has completed the job before `enqueue` returns."""
    enqueue = Jobs.enqueue

    async def enqueue_slowly(jobs: Any, *args: Any, **options: Any) -> Any:
        id = await enqueue(jobs, *args, **options)
        await jobs.result(id)
        return id

    monkeypatch.setattr(Jobs, "enqueue", enqueue_slowly)
    async with App(url, handlers=HANDLERS) as app, app.workers.background():
        found = [event for event, _ in await frames_of(app.execute("streams", {"n": 2}, key="fast"))]
        assert (found[0], found[-1]) == ("added", "completed")


async def test_execute_has_a_timeout(url: str) -> None:
    """Nobody serves the queue: the job stays in it."""
    async with App(url, handlers=[]) as app:
        with pytest.raises(WaitTimeout, match="check that a worker listens to its queue"):
            await frames_of(app.execute("nobody", key="late", timeout="50ms"))
        assert (await app.jobs.get("late")).state.value == "waiting"


async def test_execute_is_recorded_as_a_plain_job(url: str) -> None:
    async with App(url, handlers=HANDLERS) as app:
        found = [frame async for frame in app.execute("streams", {"n": 2}, key="once")]
        view = await app.jobs.get("once")
        assert (view.state.value, view.result, found[-1].job) == ("completed", 4, "once")
        again = await frames_of(app.execute("streams", {"n": 2}, key="once"))
        assert again == [("completed", {"result": 4})]
        kinds = [event.kind for event in await app.events.read_all("nq:queue:streams")]
        assert kinds.count("job.completed") == 1


async def test_execute_shows_retries_and_failures(url: str) -> None:
    async with App(url, handlers=HANDLERS) as app:
        found = [event for event, _ in await frames_of(app.execute(streams, {"n": 13}))]
        assert found.count("started") == 2
        assert found[-1] == "completed"
        failed = await frames_of(app.execute(streams, {"n": 0}))
        assert failed[-1][0] == "failed"
        assert "nothing to divide" in failed[-1][1]["error"]


async def test_execute_uses_the_worker_that_runs(url: str) -> None:
    async with App(url, handlers=HANDLERS) as app, app.workers.background():
        assert (await frames_of(app.execute(streams, {"n": 4})))[-1][1]["result"] == 8
        assert app.workers.is_running


def test_execute_without_an_event_loop(url: str) -> None:
    with SyncApp(url, handlers=HANDLERS) as app:
        assert [frame.event for frame in app.execute("streams", {"n": 1})][-1] == "completed"


def test_the_command_line_executes(tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    workers = tmp_path / "workers"
    workers.mkdir()
    (workers / "double.py").write_text(
        "queue = 'double'\ndef handle(input, ctx):\n    ctx.log('hello')\n    if not input:\n        raise ValueError('no')\n"
        "    return input * 2\n"
    )
    place = ["--url", url, "--dir", str(workers)]
    assert main(["jobs", "execute", "double", "--input", "4", *place]) == 0
    assert "hello" in (out := capsys.readouterr().out)
    assert '"result":8' in out
    assert main(["jobs", "execute", "double", "--input", "0", "--json", *place]) != 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (lines[-1]["event"], lines[0]["event"]) == ("failed", "added")
