"""Limits of queues that are changed while workers run, and the keys that fill a queue."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from http_server import serve_app
from penstock import App, SyncApp, job
from penstock.app import workers
from penstock.app.queue_limits import STATE_PREFIX
from penstock.app.state import AppState
from penstock.core.errors import BadArgument, UnknownQueue
from penstock.ports.unit import DELIVERIES
from penstock.testing.until import until


class Press:
    """A handler that runs until it is released, and counts how many run at once."""

    def __init__(self) -> None:
        self.active = 0
        self.most = 0
        self.done = 0
        self.turns = asyncio.Semaphore(0)

    async def run(self) -> None:
        self.active += 1
        self.most = max(self.most, self.active)
        await self.turns.acquire()
        self.active -= 1
        self.done += 1

    def release(self, number: int) -> None:
        for _ in range(number):
            self.turns.release()


def make_job(press: Press, **options: Any) -> Any:
    @job(queue="press", **options)
    async def print_page(page: int) -> None:
        await press.run()

    return print_page


async def until_followed(app: Any, **limits: Any) -> None:
    """Wait until the worker uses these limits: it reads a change after the call that made it has returned."""

    def follows() -> bool:
        used = app.workers._worker._poller.queues["press"]
        return all(getattr(used, name) == value for name, value in limits.items())

    await until(follows)


async def test_a_worker_follows_a_changed_concurrency(app: Any) -> None:
    press = Press()
    async with app(make_job(press), concurrency=8) as mine, mine.workers.background():
        changed = await mine.queues.set_limits("press", concurrency=2)
        assert (changed.effective.concurrency, changed.declared.concurrency) == (2, None)
        await until_followed(mine, concurrency=2)
        await mine.jobs.enqueue_many("press", range(20))
        await until(lambda: press.active == 2)
        press.release(4)
        await until(lambda: press.done == 4 and press.active == 2)
        assert press.most == 2
        await mine.queues.set_limits("press", concurrency=5)
        await until(lambda: press.active == 5)
        again = await mine.queues.reset_limits("press")
        assert (again.override, again.changed_at) == (None, None)
        await until(lambda: press.active == 8)
        press.release(16)
        await until(lambda: press.done == 20)


async def test_max_active_holds_over_what_the_handler_declares(app: Any) -> None:
    press = Press()
    async with app(make_job(press, max_active=3), concurrency=8) as mine, mine.workers.background():
        await mine.jobs.enqueue_many("press", range(10))
        await until(lambda: press.active == 3)
        await mine.queues.set_limits("press", max_active=1)
        await until_followed(mine, max_active=1)
        press.release(3)
        await until(lambda: press.done == 3 and press.active == 1)
        assert (await mine.queues.counts("press"))["active"] == 1
        await mine.queues.reset_limits("press")
        await until(lambda: press.active == 3)
        press.release(7)
        await until(lambda: press.done == 10)


async def test_a_changed_rate_limit_starts_a_new_window(app: Any) -> None:
    press = Press()
    press.release(20)
    async with app(make_job(press, rate_limit="1/1h"), concurrency=8) as mine, mine.workers.background():
        await mine.jobs.enqueue_many("press", range(10))
        await until(lambda: press.done == 1)
        view = await mine.queues.limits("press")
        assert (view.effective.rate_limit, view.override) == ("1/1h", None)
        await mine.queues.set_limits("press", rate_limit="4/1h")
        await until(lambda: press.done == 5)
        await mine.queues.set_limits("press", rate_limit="100/1s")
        await until(lambda: press.done == 10)


async def test_workers_of_other_processes_follow_and_start_with_it(
    shared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "FOLLOW_INTERVAL_S", 0.02)
    press = Press()
    handler = make_job(press)
    async with shared(handler, concurrency=8) as mine, shared() as other:
        await mine.jobs.enqueue_many("press", range(12))
        await other.queues.set_limits("press", concurrency=1)
        async with mine.workers.background():  # it starts with the limit
            await until(lambda: press.active == 1)
            view = await other.queues.limits("press")
            assert (view.declared, view.effective.concurrency) == (None, 1)
            press.release(2)
            await until(lambda: press.done == 2 and press.active == 1)
            assert press.most == 1
            await other.queues.set_limits("press", concurrency=4)
            await until(lambda: press.active == 4)
            press.release(10)
            await until(lambda: press.done == 12)


async def test_a_limit_that_cannot_be_read_is_ignored(memory: Any, caplog: pytest.LogCaptureFixture) -> None:
    press = Press()
    press.release(1)
    async with memory(make_job(press)) as mine:
        await AppState(mine._runtime, STATE_PREFIX).set("press", ["no", "limit"])
        with caplog.at_level(logging.WARNING, "penstock.worker"):
            async with mine.workers.background():
                await mine.jobs.result(await mine.enqueue("press", 1))
            assert (await mine.queues.limits("press")).override is None
        assert [one for one in caplog.messages if "limits of queue press cannot be read" in one]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({}, "no limit is set"),
        ({"concurrency": 0}, "concurrency"),
        ({"max_active": -1}, "max_active"),
        ({"rate_limit": "often"}, "100/1m"),
        ({"per_key": True}, "requires rate_limit|no limit is set"),
        ({"rate_limit": "5/1s", "per_key": True}, "have no rate key"),
    ],
)
async def test_limits_that_make_no_sense(memory: Any, limits: dict[str, Any], words: str) -> None:
    async with memory(make_job(Press())) as mine:
        with pytest.raises(BadArgument, match=words):
            await mine.queues.set_limits("press", **limits)
        with pytest.raises(UnknownQueue):
            await mine.queues.set_limits("prss", concurrency=1)
        with pytest.raises(BadArgument, match="engine's own"):
            await mine.queues.set_limits(DELIVERIES, concurrency=1)


async def test_the_keys_that_fill_a_queue(app: Any) -> None:
    handler = make_job(Press(), rate_limit={"max": 1, "duration": "1h", "per_key": True}, rate_key="who")
    async with app(handler) as mine:
        await mine.jobs.enqueue_many("press", [{"who": "ann"}] * 5 + [{"who": "bob"}] * 2 + [{"who": "eve"}])
        found = await mine.queues.top_keys("press", limit=2)
        assert [(one.key, one.total, one.counts) for one in found.keys] == [
            ("ann", 5, {"waiting": 5}),
            ("bob", 2, {"waiting": 2}),
        ]
        assert found.others == 1


def test_the_facet_without_an_event_loop() -> None:
    with SyncApp(":memory:", handlers=[make_job(Press())]) as app:
        assert app.queues.set_limits("press", concurrency=3).effective.concurrency == 3
        assert app.queues.reset_limits("press").effective.concurrency is None
        assert app.queues.top_keys("press").keys == []


async def test_limits_and_keys_over_http() -> None:
    async with App(":memory:", handlers=[make_job(Press(), concurrency=4)]) as app, serve_app(app) as client:
        path = "/api/_queue/press/limits"
        assert (await client.get(path)).json()["declared"]["concurrency"] == 4
        changed = (await client.put(path, json={"concurrency": 2, "rateLimit": "90/1m"})).json()
        assert changed["effective"] == {"concurrency": 2, "maxActive": None, "rateLimit": "90/1m", "perKey": False}
        assert (await client.put(path, json={"rateLimit": "often"})).status_code == 400
        assert (await client.put(path, json={})).json()["error"]["code"] == "bad_argument"
        assert (await client.delete(path)).json()["override"] is None
        assert (await client.get("/api/_queue/press/keys")).json()["keys"] == []
        _, viewer = await app.tokens.add("vera", "viewer")
        headers = {"authorization": f"Bearer {viewer}"}
        assert (await client.put(path, json={"concurrency": 9}, headers=headers)).status_code == 403
        assert (await client.get(path, headers=headers)).status_code == 200
