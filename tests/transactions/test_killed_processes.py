"""Killed processes: committed work runs once, uncommitted work never runs."""

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
PROGRAM = Path(__file__).with_name("killed_process.py")


async def order_and_die(moment: str, store: str, customer: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, str(PROGRAM), moment, store, customer)
    assert await process.wait() == -signal.SIGKILL


async def check_ordered_once(app: Any) -> None:
    """Check one order and one mail of the process that committed, and none of the other."""
    assert await app.result("killed-after", timeout=TEST_TIMEOUT_S) == 7
    assert await app.jobs.result("mail-after", timeout=TEST_TIMEOUT_S) == 8
    assert [row.id for row in await app.runs.list()] == ["killed-after"]
    assert await app.store.job("mail-before") is None
    assert len(await app.events_of("killed-after", "flow.completed")) == 1
    assert len(await app.job_events("mail", "job.completed")) == 1


class TestSameDatabase:
    @pytest.fixture
    def url(self) -> str:
        postgres_server.server().do("DROP TABLE IF EXISTS orders")
        postgres_server.server().do(TABLE)
        return postgres_server.prepared_url()

    async def test_before_and_after_the_commit(self, url: str, apps: Apps) -> None:
        async with apps(*HANDLERS) as app, app.workers.background():  # without polling: the commit wakes the worker
            for moment in ("before", "after"):
                await order_and_die(moment, url, f"postgresql://{postgres()}")
            await check_ordered_once(app)
        assert len(postgres_server.server().do("SELECT 1 FROM orders")) == 1


class TestThroughAnOutbox:
    @pytest.fixture
    def url(self) -> str:
        return redis_server.url()

    async def test_before_and_after_the_commit_and_before_deleting(self, url: str, apps: Apps, tmp_path: Path) -> None:
        location = file_in(tmp_path)
        async with apps(*HANDLERS) as app, app.workers.background():
            connection = sqlite3.connect(location)
            connection.execute(TABLE)
            await app.outbox.create(connection)
            for moment in ("before", "after"):
                await order_and_die(moment, url, location)
            assert len(connection.execute("SELECT 1 FROM penstock_outbox").fetchall()) == 2
            await order_and_die("deleting", url, f"sqlite:///{location}")
            await check_ordered_once(app)
            assert await app.outbox.drain(f"sqlite:///{location}") == 2
            await check_ordered_once(app)
            connection.close()
