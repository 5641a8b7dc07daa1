"""Log lines of runs and jobs, by step, attempt and level, with their fields, on every store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Context, SyncApp, SyncContext, flow, job, step
from penstock.cli import main
from penstock.core.errors import BadArgument, UnknownJob
from penstock.testing import FakeContext, until


@flow("shop", emits=["packed"])
async def shop(input: int, ctx: Context) -> None:
    log = ctx.log.child(order=input, by="shop")
    log.debug("looking")
    log.warning("slow", by="hand")
    for n in range(2):
        ctx.emit("packed", n)


@step(on="packed", mode="each", retry={"attempts": 2, "backoff": {"delay": 0}})
def pack(n: int, ctx: SyncContext) -> None:
    log = ctx.log.child(box=n).child(floor=2)
    log.info("packing")
    if n == 1 and ctx.attempt == 1:
        log.error("dropped")
        raise ValueError("oops")


@job(queue="mail", retry={"attempts": 2, "backoff": {"delay": 0}})
async def send(n: int, ctx: Context) -> None:
    ctx.log.child(n=n).info(f"sending {n}")
    ctx.progress(0.5)
    if n == 1 and ctx.attempt == 1:
        ctx.log.error("bounced")
        raise ValueError("oops")


HANDLERS = (shop, pack, send)


def short(lines: Any) -> list[tuple[Any, ...]]:
    return [(line.step, line.n, line.attempt, line.level, line.msg) for line in lines]


@pytest.mark.spec("001-0.4", "000-4.2.2")
async def test_lines_of_a_run_by_step_attempt_and_level(app: Callable[..., Any]) -> None:
    async with app(*HANDLERS) as one, one.workers.background():
        run = await one.start(shop, 7, key="r")
        await run.wait()
        lines = await run.logs()
        assert len(lines) == 6
        assert [line.fields for line in lines[:2]] == [{"order": 7, "by": "shop"}, {"order": 7, "by": "hand"}]
        assert short(await one.runs.logs("r", step="shop")) == [
            ("shop", 1, 1, "debug", "looking"),
            ("shop", 1, 1, "warn", "slow"),
        ]
        packing = await one.runs.logs("r", step="pack", attempt=2)
        assert short(packing) == [("pack", 2, 2, "info", "packing")]
        assert packing[0].fields == {"box": 1, "floor": 2}
        assert [line.msg for line in await one.runs.logs("r", level="warning")] == ["slow", "dropped"]
        assert [line.msg for line in await one.runs.logs("r", level="error", step="shop")] == []
        pages: list[Any] = []
        while page := await one.runs.logs("r", after=pages[-1].id if pages else None, limit=2):
            pages += page
        assert pages == list(lines)
        assert await one.jobs.logs("r.pack.2", attempt=2) == packing
        view = await run.get()
        assert (view.logs_count, view.last_log_level) == (6, "info")
        assert [(line.get("fields"), line.get("attempt"), line.get("n")) for line in view.logs[:1]] == [
            ({"order": 7, "by": "shop"}, 1, None)
        ]


async def test_lines_of_a_plain_job_are_found_among_those_of_its_queue(app: Callable[..., Any]) -> None:
    async with app(*HANDLERS) as one, one.workers.background():
        for n in range(4):
            await one.enqueue(send, n, key=f"m{n}")
        for n in range(4):
            await one.jobs.result(f"m{n}")
        lines = await one.jobs.logs("m1")
        assert [(line.attempt, line.level, line.msg, line.fields) for line in lines] == [
            (1, "info", "sending 1", {"n": 1}),
            (1, "error", "bounced", {}),
            (2, "info", "sending 1", {"n": 1}),
        ]
        assert {(line.job, line.run, line.step) for line in lines} == {("m1", None, None)}
        assert await one.jobs.logs("m1", attempt=2) == lines[2:]
        assert await one.jobs.logs("m1", level="error") == lines[1:2]
        assert await one.jobs.logs("m1", after=lines[0].id) == lines[1:]
        assert await one.jobs.logs("m1", limit=1) == lines[:1]
        assert len(await one.jobs.logs("m0")) == 1
        await one.store.trim("nq:queue:mail", keep=0)
        assert await one.jobs.logs("m1") == []


async def test_the_lines_of_a_removed_job_are_kept_with_the_events(app: Callable[..., Any]) -> None:
    async with app(*HANDLERS) as one, one.workers.background():
        id = await one.enqueue(send, 0, keep_completed=False)

        async def ended() -> bool:
            return await one.store.job(id) is None

        await until(ended)
        assert [line.msg for line in await one.jobs.logs(id)] == ["sending 0"]


async def test_wrong_arguments(memory: Callable[..., Any]) -> None:
    async with memory(*HANDLERS) as one:
        run = await one.start(shop, 1)
        with pytest.raises(BadArgument, match="level must be debug, info, warning or error, got 'loud'"):
            await run.logs(level="loud")
        with pytest.raises(BadArgument, match="attempt must be a whole number"):
            await run.logs(attempt=0)
        with pytest.raises(UnknownJob):
            await one.jobs.logs("nobody")


async def test_a_child_of_the_log_of_a_fake_context() -> None:
    ctx = FakeContext()
    await shop(7, ctx)
    assert [line.fields for line in ctx.logs] == [{"order": 7, "by": "shop"}, {"order": 7, "by": "hand"}]


def test_the_command_and_the_sync_app(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with SyncApp(url, handlers=HANDLERS) as app, app.workers.background():
        run = app.start(shop, 7, key="r")
        run.wait(timeout="20s")
        app.enqueue(send, 1, key="m1")
        app.jobs.result("m1", timeout="20s")
        assert len(run.logs(level="error")) == len(app.runs.logs("r", level="error")) == 1
        assert len(app.jobs.logs("m1")) == 3
    assert main(["logs", "r", "--step", "pack", "--attempt", "2", "--json", "--url", url]) == 0
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["msg"], line["fields"], line["n"], line["attempt"]) == ("packing", {"box": 1, "floor": 2}, 2, 2)
    assert main(["logs", "r", "--level", "warning", "--follow", "--url", url]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [("slow" in text, "dropped" in text) for text in shown] == [(True, False), (False, True)]
    assert main(["logs", "--job", "m1", "--level", "error", "--url", url]) == 0
    assert "bounced" in capsys.readouterr().out
    assert main(["logs", "--url", url]) == 2
    assert "--job" in capsys.readouterr().err
