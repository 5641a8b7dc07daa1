"""Connections of customers, closed after each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from customers import Customer


@pytest.fixture
def apps(app: Callable[..., Any]) -> Callable[..., Any]:
    """Return the factory of Apps with some handlers, on the store `url`."""
    return app


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[type[Customer], str], Awaitable[Customer]]]:
    """Yield a function that opens a customer's connection."""
    customers: list[Customer] = []

    async def open_connection(driver: type[Customer], location: str) -> Customer:
        customers.append(driver(location))
        await customers[-1].open()
        return customers[-1]

    yield open_connection
    for customer in customers:
        await customer.close()
