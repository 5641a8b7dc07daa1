"""The store is in the customer's own database: what he starts is there when he commits, and never was if he does not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from conftest import PATIENCE, apps_at
from customers import BLOCKING_POSTGRES, ORDERS, WAITING_POSTGRES, Asyncpg, Customer, postgres

import postgres_server
from penstock import SyncApp
from penstock.outbox.places import now
from penstock.testing.until import until

from .shop import HANDLERS


@pytest.fixture
def store(no_polling: None) -> str:
    postgres_server.server().do("DROP TABLE IF EXISTS orders")
    return postgres_server.url()
