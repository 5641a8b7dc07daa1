"""The pytest plugin: `penstock_app`, `penstock_clock` and `--penstock-update`. It imports Penstock only when used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .clock import FakeClock
    from .test_app import TestApp

try:  # pytest-asyncio in strict mode needs its own decorator for async fixtures; anyio does not
    from pytest_asyncio import fixture as async_fixture
except ImportError:
    async_fixture = pytest.fixture  # type: ignore[assignment]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("penstock")
    group.addoption(
        "--penstock-update",
        action="store_true",
        default=False,
        help="Overwrite the saved histories that `assert_history` compares with the current ones.",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--penstock-update"):
        from .snapshots import update_snapshots

        update_snapshots.set(True)


@pytest.fixture
def penstock_clock() -> FakeClock:
    """Return the fake clock of the apps that `penstock_app` makes."""
    from .clock import FakeClock

    return FakeClock()


@async_fixture
async def penstock_app(penstock_clock: FakeClock) -> AsyncIterator[Callable[..., Coroutine[Any, Any, TestApp]]]:
    """Return a factory of running TestApps, closed after the test: `app = await penstock_app(charge, lease="5s")`."""
    from .test_app import TestApp

    made: list[TestApp] = []

    async def make(*handlers: Callable[..., Any], **settings: Any) -> TestApp:
        options = {"clock": penstock_clock, **settings}
        app = TestApp(**options) if "dir" in options and not handlers else TestApp(handlers=handlers, **options)
        await app.__aenter__()
        made.append(app)
        return app

    yield make
    for app in reversed(made):
        await app.close()
