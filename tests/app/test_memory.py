"""Large work is done in batches: twice as much takes little more memory, or a clear limit comes first."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple

import postgres_server
import redis_server
from penstock import App, Context, flow, job
from penstock.app import enqueuer, export, export_file, export_format
from penstock.core.errors import BadArgument, NotJSON, RunFailed, RunLimit
from penstock.worker import channel

# Two sizes, and by how many MB their memory may differ.
SIZES = {
    "enqueue_many": (12_000, 36_000, 28),
    "list": (30_000, 90_000, 15),
    "export": (50_000, 150_000, 31),
    "import_file": (10, 50, 15),  # runs of one MB
    "sweep": (30_000, 60_000, 15),
}


def measure(what: str, count: int, url: str) -> dict[str, Any]:
    """Return what a process of its own measured."""
    program = [sys.executable, str(Path(__file__).with_name("large_work.py")), what, str(count), url]
    done = subprocess.run(program, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", SIZES)
def test_twice_as_much_takes_little_more_memory(what: str, tmp_path: Path) -> None:
    *sizes, max_growth_mb = SIZES[what]
    peaks = [measure(what, n, f"sqlite:///{tmp_path}/{n}.db")["peak_mb"] for n in sizes]
    assert peaks[1] - peaks[0] < max_growth_mb, peaks


# Limits


@pytest.fixture(params=["memory", "redis", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    made = {"memory": lambda: ":memory:", "redis": redis_server.url, "postgres": postgres_server.prepared_url}
    return made[request.param]()


@flow("wide")
async def wide(input: dict, ctx: Context) -> int:
    for n in range(input["emits"]):
        ctx.emit("part.made", {"n": n, "text": input.get("text", "")})
    for n in range(input.get("sets", 0)):
        ctx.state.set(f"key-{n}", n)
    for n in range(input.get("jobs", 0)):
        ctx.enqueue("small", n)
    return len(ctx._channel.emitted)  # type: ignore[attr-defined]


@job(queue="small")
async def small(input: Any, ctx: Context) -> Any:
    return input


@pytest.mark.parametrize(
    ("input", "is_allowed"),
    [
        ({"emits": 50}, True),
        ({"emits": 51}, False),
        ({"emits": 20, "sets": 20, "jobs": 10}, True),
        ({"emits": 20, "sets": 20, "jobs": 11}, False),
        ({"emits": 0, "sets": 51}, False),
        ({"emits": 9, "text": "x" * 1000}, True),
        ({"emits": 11, "text": "x" * 1000}, False),
    ],
)
async def test_an_attempt_has_a_limit(
    url: str, input: dict[str, Any], is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_WRITES", 50)
    monkeypatch.setattr(channel, "MAX_WRITE_BYTES", 10_500)
    async with App(url, handlers=[wide, small]) as app, app.workers.background():
        run = await app.start("wide", input)
        if is_allowed:
            assert await app.result(run, timeout=30) == input["emits"]
            return
        with pytest.raises(RunFailed, match="one attempt can write at most 50 events, jobs, runs and state keys"):
            await app.result(run, timeout=30)
        # Nothing of the attempt was written.
        kinds = [event.kind for event in await app.events.read_all(f"nq:flow:{run}")]
        assert "part.made" not in kinds
        assert list(await app.state.of_run(run).list()) == []


async def test_many_inputs_are_checked_before_the_first_is_added(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueuer, "MAX_JOBS_IN_MEMORY", 300)
    async with App(url, handlers=[small]) as app:
        with pytest.raises(NotJSON, match=r"item 700 of 701: .*no job was added"):
            await app.jobs.enqueue_many("small", [*range(700), object()])
        assert (await app.queues.counts("small"))["waiting"] == 0
        ids = await app.jobs.enqueue_many("small", range(701))
        async with app.workers.background():
            assert [await app.jobs.result(ids[n], timeout=30) for n in (0, 199, 200, 700)] == [0, 199, 200, 700]


async def test_many_inputs_in_a_transaction_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(enqueuer, "MAX_JOBS_IN_MEMORY", 300)
    mine = sqlite3.connect(tmp_path / "mine.db")
    async with App(":memory:", handlers=[small]) as app:
        await app.outbox.create(mine)
        with pytest.raises(BadArgument, match="with tx=, a call takes at most 300 inputs, got 301"):
            await app.jobs.enqueue_many("small", range(301), tx=mine)
        await app.jobs.enqueue_many("small", range(300), tx=mine)
        mine.commit()
        assert await app.outbox.drain(f"sqlite:///{tmp_path}/mine.db") == 2
    mine.close()


async def test_a_run_that_is_too_large_to_export(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with App(url, handlers=[wide]) as app, app.workers.background():
        run = await app.start("wide", {"emits": 2, "sets": 40}, key="large")
        await app.runs.wait(run, timeout=30)
        line = await export.export_run(app, run)
        saved = export_file.read_line(line, 1)
        assert len(saved.state) == 40
        assert list(map(astuple, saved.events)) == list(map(astuple, await app.events.read_all("nq:flow:large")))
        for limit in (500, len(line) - 1):
            monkeypatch.setattr(export_format, "MAX_LINE_BYTES", limit)
            with pytest.raises(RunLimit, match="run 'large' is too large to export"):
                await export.export_run(app, run)
            with pytest.raises(export_format.BadExport, match=r"^line 1 has more than 0 MB"):
                export_file.read_line(line, 1)
        monkeypatch.setattr(export_format, "MAX_LINE_BYTES", len(line))
        assert await export.export_run(app, run) == line
