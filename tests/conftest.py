"""Fixtures for all tests: Apps on every store, and a clock that moves only when a test moves it.

Add a new store to STORES and to store_urls.py, there to SHARED, too, if several Apps can open it.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

import kept_connections
import postgres_server
from installs import CACHE
from penstock import App, Event
from penstock.core.ids import step_job_id
from penstock.jobs.dead_letters import DeadLetter
from penstock.ports.store import JobRow
from penstock.ports.unit import JobState
from penstock.schedules import scheduler
from penstock.settings import Settings
from penstock.stores import tail as tailing
from penstock.testing import TestApp, auto_clock
from penstock.testing.clock import FakeClock
from penstock.testing.until import until
from penstock.worker import polling
from store_urls import SHARED, STORE_URLS

pytest_plugins = ("xdist_groups", "progress", "coverage_lock", "browser", "collection")

# What one App does is the same in memory and in a file: one set of statements. The file has its contracts, the tests of
# several Apps and processes, and the fault suites.
STORES = ("memory", "postgres", "redis")

TEST_TIMEOUT_S = 100  # a wait in a test gives up after this: it only guards against a hang


class AppHarness(App):
    """An App with shortcuts for assertions."""

    async def stream(self, run: str) -> list[Event]:
        """Return all events of a run."""
        return await self.events.read_all(f"nq:flow:{run}")

    async def kinds(self, run: str, *only: str) -> list[str]:
        """Return the kinds of a run's events in order; with `only`, those that start with one of these prefixes."""
        return [e.kind for e in await self.stream(run) if not only or e.kind.startswith(only)]

    async def events_of(self, run: str, kind: str, step: str | None = None) -> list[Event]:
        """Return a run's events of one kind, optionally of one step."""
        return [e for e in await self.stream(run) if e.kind == kind and step in (None, e.step)]

    async def job_events(self, queue: str, *kinds: str) -> list[Event]:
        """Return the events of a queue's stream, optionally of some kinds."""
        return [e for e in await self.events.read_all(f"nq:queue:{queue}") if not kinds or e.kind in kinds]

    async def wait_for_end(self, run: str) -> str:
        """Wait for a run and return its final status."""
        return (await self.runs.wait(run, timeout=TEST_TIMEOUT_S)).status

    async def run_for_result(self, flow: Any, input: Any = None, **options: Any) -> Any:
        """Start a run and return its result."""
        return await self.result(await self.start(flow, input, **options), timeout=TEST_TIMEOUT_S)

    async def run_to_end(self, flow: Any, input: Any = None, **options: Any) -> tuple[str, str]:
        """Start a run, wait for it and return its id and final status."""
        run = await self.start(flow, input, **options)
        return run, await self.wait_for_end(run)

    async def wait_for_state(self, job: str, *states: str) -> JobRow:
        """Wait until a job is in one of the states."""

        async def find() -> JobRow | None:
            row = await self.store.job(job)
            return row if row is not None and row.state.value in states else None

        return await until(find, TEST_TIMEOUT_S)  # type: ignore[no-any-return]

    async def wait_for_step(self, run: str, step: str, *states: str, n: int = 1) -> JobRow:
        """Wait until a step's job is in one of the states."""
        return await self.wait_for_state(step_job_id(run, step, n), *states)

    async def list_dead_letters(self, queue: str = "default") -> list[DeadLetter]:
        """Return the dead letters of a queue."""
        return [letter for _, letter in await self.dead_letters.list(queue, limit=1000)]

    async def count_waiting(self, queue: str = "default") -> int:
        """Return how many jobs of a queue wait for a worker."""
        return (await self.queues.counts(queue))[JobState.WAITING.value]

    def wake_all(self) -> None:
        """Wake every worker and scheduler: moving a fake clock notifies nobody."""
        self.store.signals.notify_all()  # type: ignore[attr-defined]

    def advance_clock(self, by: Any, *others: AppHarness) -> None:
        """Advance the fake clock and wake this App and others on the same clock."""
        assert isinstance(self.clock, FakeClock)
        self.clock.advance(by)
        for app in (self, *others):
            app.wake_all()


def apps_at(url: str) -> Callable[..., AppHarness]:
    """Return a factory of Apps on one store: `app(charge, ship, lease="1s")`."""

    def make(*handlers: Callable[..., Any], **settings: Any) -> AppHarness:
        options = {} if "dir" in settings else {"handlers": handlers}
        return AppHarness(url, **options, **settings)

    return make


def pytest_configure() -> None:
    # What takes a second on a quiet machine may take a minute on a busy one.
    auto_clock.TIMEOUT_S = TEST_TIMEOUT_S
    until.__defaults__ = (TEST_TIMEOUT_S,)
    # A busy machine is slow in generating values and in running an example: neither is a failure.
    hypothesis_settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    hypothesis_settings.load_profile("suite")
    # What Penstock installs for Node goes to the clone's cache; pip keeps its own.
    os.environ.setdefault("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    os.environ.setdefault("XDG_CACHE_HOME", str(CACHE / "xdg"))
    if os.geteuid() == 0:  # Postgres runs as another user then, and its folders are temporary ones
        tempfile.tempdir = str(postgres_server.open_temporary_folder())


@pytest.fixture(autouse=True)
def _ignore_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the PENSTOCK_* variables of the machine."""
    for field in fields(Settings):
        monkeypatch.delenv(f"PENSTOCK_{field.name.upper()}", raising=False)


@pytest.fixture
def _function_scoped_runner() -> Iterator[asyncio.Runner]:
    """Return what pytest-asyncio runs a test with, on the loop that keeps connections to Postgres."""
    with asyncio.Runner(loop_factory=kept_connections.open_loop) as runner:
        asyncio.set_event_loop(runner.get_loop())
        yield runner
        asyncio.set_event_loop(None)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty store, for each kind of store."""
    return STORE_URLS[request.param](tmp_path)


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable polling: a lost wake-up then fails a test instead of slowing it down."""
    monkeypatch.setattr(polling, "MAX_IDLE_S", 3600.0)
    monkeypatch.setattr(scheduler, "MAX_IDLE_S", 3600.0)
    monkeypatch.setattr(tailing, "POLL_INTERVAL_S", 3600.0)


@pytest.fixture
def app_factory() -> Callable[[str], Callable[..., AppHarness]]:
    """Return a function that returns a factory of Apps on the store at a URL."""
    return apps_at


@pytest.fixture
def app(url: str, no_polling: None) -> Callable[..., AppHarness]:
    """Return a factory of Apps, for every store."""
    return apps_at(url)


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty store, for each kind that several Apps can open."""
    return STORE_URLS[request.param](tmp_path)


@pytest.fixture
def new_url(shared_url: str, tmp_path: Path) -> Callable[[], str]:
    """Return a function that returns the URL of another empty store of the same kind as `shared_url`."""
    kind = {"sqlite": "file", "postgresql": "postgres"}.get(shared_url.partition(":")[0], "redis")

    def make() -> str:
        return STORE_URLS[kind](Path(tempfile.mkdtemp(dir=tmp_path)))

    return make


@pytest.fixture
def shared(shared_url: str, no_polling: None) -> Callable[..., AppHarness]:
    """Return a factory of Apps that share one store, for every store that can be shared."""
    return apps_at(shared_url)


@pytest.fixture
def memory(no_polling: None) -> Callable[..., AppHarness]:
    """Return a factory of Apps in memory, for behaviour that does not depend on the store."""
    return apps_at(":memory:")


@pytest.fixture
def kit(url: str) -> Callable[..., TestApp]:
    """Return a factory of TestApps, which skip time, on a store: `async with kit(charge, ship) as app:`."""

    def make(*handlers: Callable[..., Any], **settings: Any) -> TestApp:
        return TestApp(url, handlers=handlers, **settings)

    return make
