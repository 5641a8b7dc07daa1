"""`/api/_metrics`: what the store holds and what the process does, in the format of Prometheus."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest
from prometheus_client.parser import text_string_to_metric_families

import penstock.http.metrics as metrics_module
from http_server import Serve, serve_app
from penstock import App, __version__, job
from penstock.app.views import QueueView
from penstock.errors import ConfigError, Permanent, StoreUnavailable
from penstock.http import asgi_app
from penstock.http.metrics import Metrics
from penstock.ports.monitoring import MinuteCounts
from penstock.telemetry.instrumentation import JobEnqueued
from penstock.testing import FakeClock
from penstock.testing.until import until


@job(queue="mail")
async def mail(to: str) -> None:
    if to == "nobody":
        raise Permanent("no address")


def parse(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.spec(
    "000-10.11", "000-11.8", "000-13.2", "000-16.18", "000-16.19", "002-7.8", "002-7.9", "002-7.10", "002-7.11", "002-7.12",
    "002-7.14", "002-9.4",
)  # fmt: skip
async def test_a_scrape_shows_jobs_attempts_and_commits(serve: Serve, url: str) -> None:
    app = App(url, handlers=[mail])
    metrics = Metrics()
    app.listen(metrics)
    async with app, serve(app) as client:
        client.services.metrics = metrics  # type: ignore[attr-defined]
        for to in ("ada", "bob", "nobody"):
            await app.enqueue(mail, to, key=f"to-{to}")
        before = parse((await client.get("/api/_metrics")).text)
        assert before["penstock_queue_jobs", (("queue", "mail"), ("state", "waiting"))] == 3
        async with app.workers.background():

            async def have_ended() -> bool:
                return (await app.jobs.get("to-nobody")).state == "failed" and not (
                    await app.queues.counts("mail")
                ).get("active")

            await until(have_ended)
            found = await client.get("/api/_metrics")
        assert found.headers["content-type"].startswith("text/plain")
        after = parse(found.text)
    queue = ("queue", "mail")
    assert after["penstock_jobs_enqueued_total", (queue,)] == 3
    assert after["penstock_attempts_total", (("outcome", "completed"), queue)] == 2
    assert after["penstock_attempts_total", (("outcome", "failed"), queue)] == 1
    assert after["penstock_attempt_seconds_count", (queue,)] == 3
    assert after["penstock_job_attempts_bucket", (("le", "1.0"), queue)] == 3
    assert after["penstock_dead_letters", (("queue", "mail-dlq"),)] == 1
    assert after["penstock_commit_units_count", ()] > 0
    assert after["penstock_store_up", ()] == 1
    assert after["penstock_workers", ()] == 1
    assert after["penstock_worker_slots_busy", ()] >= 0
    info = [dict(labels) for name, labels in after if name == "penstock_info"]
    assert info == [{"version": __version__, "fingerprint": app.registry.fingerprint[:12]}]


async def test_a_scrape_shows_ages_and_rates(url: str, clock: FakeClock) -> None:
    async with App(url, handlers=[mail], clock=clock) as app:
        await app.enqueue(mail, "ada")
        await app.enqueue("other", 1, delay="1h")
        await app.queues.rates("mail")  # writes what was counted
        clock.advance(90)
        found = parse((await Metrics().render(app, 0)).decode())
    assert found["penstock_queue_oldest_seconds", (("queue", "mail"),)] >= 60
    rates = {dict(labels)["what"]: n for (name, labels), n in found.items() if name == "penstock_queue_minute_jobs"}
    assert set(rates) <= {"added", "completed", "failed", "retried"}


async def test_the_rates_are_those_of_the_last_whole_minute(url: str) -> None:
    async with App(url, handlers=[mail]) as app:
        minute = app.clock.now_ms() // 60_000 * 60_000 - 60_000
        await app.store.add_counts(
            [MinuteCounts("mail", minute, 4, 3, 2, 1), MinuteCounts("mail", minute - 60_000, 9, 9, 9, 9)]
        )
        found = parse((await Metrics().render(app, 0)).decode())
    rates = {dict(labels)["what"]: n for (name, labels), n in found.items() if name == "penstock_queue_minute_jobs"}
    assert rates == {"added": 4, "completed": 3, "failed": 2, "retried": 1}


async def test_scrapes_at_the_same_time_count_everything_once(url: str) -> None:
    async with App(url, handlers=[mail]) as app:
        await app.jobs.enqueue_many("mail", ["ada", "bob"])
        metrics = Metrics()
        found = await asyncio.gather(*(metrics.render(app, 0) for _ in range(3)))
    label = ("penstock_queue_jobs", (("queue", "mail"), ("state", "waiting")))
    assert [parse(text.decode())[label] for text in found] == [2, 2, 2]


async def test_queues_of_any_name_have_a_label() -> None:
    """Other programs on the same Redis may name a queue as they like."""
    name = 'a"b\\c\nd{}'
    async with App(":memory:", handlers=()) as app:
        view = QueueView(name, True, {"waiting": 3})
        app.queues.list = AsyncMock(return_value=[view])  # type: ignore[method-assign]
        found = parse((await Metrics().render(app, 0)).decode())
    assert found["penstock_queue_jobs", (("queue", name), ("state", "waiting"))] == 3
    assert found["penstock_queue_paused", (("queue", name),)] == 1


class FakeBridge:
    """A bridge whose system answers or not."""

    def __init__(self) -> None:
        self.is_up = True

    async def open(self, host: object) -> None: ...

    async def run(self) -> None: ...

    async def close(self) -> None: ...

    async def check(self) -> None:
        if not self.is_up:
            raise StoreUnavailable("it does not answer")


async def test_bridges_are_part_of_metrics_and_readiness(serve: Serve) -> None:
    bridge = FakeBridge()
    async with App(":memory:", handlers=(), bridges=[bridge]) as app, serve(app) as client:
        label = ("penstock_bridge_up", (("bridge", "FakeBridge"),))
        assert parse((await client.get("/api/_metrics")).text)[label] == 1
        ready = (await client.get("/ready")).json()
        assert (ready["status"], ready["bridges"]) == ("ok", [{"name": "FakeBridge", "up": True}])
        bridge.is_up = False
        assert parse((await client.get("/api/_metrics")).text)[label] == 0
        answer = await client.get("/ready")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
        assert "FakeBridge" in answer.json()["error"]["message"]
        assert (await client.get("/health")).status_code == 200


async def test_a_scrape_reads_no_finished_job() -> None:
    """Every statement of a scrape finds its rows by an index: none reads the table of jobs from end to end."""
    async with App(":memory:", handlers=[mail]) as app:  # one connection for everything
        await app.enqueue(mail, "ada")
        statements: set[str] = set()

        def trace(_cursor: object, statement: str, _bindings: object) -> bool:
            statements.add(statement)
            return True

        reader = app.store._reader  # type: ignore[attr-defined]
        await reader.run(lambda cursor: cursor.connection.set_exec_trace(trace))
        await Metrics().render(app, 0)
        await reader.run(lambda cursor: cursor.connection.set_exec_trace(None))
        reads = [one for one in statements if one.lstrip().upper().startswith(("SELECT", "WITH"))]
        plans = [await reader.run(partial(explain, statement=one)) for one in reads]
    assert len(reads) >= 3, statements
    assert [line for plan in plans for line in plan if re.match(r"SCAN jobs( |$)(?!.*INDEX)", line)] == []


def explain(cursor: Any, statement: str) -> list[str]:
    count = statement.count("?")
    return [row[3] for row in cursor.execute(f"EXPLAIN QUERY PLAN {statement}", (None,) * count)]


@pytest.mark.spec("002-7.13")
async def test_a_store_that_is_down_is_a_value(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:

        async def fail(**_options: object) -> None:
            raise StoreUnavailable("down")

        app.queues.list = fail  # type: ignore[method-assign,assignment]
        found = await client.get("/api/_metrics")
    assert found.status_code == 200
    assert parse(found.text)["penstock_store_up", ()] == 0


async def test_live_clients_are_counted(serve: Serve) -> None:
    async with (
        App(":memory:", handlers=()) as app,
        serve(app) as client,
        client.stream("GET", "/api/_events/stream"),
    ):
        await until(lambda: client.services.readers.clients == 1)  # type: ignore[attr-defined]
        assert parse((await client.get("/api/_metrics")).text)["penstock_stream_clients", ()] == 1


async def test_the_number_of_labels_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "MAX_QUEUES", 3)
    metrics = Metrics()
    for n in range(50):
        metrics(JobEnqueued(f"j-{n}", f"q-{n}", "x", None, 0))
    async with App(":memory:", handlers=()) as app:
        found = parse((await metrics.render(app, 0)).decode())
    counted = {labels[0][1]: value for (name, labels), value in found.items() if name == "penstock_jobs_enqueued_total"}
    assert counted == {"q-0": 1, "q-1": 1, "q-2": 1, "other": 47}


async def test_an_application_listens_to_an_app_that_is_not_open() -> None:
    app = App(":memory:", handlers=[mail])
    application = asgi_app(app)
    async with app, asyncio.timeout(20):
        await app.enqueue(mail, "ada")
        text = (await application.services.metrics.render(app, 0)).decode()  # type: ignore[attr-defined]
        assert parse(text)["penstock_jobs_enqueued_total", (("queue", "mail"),)] == 1
        with pytest.raises(ConfigError, match="listeners="):
            app.listen(print)


async def test_two_applications_have_their_own_numbers() -> None:
    async with (
        App(":memory:", handlers=()) as one,
        App(":memory:", handlers=()) as two,
        serve_app(one) as first,
        serve_app(two) as second,
    ):
        await one.enqueue("mail", 1)
        texts = [(await client.get("/api/_metrics")).text for client in (first, second)]
    assert ["mail" in text for text in texts] == [True, False]
