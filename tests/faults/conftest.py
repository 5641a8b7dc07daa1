"""Fixtures of the fault suites: the stores under test, and output of measurements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from faultkit import backends
from faultkit.backends import Backend


@pytest.fixture(params=backends.ALL, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return every store in turn."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=backends.SHARED, ids=lambda backend: backend.name)
def shared(request: pytest.FixtureRequest) -> Backend:
    """Return every store that several processes can use."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def store_file() -> Backend:
    """Return the store of most mutants: many of them change its SQL."""
    return backends.SQLITE_FILE


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Return a function that prints measurements even when the test passes."""

    def print_text(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {text}", flush=True)

    return print_text
