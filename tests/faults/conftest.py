"""The stores under test, and a way to show numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from faultkit import backends
from faultkit.backends import Backend


@pytest.fixture(params=backends.ALL, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every store."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=backends.SHARED, ids=lambda backend: backend.name)
def shared(request: pytest.FixtureRequest) -> Backend:
    """Every store that several processes can use."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def store_file() -> Backend:
    """The store that mutants are made of: many of them change its statements."""
    return backends.SQLITE_FILE


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints a number that people want to see even when all is well."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {text}", flush=True)

    return say
