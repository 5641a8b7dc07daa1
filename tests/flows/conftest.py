"""Flows with skipped time, on every store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.testing import TestApp


@pytest.fixture
def kit(url: str) -> Callable[..., TestApp]:
    """Return a factory of TestApps on a store: `async with kit(charge, ship) as app:`."""

    def make(*handlers: Callable[..., Any], **settings: Any) -> TestApp:
        return TestApp(url, handlers=handlers, **settings)

    return make
