"""Importing the waiting jobs of pg-boss."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

import postgres_server
from penstock import App, Context, job
from penstock.app.pgboss_import import PgBossImport
from penstock.cli import main
from penstock.messaging.pgboss.backlog import Backlog
from penstock.schedules.spec import decode_spec, decode_target
from penstock.testing.until import until

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.asyncio(loop_scope="module")]


class Cut(Exception):
    """A simulated crash of the program."""


def boss_url() -> str:
    return postgres_server.server().url().partition("?")[0]


@pytest.fixture
def queue() -> str:
    """Return a new name: all tests share a schema."""
    return f"q-{uuid4().hex[:12]}"


@pytest.fixture(params=["one database", "two databases"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of our store: in pg-boss' database, or elsewhere."""
    return postgres_server.url() if request.param == "one database" else f"sqlite:///{tmp_path}/penstock.db"


async def _filled(boss: Any, queue: str) -> dict[str, str]:
    """Fill a queue with one job of each kind; return their ids by kind."""
    await boss.call("create", queue=queue, options={"retryLimit": 3, "retryDelay": 2, "retryBackoff": True})
    ids = {
        "low": await boss.call("send", queue=queue, data="low", options={"priority": -3}),
        "plain": await boss.call("send", queue=queue, data="plain"),
        "urgent": await boss.call("send", queue=queue, data="urgent", options={"priority": 9}),
        "later": await boss.call("send", queue=queue, data="later", options={"startAfter": 3600}),
        "tried": await boss.call("send", queue=queue, data="tried"),
        "active": await boss.call("send", queue=queue, data="active"),
        "done": await boss.call("send", queue=queue, data="done"),
    }
    for what, change in {
        "tried": "state = 'retry', started_on = now(), retry_count = 1",
        "active": "state = 'active', started_on = now()",
        "done": "state = 'completed', completed_on = now()",
    }.items():
        postgres_server.server().do(
            f"UPDATE pgboss.job SET {change} WHERE name = $1 AND data = to_jsonb($2::text)", queue, what
        )
    await boss.call("schedule", queue=queue, cron="0 12 * * *", data={"to": "all"}, options={"tz": "Europe/Paris"})
    await boss.call("schedule", queue=queue, cron="*/5 * * * *", data=None, options={"key": "often"})
    return ids


async def test_waiting_jobs_are_imported_and_run(boss: Any, queue: str, url: str) -> None:
    ids = await _filled(boss, queue)
    done: list[Any] = []

    @job(queue=queue)
    async def work(input: Any, ctx: Context) -> None:
        done.append((input, ctx.job_id))

    async with App(url, handlers=[work]) as app:
        found = await PgBossImport(app, boss_url(), queues=[queue]).preview()
        assert (found.jobs, found.delayed, found.skipped) == ({queue: 5}, 1, [])
        assert len(await boss.call("jobs", queue=queue)) == 7
        moved = await PgBossImport(app, boss_url(), queues=[queue]).move()
        assert moved == found
        assert moved.schedules == [queue, f"{queue}.often"]
        assert sorted(one["data"] for one in await boss.call("jobs", queue=queue)) == ["active", "done"]
        assert [one for one in await boss.call("schedules") if one["name"] == queue] == []

        later = await app.store.job(ids["later"])
        assert later is not None
        assert 3500_000 < later.due - later.created <= 3600_000
        tried = await app.store.job(ids["tried"])
        assert tried is not None
        assert json.loads(tried.opts)["retry"]["attempts"] == 2
        assert json.loads(tried.opts)["retry"]["backoff"]["delayMs"] == 2000
        rows = {row.id: row for row in await app.store.schedules() if row.id.startswith(queue)}
        assert (decode_spec(rows[queue]).cron, decode_spec(rows[queue]).tz) == ("0 12 * * *", "Europe/Paris")
        assert decode_target(rows[queue]).input == {"to": "all"}
        async with app.workers.background(concurrency=1):
            await until(lambda: len(done) == 4, 30)
        assert done == [(what, ids[what]) for what in ("urgent", "plain", "tried", "low")]
        again = await PgBossImport(app, boss_url(), queues=[queue]).move()
        assert (again.jobs, again.schedules, again.skipped) == ({}, [], [])


async def test_an_interrupted_import_continues(
    boss: Any, queue: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crash between adding here and removing there: with one database neither happened, with two no job is doubled."""
    await boss.call("create", queue=queue)
    sent = {await boss.call("send", queue=queue, data=n) for n in range(3)}
    real = Backlog.delete

    async def cut(*_: Any) -> None:
        raise Cut

    done: list[str] = []

    @job(queue=queue)
    async def work(input: Any, ctx: Context) -> None:
        done.append(ctx.job_id)

    async with App(url, handlers=[work]) as app:
        monkeypatch.setattr(Backlog, "delete", cut)
        with pytest.raises(Cut):
            await PgBossImport(app, boss_url(), queues=[queue]).move()
        assert {one["id"] for one in await boss.call("jobs", queue=queue)} == sent
        here = (await app.queues.counts(queue))["waiting"]
        assert here == (0 if url.startswith("postgresql") else 3)
        monkeypatch.setattr(Backlog, "delete", real)
        moved = await PgBossImport(app, boss_url(), queues=[queue]).move()
        assert moved.jobs == {queue: 3}
        assert await boss.call("jobs", queue=queue) == []
        async with app.workers.background():
            await until(lambda: len(done) >= 3, 30)
        assert sorted(done) == sorted(sent)
        assert (await app.queues.counts(queue))["completed"] == 3


async def test_a_job_that_pgboss_has_locked_is_not_imported(boss: Any, queue: str, tmp_path: Path) -> None:
    await boss.call("create", queue=queue)
    taken = await boss.call("send", queue=queue, data=1)
    await boss.call("send", queue=queue, data=2)
    connection = await asyncpg.connect(boss_url())
    try:
        async with connection.transaction():
            await connection.execute("SELECT 1 FROM pgboss.job WHERE id = $1 FOR UPDATE", taken)
            async with App(f"sqlite:///{tmp_path}/penstock.db", handlers=()) as app:
                moved = await PgBossImport(app, boss_url(), queues=[queue]).move()
    finally:
        await connection.close()
    assert moved.jobs == {queue: 1}
    assert [one["id"] for one in await boss.call("jobs", queue=queue)] == [taken]


async def test_the_command_previews_imports_and_reports_the_rest(
    boss: Any, queue: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = f"odd/{queue}"
    await boss.call("create", queue=queue)
    await boss.call("create", queue=odd)
    await boss.call("send", queue=queue, data=1)
    big = await boss.call("send", queue=queue, data={"n": 2.0**60})
    await boss.call("send", queue=odd, data=2)
    await boss.call("schedule", queue=odd, cron="0 9 * * *", data=None, options={})
    store_url = f"sqlite:///{tmp_path}/penstock.db"
    options = ("--from", boss_url(), "--queue", queue, "--queue", odd, "--url", store_url)

    async def penstock(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(main, ["import", "pgboss", *options, *words])
        return code, *capsys.readouterr()

    code, out, _ = await penstock("--dry-run", "--json")
    looked = json.loads(out)
    assert (code, looked["dryRun"], looked["jobs"]) == (1, True, {queue: 1})
    assert sorted((one["queue"], one["id"] == big) for one in looked["left"]) == [
        (odd, False),
        (odd, False),
        (queue, True),
    ]
    assert not (tmp_path / "penstock.db").exists()

    code, out, err = await penstock()
    assert (code, out.splitlines()[0]) == (1, "Moved 1 job (0 delayed) and 0 schedules.")
    assert f"not moved from {odd}" in err
    code, out, _ = await penstock("--rename", f"{odd}=odd", "--json")
    moved = json.loads(out)
    assert (code, moved["jobs"], moved["schedules"]) == (1, {odd: 1}, ["odd"])
    assert [one["id"] for one in moved["left"]] == [big]
    async with App(store_url, handlers=()) as app:
        assert {row.name for row in await app.queues.list()} >= {queue, "odd"}
    code, _, err = await penstock("--schema", "nowhere")
    assert code == 2
    assert "no pg-boss in schema 'nowhere'" in err
