"""Presence: which workers are alive, what `doctor` and `why` say about queues without one, and drift between workers."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from penstock import SyncApp, __version__, flow, job
from penstock.app.live_workers import LiveWorkers
from penstock.core.errors import StoreUnavailable
from penstock.stores.redis.other_workers import queues_of_clients
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultStore
from penstock.testing.until import until
from penstock.worker.presence import PRESENCE_TTL_MS


@job(queue="emails")
async def send(to: str) -> None: ...


async def wait_for_workers(app: Any, count: int) -> Any:
    async def found() -> Any:
        rows = await app.store.workers()
        return len(rows) == count and (await app.workers.list() or True)

    return await until(found, 20)


async def test_a_running_worker_is_listed_with_what_it_does(shared: Any) -> None:
    async with shared(send) as one, shared() as other:
        assert await other.workers.list() == []
        async with one.workers.background(concurrency=3, name="w1"):
            (worker,) = await wait_for_workers(other, 1)
            assert (worker.name, worker.host, worker.pid) == ("w1", socket.gethostname(), os.getpid())
            assert (worker.queues, worker.slots, worker.busy) == (["emails"], 3, 0)
            assert (worker.version, worker.fingerprint) == (__version__, one.registry.fingerprint)
            assert worker.started_at <= worker.last_seen_at
            assert list(worker.handlers) == ["send"]
        assert await other.workers.list() == [], "a clean stop removes it"


async def test_two_workers_of_one_name_are_both_listed(shared: Any) -> None:
    one, two = shared(send), shared(send)
    async with one, two, one.workers.background(name="w"), two.workers.background(name="w"):
        await wait_for_workers(one, 2)


async def test_busy_slots_are_counted(app: Any) -> None:
    import asyncio

    gate = asyncio.Event()

    @job(queue="slow")
    async def slow() -> None:
        await gate.wait()

    async with app(slow) as mine, mine.workers.background(concurrency=2):
        await mine.jobs.enqueue(slow)
        await until(lambda: mine.workers.active, 20)
        (worker,) = await mine.workers.list()
        assert (worker.busy, worker.slots) == (1, 2)
        gate.set()


async def test_a_killed_worker_expires(app: Any) -> None:
    clock = FakeClock()
    async with app(clock=clock) as mine:
        await mine.store.report_worker("dead", b"{}", PRESENCE_TTL_MS)
        (worker,) = await mine.workers.list()
        assert worker.unreadable, "another version may report other facts"
        clock.advance(PRESENCE_TTL_MS / 1000)
        assert await mine.workers.list() == []


async def test_a_store_that_is_away_does_not_stop_the_worker() -> None:
    from penstock import App
    from penstock.stores.sqlite import SqliteStore

    class NoReports:
        async def on_call(self, method: str, when: str) -> None:
            if method in ("report_worker", "remove_worker"):
                raise StoreUnavailable("away")

        def on_blocking_call(self, method: str, when: str) -> None: ...

    app = App(":memory:", handlers=[send], store=FaultStore(SqliteStore(), NoReports()))  # type: ignore[arg-type]
    async with app, app.workers.background():
        id = await app.enqueue(send, "eve")
        await app.jobs.result(id, timeout=20)


def test_the_sync_app_lists_workers(tmp_path: Path) -> None:
    with SyncApp(f"sqlite:///{tmp_path}/s.db", handlers=[send]) as app:
        app.workers.start(name="w1")
        assert [worker.name for worker in app.workers.list()] == ["w1"]
        app.workers.stop()
        assert app.workers.list() == []


# Queues without a worker


def details(checks: Any, name: str) -> tuple[bool, str]:
    return next((check.ok, check.detail) for check in checks if check.name == name)


async def test_diagnose_names_queues_that_no_worker_serves(shared: Any) -> None:
    async with shared(send) as one, shared() as other:
        await other.enqueue("emails", "eve")
        await other.enqueue("emals", "eve")
        ok, text = details(await other.diagnose(), "queues")
        assert not ok
        assert (
            "queue emails has 1 waiting, but no worker serves queue 'emails'; start one with `penstock worker`" in text
        )
        async with one.workers.background():
            await wait_for_workers(other, 1)
            await until(lambda: _is_drained(other, "emails"), 20)
            ok, text = details(await other.diagnose(), "queues")
            assert not ok
            assert "queue emails" not in text
            assert (
                "queue emals has 1 waiting, but no worker serves queue 'emals' (did you mean 'emails'?); "
                "start one with `penstock worker --queues emals`" in text
            )
            assert details(await other.diagnose(), "workers")[1].startswith("1 live worker, 0 of 10 slots busy")


async def _is_drained(app: Any, queue: str) -> bool:
    return not (await app.queues.counts(queue))["waiting"]


async def test_a_queue_of_a_live_worker_needs_no_handler_here(shared: Any) -> None:
    @job(queue="other")
    async def mine() -> None: ...

    async with shared(send) as one, shared(mine) as other, one.workers.background():
        await wait_for_workers(other, 1)
        await other.queues.list()
        await one.enqueue(send, "eve", delay="1h")
        assert details(await other.diagnose(), "queues") == (True, "no stuck queues")


async def test_why_says_that_no_worker_serves_the_queue(app: Any) -> None:
    @flow("order")
    async def order() -> None: ...

    async with app(order) as mine:
        run = await mine.start(order)
        (reason,) = await mine.runs.why(run)
        assert reason.endswith(
            "is waiting in queue 'default', and no worker serves queue 'default'; start one with `penstock worker`"
        )


async def test_a_worker_of_some_runs_serves_no_queue(app: Any) -> None:
    async with app(send) as mine, mine.workers.background(runs=[]):
        (worker,) = await mine.workers.list()
        assert worker.is_scoped
        await mine.enqueue(send, "eve")
        assert not details(await mine.diagnose(), "queues")[0]


def test_queues_of_bullmq_workers_are_read_from_the_list_of_clients() -> None:
    clients = (
        "id=3 addr=127.0.0.1:1 name=bull:ZW1haWxz db=0\nid=4 name=bull:b3JkZXJz:w:me db=0\nid=5 name= db=0\n"
        "id=6 name=other:ZW1haWxz db=0\nid=7 name=bull:not*base64 db=0\nid=8 lib-name=bull:eA== db=0\n"
    )
    assert queues_of_clients(clients, "bull") == {"emails", "orders"}


# Drift


def write_worker(folder: Path, body: str = "return 1", more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "orders.py").write_text(
        f"from penstock import job\nimport prices\n\n@job(queue='orders')\ndef charge():\n    {body}\n{more}"
    )
    (folder.parent / "prices.py").write_text("RATE = 1\n")
    return folder


@pytest.mark.spec("000-11.5")
async def test_diagnose_names_workers_with_different_code(shared: Any, tmp_path: Path) -> None:
    old = write_worker(tmp_path / "a" / "workers")
    new = write_worker(
        tmp_path / "b" / "workers", "return 2", "\n@job(queue='orders', name='refund')\ndef refund(): ...\n"
    )
    same = write_worker(tmp_path / "c" / "workers")
    one, two, three = shared(dir=old), shared(dir=new), shared(dir=same)
    async with one, two, three, one.workers.background(name="w1"), three.workers.background(name="w3"):
        await wait_for_workers(one, 2)
        assert details(await one.diagnose(), "workers")[0], "the same code in another folder"
        async with two.workers.background(name="w2"):
            await wait_for_workers(one, 3)
            ok, text = details(await one.diagnose(), "workers")
            assert not ok
            host = socket.gethostname()
            x, y = one.registry.fingerprint[:12], two.registry.fingerprint[:12]
            assert f"worker w1 on {host}, worker w3 on {host} ({x}) and worker w2 on {host} ({y})" in text
            assert "orders.charge differs" in text
            assert f"only worker w2 on {host} has orders.refund" in text


async def test_workers_of_other_queues_are_no_drift(shared: Any) -> None:
    @job(queue="other")
    async def mine() -> None: ...

    async with shared(send) as one, shared(mine) as other, one.workers.background(), other.workers.background():
        await wait_for_workers(other, 2)
        assert (await LiveWorkers.read(other)).find_drift() == []
        assert details(await other.diagnose(), "workers")[0]
