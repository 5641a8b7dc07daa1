"""Processes that are killed: what was committed happens once, what was not never does."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from customers import file_in, postgres
from small_shop import HANDLERS, TABLE, TEST_TIMEOUT_S

import postgres_server
import redis_server

Apps = Callable[..., Any]
BUYER = Path(__file__).with_name("buyer.py")


async def buy(moment: str, store: str, customer: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, str(BUYER), moment, store, customer)
    assert await process.wait() == -signal.SIGKILL


async def bought_once(app: Any) -> None:
    """One order and one mail of the process that committed, none of the one that did not."""
    assert await app.result("killed-after", timeout=TEST_TIMEOUT_S) == 7
    assert await app.job_result("mail-after", timeout=TEST_TIMEOUT_S) == 8
    assert [row.id for row in await app.runs()] == ["killed-after"]
    assert await app.store.job("mail-before") is None
    assert len(await app.events_of("killed-after", "flow.completed")) == 1
    assert len(await app.job_events("mail", "job.completed")) == 1


class TestInTheSameDatabase:
    @pytest.fixture
    def url(self) -> str:
        postgres_server.server().do("DROP TABLE IF EXISTS orders")
        postgres_server.server().do(TABLE)
        return postgres_server.url()

    async def test_before_and_after_the_commit(self, url: str, apps: Apps) -> None:
        async with apps(*HANDLERS) as app, app.working():  # and nobody polls: the commit itself wakes them
            for moment in ("before", "after"):
                await buy(moment, url, f"postgresql://{postgres()}")
            await bought_once(app)
        assert len(postgres_server.server().do("SELECT 1 FROM orders")) == 1


class TestByWayOfAnOutbox:
    @pytest.fixture
    def url(self) -> str:
        return redis_server.url()

    async def test_before_and_after_the_commit_and_in_the_middle_of_handing_over(
        self, url: str, apps: Apps, tmp_path: Path
    ) -> None:
        place = file_in(tmp_path)
        async with apps(*HANDLERS) as app, app.working():
            connection = sqlite3.connect(place)
            connection.execute(TABLE)
            await app.outbox.create(connection)
            for moment in ("before", "after"):
                await buy(moment, url, place)
            assert len(connection.execute("SELECT 1 FROM penstock_outbox").fetchall()) == 2
            await buy("marking", url, f"sqlite:///{place}")
            await bought_once(app)
            assert await app.outbox.drain(f"sqlite:///{place}") == 2
            await bought_once(app)
            connection.close()
