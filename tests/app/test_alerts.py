"""Alerts on every store: rules, one evaluation for all workers, notifications with retries, silences, history."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from http_server import Serve, serve_app
from penstock import SyncApp, job
from penstock.app.alert_rules import parse_rule, parse_rules
from penstock.app.alerts import TURN
from penstock.client import Client
from penstock.core.errors import BadArgument, SettingError, UnknownSilence
from penstock.ports.monitoring import MINUTE_MS, MinuteCounts
from penstock.testing import TestApp
from penstock.testing.until import until

RULES = ["failure_rate > 10%", "oldest_age > 5m", "no_worker > 1m", "new_error_group", "missed_slot > 2m"]


@job(queue="mail", retry=1)
async def send(n: int) -> int:
    if n < 0:
        raise ValueError("no such address")
    return n


class _Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server: Any = self.server
        server.calls += 1
        status = server.answers.pop(0) if server.answers else 200
        if status == 200:
            server.received.append(body["text"])
        self.send_response(status)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def webhook() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    server.calls, server.received, server.answers = 0, [], []
    server.url = f"http://127.0.0.1:{server.server_port}/services/T0/B0/secret"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


async def test_an_old_job_fires_and_its_end_resolves(url: str, webhook: Any) -> None:
    async with TestApp(url, handlers=[send], alerts=["oldest_age > 5m"], alert_webhook=webhook.url) as app:
        assert await app.alerts.check() == []
        async with _Paused(app):
            id = await app.enqueue("mail", 1)
            app.time.advance("4m")
            assert await app.alerts.check() == []
            app.time.advance("2m")
            (alert,) = await app.alerts.check()
            assert (alert.rule, alert.subject, alert.silenced) == ("oldest_age > 5m", "mail", False)
            assert "has waited 6 min" in alert.summary
            (again,) = await app.alerts.check()  # it still fires: nothing new is sent
            assert again.since == alert.since
        await app.jobs.result(id)
        assert await app.alerts.check() == []
        await until(lambda: len(webhook.received) == 2, 20)
        changes = await app.alerts.history()
    assert [(one.change, one.subject) for one in changes] == [("resolved", "mail"), ("fired", "mail")]
    fired, resolved = sorted(webhook.received, key=lambda text: "resolved" in text)
    assert "queue mail: the next job has waited" in fired
    assert "resolved: queue mail" in resolved


class _Paused:
    """Let no worker take the jobs meanwhile."""

    def __init__(self, app: TestApp) -> None:
        self._app = app

    async def __aenter__(self) -> None:
        await self._app.queues.pause("mail")

    async def __aexit__(self, *_: object) -> None:
        await self._app.queues.resume("mail")


async def test_every_rule(app: Any) -> None:
    async with app(send, alerts=[*RULES, "oldest_age > 1h on other"]) as a:
        assert [rule.kind for rule in await a.alerts.rules()] == [
            *("failure_rate", "oldest_age", "no_worker", "new_error_group", "missed_slot", "oldest_age"),
        ]
        assert await a.alerts.check() == []
        minute = a.clock.now_ms() // MINUTE_MS * MINUTE_MS
        await a.store.add_counts([MinuteCounts("mail", minute, 40, 28, 12), MinuteCounts("fine", minute, 100, 99, 1)])
        async with a.workers.background():
            await a.wait_for_state(await a.enqueue("mail", -1), "failed")
        found = {alert.rule: alert for alert in await a.alerts.check()}
        assert set(found) == {"failure_rate > 10% over 15m min 10", "new_error_group"}
        assert "of 4" in found["failure_rate > 10% over 15m min 10"].summary  # 12 of 40, or with the job above 13 of 41
        assert "1 dead letter (" in found["new_error_group"].summary
        await a.dead_letters.discard((await a.dead_letters.list("mail"))[0][0])
        assert {alert.rule for alert in await a.alerts.check()} == {"failure_rate > 10% over 15m min 10"}


async def test_a_queue_without_a_worker_and_a_missed_slot(clock: Any, url: str) -> None:
    from penstock import App

    async with App(url, handlers=[send], clock=clock, alerts=["no_worker > 1m", "missed_slot > 2m"]) as a:
        await a.schedules.add("hourly", queue="mail", input=1, every="1h")
        await a.enqueue("mail", 1)
        if "redis" in url or "postgres" in url:
            return  # their clock is the server's: the rules are the same functions
        clock.advance("90s")
        (alert,) = await a.alerts.check()
        assert "no worker serves queue 'mail'" in alert.summary
        clock.advance("1h")
        found = {alert.rule: alert.subject for alert in await a.alerts.check()}
        assert found == {"no_worker > 1m": "mail", "missed_slot > 2m": "hourly"}


async def test_error_groups_that_existed_before_are_not_new(shared: Any) -> None:
    async with shared(send) as a, a.workers.background():
        await a.wait_for_state(await a.enqueue("mail", -1), "failed")
        async with shared(send, alerts=["new_error_group"]) as b:
            assert await b.alerts.check() == []


async def test_one_of_many_workers_evaluates_an_interval(shared: Any, webhook: Any) -> None:
    options = {"alerts": ["oldest_age > 1ms"], "alert_webhook": webhook.url}
    async with shared(send, **options) as a, shared(send, **options) as b, shared(send, **options) as c:
        await a.enqueue("mail", 1)
        await asyncio.sleep(0.005)
        for slot in (1, 2):
            took = await asyncio.gather(*(one.alerts._take_turn(slot) for one in (a, b, c, a, b, c)))
            assert sum(took) == 1
        assert [change.change for change in await b.alerts.history()] == ["fired"]
        (alert,) = await c.alerts.list()
        assert alert.subject == "mail"
        assert json.loads((await a.store.state(TURN)).value)["slot"] == 2


async def test_a_worker_evaluates_by_itself(app: Any, webhook: Any) -> None:
    async with app(send, alerts=["new_error_group"], alert_interval="1s", alert_webhook=webhook.url) as a:
        await a.alerts.check()
        async with a.workers.background():
            await a.wait_for_state(await a.enqueue("mail", -1), "failed")
            await until(lambda: webhook.received, 20)
    assert "queue mail: a new error" in webhook.received[0]


async def test_a_notification_is_retried_until_it_is_taken(app: Any, webhook: Any) -> None:
    webhook.answers = [500, 429]
    async with app(send, alert_webhook=webhook.url) as a, a.workers.background():
        await a.alerts.test()
        await until(lambda: webhook.received, 30)
    assert webhook.calls == 3
    assert webhook.received == ["This is a test of Penstock's alerts."]


async def test_a_refused_notification_is_a_dead_letter_without_the_address(memory: Any, webhook: Any) -> None:
    webhook.answers = [404]
    async with memory(send, alert_webhook=webhook.url) as a, a.workers.background():
        await a.alerts.test()
        await until(lambda: webhook.calls, 20)

        async def letters() -> Any:
            return await a.dead_letters.list("penstock-events")

        ((_, letter),) = await until(letters, 20)
    assert "answered 404" in letter.error["message"]
    assert "secret" not in str(letter)


async def test_silenced_alerts_are_recorded_and_sent_when_the_silence_ends(memory: Any, webhook: Any) -> None:
    async with memory(send, alerts=["oldest_age > 1ms"], alert_webhook=webhook.url) as a:
        silence = await a.alerts.silence("oldest_age", subject="mail", duration="1h", reason="deploy")
        await a.enqueue("mail", 1)
        await asyncio.sleep(0.005)
        (alert,) = await a.alerts.check()
        assert alert.silenced
        assert [(one.change, one.silenced) for one in await a.alerts.history()] == [("fired", True)]
        assert (await a.queues.list(internal=True))[-1].counts["waiting"] in (0, 1)
        assert [one.reason for one in await a.alerts.silences()] == ["deploy"]
        await a.alerts.unsilence(silence.id)
        (alert,) = await a.alerts.check()
        assert not alert.silenced
        async with a.workers.background(["mail"]):
            await until(lambda: webhook.received, 20)
        with pytest.raises(UnknownSilence, match="penstock alerts silences"):
            await a.alerts.unsilence(silence.id)


def test_a_silence_covers_a_rule_a_kind_or_a_subject() -> None:
    from penstock.app.alerts import Silence

    assert Silence("1", "").covers("no_worker > 1m", "mail")
    assert Silence("1", "", "no_worker").covers("no_worker > 1m", "mail")
    assert not Silence("1", "", "no_worker > 5m").covers("no_worker > 1m", "mail")
    assert not Silence("1", "", None, "other").covers("no_worker > 1m", "mail")


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("failure_rate", "failure_rate > 10% over 15m min 10"),
        ("failure_rate>5%  over 1h min 3 on mail", "failure_rate > 5% over 1h min 3 on mail"),
        ("oldest_age", "oldest_age > 5m"),
        ("missed_slot > 10s on nightly", "missed_slot > 10s on nightly"),
        ("new_error_group on mail", "new_error_group on mail"),
    ],
)
def test_rules_have_one_spelling(text: str, spelling: str) -> None:
    assert parse_rule(text).rule == spelling
    assert parse_rule(spelling) == parse_rule(text)
    assert len(parse_rules([text, spelling])) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("oldest > 5m", "did you mean 'oldest_age'"),
        ("oldest_age > soon", "invalid alert rule 'oldest_age > soon'"),
        ("failure_rate > 200%", "must be a share such as 10%"),
        ("no_worker over 5m", "only failure_rate has"),
        ("new_error_group > 5", "has no limit"),
        ("", "write a rule such as"),
    ],
)
def test_bad_rules_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse_rule(text)


async def test_http_and_client(memory: Any, webhook: Any) -> None:
    serve: Serve = serve_app
    async with memory(send, alerts=["oldest_age > 1ms"], alert_webhook=webhook.url) as a, serve(a) as http:
        async with Client(str(http.base_url)) as client:
            await client.enqueue("mail", 1)
            await asyncio.sleep(0.005)
            assert [one.rule for one in await client.alerts.rules()] == ["oldest_age > 1ms"]
            (alert,) = await client.alerts.check()
            assert await client.alerts.list() == [*await a.alerts.list()]
            assert [one.alert for one in await client.alerts.history()] == [alert.id]
            silence = await client.alerts.silence(subject="mail", duration="2h")
            assert [one.id for one in await client.alerts.silences()] == [silence.id]
            await client.alerts.unsilence(silence.id)
            await client.alerts.test()
        settings = (await http.get("/api/_settings")).text
        assert "secret" not in settings.replace('secret"', "")


def test_the_sync_app(url: str) -> None:
    with SyncApp(url, handlers=[send], alerts=["oldest_age"]) as app:
        assert app.alerts.check() == []
        silence = app.alerts.silence(duration="1m")
        app.alerts.unsilence(silence.id)
        with pytest.raises(BadArgument, match="PENSTOCK_ALERT_WEBHOOK"):
            app.alerts.test()
