"""The pytest plugin: `penstock_app`, `penstock_clock` and `--penstock-update`. It loads nothing until it is used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .clock import FakeClock
    from .test_app import TestApp

try:  # strict mode of pytest-asyncio wants async fixtures marked; anyio takes them as they are
    from pytest_asyncio import fixture as async_fixture
except ImportError:
    async_fixture = pytest.fixture  # type: ignore[assignment]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("penstock")
    group.addoption(
        "--penstock-update",
        action="store_true",
        default=False,
        help="Save the histories that `assert_history` compares as they are now.",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--penstock-update"):
        from .snapshots import updating

        updating.set(True)


@pytest.fixture
def penstock_clock() -> FakeClock:
    """A clock that moves only when it is told to; that of the apps `penstock_app` makes."""
    from .clock import FakeClock

    return FakeClock()


@async_fixture
async def penstock_app(penstock_clock: FakeClock) -> AsyncIterator[Callable[..., Coroutine[Any, Any, TestApp]]]:
    """Makes TestApps that work and are closed after the test: `app = await penstock_app(charge, ship, lease="5s")`."""
    from .test_app import TestApp

    made: list[TestApp] = []

    async def make(*handlers: Callable[..., Any], **settings: Any) -> TestApp:
        given = {"clock": penstock_clock, **settings}
        app = TestApp(**given) if "dir" in given and not handlers else TestApp(handlers=handlers, **given)
        await app.__aenter__()
        made.append(app)
        return app

    yield make
    for app in reversed(made):
        await app.close()
