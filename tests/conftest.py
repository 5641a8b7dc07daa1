"""The scene of the tests: an App on every store there is, and a clock that stands still until it is moved.

A new store is added to PLACES and STORES, and to SHARED if several Apps can open it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import postgres_server
import redis_server
from penstock import App, Event
from penstock.core.ids import step_job
from penstock.jobs import scheduler, worker
from penstock.jobs.dead_letters import DeadLetter
from penstock.ports.store import JobRow
from penstock.ports.unit import JobState
from penstock.settings import Settings
from penstock.stores import tailing
from penstock.testing.clock import FakeClock
from penstock.testing.until import until

pytest_plugins = ("xdist_groups", "progress")

# The URL of an empty store of each kind.
PLACES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _tmp: ":memory:",
    "file": lambda tmp: f"sqlite:///{tmp}/penstock.db",
    "postgres": lambda _tmp: postgres_server.url(),
    "redis": lambda _tmp: redis_server.url(),
}
# What one App does is the same in memory and in a file: one set of statements. The file has its contracts, the tests of
# several Apps and processes, and the fault suites.
STORES = ("memory", "postgres", "redis")
SHARED = ("file", "postgres", "redis")

PATIENCE = 20  # seconds until a test that waits gives up


class Trial(App):
    """An App that answers what tests ask."""

    async def stream(self, run: str) -> list[Event]:
        """All events of a run."""
        return await self.events.read_all(f"nq:flow:{run}")

    async def kinds(self, run: str, *only: str) -> list[str]:
        """The kinds of a run's events in order; with `only`, those that begin so."""
        return [e.kind for e in await self.stream(run) if not only or e.kind.startswith(only)]

    async def said(self, run: str, kind: str, step: str | None = None) -> list[Event]:
        """The events of one kind, of one step."""
        return [e for e in await self.stream(run) if e.kind == kind and step in (None, e.step)]

    async def job_events(self, queue: str, *kinds: str) -> list[Event]:
        """The events of a queue's stream."""
        return [e for e in await self.events.read_all(f"nq:queue:{queue}") if not kinds or e.kind in kinds]

    async def ended(self, run: str) -> str:
        """Waits for a run and gives how it ended."""
        return (await self.wait(run, timeout=PATIENCE)).status

    async def gives(self, flow: Any, input: Any = None, **options: Any) -> Any:
        """Starts a run and gives its result."""
        return await self.result(await self.start(flow, input, **options), timeout=PATIENCE)

    async def ends(self, flow: Any, input: Any = None, **options: Any) -> tuple[str, str]:
        """Starts a run, waits for it and gives its id and how it ended."""
        run = await self.start(flow, input, **options)
        return run, await self.ended(run)

    async def in_state(self, job: str, *states: str) -> JobRow:
        """Waits until a job is in one of the states."""

        async def there() -> JobRow | None:
            row = await self.store.job(job)
            return row if row is not None and row.state.value in states else None

        return await until(there, PATIENCE)  # type: ignore[no-any-return]

    async def step_in(self, run: str, step: str, *states: str, n: int = 1) -> JobRow:
        """Waits until a step's job is in one of the states."""
        return await self.in_state(step_job(run, step, n), *states)

    async def letters(self, queue: str = "default") -> list[DeadLetter]:
        """The dead letters of a queue."""
        return [letter for _, letter in await self.dead_letters.list(queue, limit=1000)]

    async def waiting(self, queue: str = "default") -> int:
        return (await self.queues.counts(queue))[JobState.WAITING.value]

    def wake(self) -> None:
        """Everyone looks at the store: a fake clock moves without a sound."""
        self.store.signals.fire_all()  # type: ignore[attr-defined]

    def tick(self, by: Any, *others: Trial) -> None:
        """Moves the fake clock on and lets this App, and others on the same clock, notice."""
        assert isinstance(self.clock, FakeClock)
        self.clock.advance(by)
        for app in (self, *others):
            app.wake()


def apps_at(url: str) -> Callable[..., Trial]:
    """Makes Apps on one store: `app(charge, ship, lease="1s")`."""

    def make(*handlers: Callable[..., Any], **settings: Any) -> Trial:
        given = {} if "dir" in settings else {"handlers": handlers}
        return Trial(url, **given, **settings)

    return make


def pytest_configure() -> None:
    if os.geteuid() == 0:  # Postgres runs as another user then, and its folders are temporary ones
        tempfile.tempdir = str(postgres_server.open_temporary_folder())


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the machine the tests run on are not theirs."""
    for field in fields(Settings):
        monkeypatch.delenv(f"PENSTOCK_{field.name.upper()}", raising=False)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind."""
    return PLACES[request.param](tmp_path)


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the store without being woken: a lost wake-up fails a test instead of slowing it down."""
    monkeypatch.setattr(worker, "MAX_IDLE", 3600.0)
    monkeypatch.setattr(scheduler, "MAX_IDLE", 3600.0)
    monkeypatch.setattr(tailing, "BACKSTOP", 3600.0)


@pytest.fixture
def app(url: str, no_polling: None) -> Callable[..., Trial]:
    """Makes Apps with the handlers given, on every store."""
    return apps_at(url)


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind that several Apps can open."""
    return PLACES[request.param](tmp_path)


@pytest.fixture
def shared(shared_url: str, no_polling: None) -> Callable[..., Trial]:
    """Makes Apps that meet in one store, on every store where they can."""
    return apps_at(shared_url)


@pytest.fixture
def memory(no_polling: None) -> Callable[..., Trial]:
    """Makes Apps in memory, for what no store has a say in."""
    return apps_at(":memory:")
