"""The stores under test, and how long the suites are: `PENSTOCK_FAULTS=full` (make faults) makes them long."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from faultkit import backends  # noqa: E402
from faultkit.backends import Backend  # noqa: E402

FULL = os.environ.get("PENSTOCK_FAULTS") == "full"


@pytest.fixture(params=backends.ALL, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every store."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=backends.SHARED, ids=lambda backend: backend.name)
def shared(request: pytest.FixtureRequest) -> Backend:
    """Every store that several processes can use."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints a number that people want to see even when all is well."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {text}", flush=True)

    return say
