"""Readers of a server that dies and comes back continue after the last event they got."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import postgres_server
import redis_server
from penstock import App, Event, flow, job
from penstock.core.errors import StoreUnavailable
from penstock.testing.until import until

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(300)]
TEST_TIMEOUT_S = 60
LAMP = "nq:entity:lamp"
SHARED = "job events of bull:slow:events"


Server = postgres_server.Server | redis_server.Server


class RestartableServer:
    """A server that can be killed and restarted, and keeps acknowledged writes."""

    def __init__(self, server: Server, url: str) -> None:
        self.server = server
        self.url = url

    async def kill(self) -> None:
        server = self.server
        await asyncio.to_thread(server.kill if isinstance(server, redis_server.Server) else server.crash)

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)


@pytest.fixture(scope="module", params=["postgres", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    memory = Path("/dev/shm")
    quick = str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > 2**30 else None
    with tempfile.TemporaryDirectory(prefix="penstock-restart-", dir=quick) as name:
        folder = Path(name)
        one: Server = (
            redis_server.Server(folder, "--appendonly", "yes")
            if request.param == "redis"
            else postgres_server.Server(folder, durable=True)
        )
        yield one
        one.stop()


@pytest.fixture
def restartable(server: Server) -> RestartableServer:
    """Return an unused database on the server; restart it if a failed test left it dead."""
    if server.process.poll() is not None:
        server.start()
    if isinstance(server, redis_server.Server):
        return RestartableServer(server, server.url())
    return RestartableServer(server, server.url(f"m{os.urandom(4).hex()}"))


@flow("patient")
async def patient(ctx: Any) -> str:
    await ctx.wait.event("go")
    return "gone"


async def _collect(events: AsyncIterator[Event], into: list[Event]) -> None:
    async for event in events:
        into.append(event)


async def _append_events(app: App, numbers: range) -> None:
    for n in numbers:
        await app.events.append(LAMP, "lamp.lit", n, key=f"lamp-{n}")


@asynccontextmanager
async def _command(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command that prints, and kill it afterwards."""
    pipe, program = asyncio.subprocess.PIPE, (sys.executable, "-m", "penstock.cli")
    process = await asyncio.create_subprocess_exec(*program, *words, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def _numbers(events: list[Event]) -> list[Any]:
    return [event.data for event in events]


async def test_readers_continue_after_the_last_event(
    restartable: RestartableServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "penstock.store")
    release = asyncio.Event()

    @job(queue="slow")
    async def slow() -> str:
        await release.wait()
        return "done"

    by_kind: list[Event] = []
    by_subject: list[Event] = []
    subscribed: list[Event] = []
    followed: list[Event] = []
    of_queue: list[Event] = []
    shared: list[Event] = []  # on Redis these come from BullMQ
    lamps = (by_kind, by_subject, subscribed)

    def received(count: int) -> bool:
        return all(_numbers(events) == list(range(count)) for events in lamps)

    async with (
        App(restartable.url, handlers=[patient, slow]) as app,
        app.workers.background(),
        AsyncExitStack() as stack,
    ):
        run, id = await app.start("patient"), await app.enqueue("slow")
        await app.events.on_kind("lamp.lit", by_kind.append)
        await app.events.on_subject("lamp", by_subject.append)
        readers = [
            asyncio.create_task(_collect(app.events.subscribe(LAMP), subscribed)),
            asyncio.create_task(_collect(app.runs.follow(run), followed)),
            asyncio.create_task(_collect(app.queues.events("slow"), of_queue)),
            asyncio.create_task(_collect(app.queues.events("slow", shared=True), shared)),
        ]
        ends = [
            asyncio.create_task(end)
            for end in (app.result(run, timeout=120), app.runs.wait(run), app.jobs.result(id, timeout=120))
        ]
        command = _command("events", run, "--follow", "--json", "--url", restartable.url)
        printing = await stack.enter_async_context(command)
        assert printing.stdout is not None
        assert printing.stderr is not None
        printed = [await printing.stdout.readline()]  # it has started
        await _append_events(app, range(3))
        await until(lambda: received(3) and followed and of_queue and shared, TEST_TIMEOUT_S)

        await restartable.kill()
        on_postgres = restartable.url.startswith("postgresql")
        expected = {
            "subscribers by kind and subject": 1,
            f"stream {LAMP}": 1,
            f"stream nq:flow:{run}": 1,
            **({"stream nq:queue:slow": 2} if on_postgres else {"stream nq:queue:slow": 1, SHARED: 1}),
            f"the end of run {run!r}": 2,
            f"the end of job {id!r}": 1,
        }
        await until(lambda: _outages(caplog) == expected, TEST_TIMEOUT_S)
        assert b"no answer from the store" in await printing.stderr.readline()
        for late in (anext(app.events.subscribe("nq:global")), app.result(run), app.jobs.result(id)):
            with pytest.raises(StoreUnavailable):
                await late
        await restartable.start()

        await _append_events(app, range(3, 6))
        await app.emit("go")
        release.set()
        await until(lambda: received(6), TEST_TIMEOUT_S)
        assert [await ends[0], (await ends[1]).status, await ends[2]] == ["gone", "completed", "done"]
        whole = await app.events.read_all(f"nq:flow:{run}")
        await until(lambda: followed == whole, TEST_TIMEOUT_S)
        await until(lambda: of_queue and of_queue[-1].kind == "job.completed", TEST_TIMEOUT_S)
        assert of_queue == await app.events.read_all("nq:queue:slow")
        await until(
            lambda: [event.kind for event in shared] == ["job.added", "job.active", "job.completed"], TEST_TIMEOUT_S
        )
        printed += (await printing.communicate())[0].splitlines()
        assert printing.returncode == 0
        assert [msgspec.json.decode(line)["id"] for line in printed] == [event.id for event in whole]
        assert _outages(caplog) == expected
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)


def _outages(caplog: pytest.LogCaptureFixture) -> dict[str, int]:
    """Count the log lines about an outage by reader."""
    readers = [
        record.getMessage().partition(": no answer from the store")[0]
        for record in caplog.records
        if _is_outage(record)
    ]
    return dict(Counter(readers))


def _is_outage(record: logging.LogRecord) -> bool:
    return ": no answer from the store" in record.getMessage()


WORKER = """
from penstock import job


@job(queue="letters")
async def letters(name):
    return f"Dear {name}"
"""


async def test_a_worker_that_starts_while_the_server_is_away_waits_for_it(
    restartable: RestartableServer, tmp_path: Path
) -> None:
    folder = tmp_path / "workers"
    folder.mkdir()
    (folder / "letters.py").write_text(WORKER)
    async with App(restartable.url, handlers=[]) as app, AsyncExitStack() as stack:
        id = await app.enqueue("letters", "Ann")
        await restartable.kill()
        workers = [_command("worker", "--url", restartable.url, "--dir", str(folder)) for _ in range(2)]
        stopped, working = [await stack.enter_async_context(worker) for worker in workers]
        for worker in (stopped, working):
            assert worker.stderr is not None
            assert b"not open yet: no answer from the store, trying again" in await worker.stderr.readline()
        stopped.terminate()
        assert b"Stopped." in (await stopped.communicate())[1]
        await restartable.start()
        assert await _retry(lambda: app.jobs.result(id, timeout=TEST_TIMEOUT_S)) == "Dear Ann"
        working.terminate()
        output = (await working.communicate())[1]
        assert b"not open yet" not in output
    assert (stopped.returncode, working.returncode) == (0, 0)


async def test_a_relay_that_starts_while_the_server_is_away(restartable: RestartableServer, tmp_path: Path) -> None:
    mine = sqlite3.connect(tmp_path / "mine.db")
    async with App(restartable.url, handlers=[]) as app, AsyncExitStack() as stack:
        stack.callback(mine.close)
        await app.outbox.create(mine)
        await app.emit("order.made", {"n": 1}, tx=mine)
        mine.commit()
        await restartable.kill()
        command = ("outbox", "relay", "--from", f"sqlite:///{tmp_path}/mine.db", "--url", restartable.url)
        relays = [_command(*command, *options) for options in ((), (), ("--once",))]
        stopped, working, once = [await stack.enter_async_context(relay) for relay in relays]
        for relay in (stopped, working, once):
            assert relay.stderr is not None
            assert b"not open yet: no answer from the store, trying again" in await relay.stderr.readline()
        stopped.terminate()
        assert b"Stopped." in (await stopped.communicate())[1]
        await restartable.start()
        output, _ = await once.communicate()
        assert b"relayed." in output
        events = await _retry(lambda: app.events.read("nq:global"))
        assert [event.data for event in events] == [{"n": 1}]
        assert working.stdout is not None
        assert b"Relaying from" in await working.stdout.readline()
        working.terminate()
        await working.communicate()
    assert (stopped.returncode, working.returncode, once.returncode) == (0, 0, 0)


async def test_an_app_that_starts_a_worker_while_the_server_is_away(restartable: RestartableServer) -> None:
    @job(queue="letters")
    async def letters(name: str) -> str:
        return f"Dear {name}"

    async with App(restartable.url, handlers=[letters]) as app:
        id = await app.enqueue("letters", "Ann")
        await restartable.kill()
        with pytest.raises(StoreUnavailable):
            await App(restartable.url, handlers=[]).open()
        with pytest.raises(StoreUnavailable):
            await App(restartable.url, handlers=[]).open(connect_timeout="100ms")
        other = App(restartable.url, handlers=[])
        opening = asyncio.create_task(other.open(connect_timeout=TEST_TIMEOUT_S))
        async with app.workers.background():
            await restartable.start()
            assert await _retry(lambda: app.jobs.result(id, timeout=TEST_TIMEOUT_S)) == "Dear Ann"
        await opening
        assert (await other.jobs.get(id)).state.value == "completed"
        await other.close()


async def _retry(call: Callable[[], Any]) -> Any:
    """Repeat a call until the store answers."""
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(0.05)
