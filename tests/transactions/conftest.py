"""Customers who come with a connection, and go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from customers import Customer


@pytest.fixture
def apps(app: Callable[..., Any]) -> Callable[..., Any]:
    """Makes Apps with the handlers given, on the store `url`."""
    return app


@pytest.fixture
async def opened() -> AsyncIterator[Callable[[type[Customer], str], Awaitable[Customer]]]:
    """Lets customers in; their connections are closed after the test."""
    there: list[Customer] = []

    async def come(driver: type[Customer], place: str) -> Customer:
        there.append(driver(place))
        await there[-1].open()
        return there[-1]

    yield come
    for customer in there:
        await customer.close()
