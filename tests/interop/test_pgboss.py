"""pg-boss for Node and we run each other's jobs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

import postgres_server
from penstock import App, Context, flow, job
from penstock.core.errors import ConfigError, NotFound, Permanent
from penstock.messaging.pgboss import AddJob, EmitEvent, PgBoss, PgBossSchema, StartFlow
from penstock.messaging.pgboss import consumer as consuming
from penstock.messaging.pgboss.queues import Queues
from penstock.ports.bridge import Message
from penstock.testing.until import until

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.asyncio(loop_scope="module")]
PAYLOAD = {"text": "\U0001f9ea é", "list": [], "map": {}, "n": 2**53 - 1, "deep": {"a": [1, {"b": None}]}}
QUICK = {"poll": "20ms"}
CUTS = 25 if os.environ.get("PENSTOCK_FAULTS") == "full" else 3


@flow("order", emits=["order.done"])
async def order(input: dict, ctx: Context) -> Any:
    ctx.emit("order.done", {"input": input})
    return input


@job(queue="mail")
async def mail(input: Any, ctx: Context) -> Any:
    return {"sent": input}


def boss_url() -> str:
    return postgres_server.server().url().partition("?")[0]


def calling(handle: Callable[[Message], Any], queue: str) -> App:
    """Return an App that calls a function with the jobs of a queue."""
    return App(":memory:", handlers=[mail], bridges=[PgBoss(boss_url(), consume={queue: handle}, **QUICK)])


@pytest.fixture
def queue() -> str:
    """Return a new name: all tests share a schema."""
    return f"q-{uuid4().hex[:12]}"


@pytest.fixture(params=["one database", "two databases"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of our store: in pg-boss' database, or elsewhere."""
    return postgres_server.url() if request.param == "one database" else f"sqlite:///{tmp_path}/penstock.db"


async def _job_in(boss: Any, queue: str, id: str, state: str) -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        found = await boss.call("job", queue=queue, id=id)
        return found if found is not None and found["state"] == state else None

    return await until(there, 30)  # type: ignore[no-any-return]


async def _created(boss: Any, queue: str, **options: Any) -> str:
    """Create the queue and its dead letter queue; return the name of that one."""
    await boss.call("create", queue=f"{queue}-dead")
    await boss.call("create", queue=queue, options={"deadLetter": f"{queue}-dead", **options})
    return f"{queue}-dead"


async def test_a_node_job_starts_a_run_once(boss: Any, queue: str, url: str) -> None:
    await _created(boss, queue)
    bridge = PgBoss(boss_url(), consume={queue: order}, **QUICK)
    async with App(url, handlers=[order], bridges=[bridge]) as app, app.workers.background():
        id = await boss.call("send", queue=queue, data=PAYLOAD)
        done = await _job_in(boss, queue, id, "completed")
        assert done["retryCount"] == 0
        assert await app.result(id, timeout=20) == PAYLOAD
        assert [row.id for row in await app.runs.list()] == [id]


async def test_a_node_job_emits_an_event_or_becomes_a_job(boss: Any, queue: str, url: str) -> None:
    other = f"{queue}-b"
    await _created(boss, queue)
    await _created(boss, other)
    bridge = PgBoss(boss_url(), consume={queue: EmitEvent("order.paid"), other: AddJob("mail")}, **QUICK)
    async with App(url, handlers=[mail], bridges=[bridge]) as app, app.workers.background():
        event_job = await boss.call("send", queue=queue, data={"order": 7})
        added = await boss.call("send", queue=other, data=None)
        await _job_in(boss, queue, event_job, "completed")
        await _job_in(boss, other, added, "completed")
        assert [e.data for e in await app.events.read("nq:global") if e.kind == "order.paid"] == [{"order": 7}]
        assert await app.jobs.result(added, timeout=20) == {"sent": None}


async def test_a_function_target_stores_its_result(boss: Any, queue: str) -> None:
    await _created(boss, queue, heartbeatSeconds=10)
    seen: list[Message] = []

    async def handle(message: Message) -> Any:
        seen.append(message)
        return ["done"]

    async with calling(handle, queue) as app, app.workers.background():
        id = await boss.call("send", queue=queue, data=PAYLOAD, options={"priority": 5})
        assert (await _job_in(boss, queue, id, "completed"))["output"] == {"value": ["done"]}
    assert seen == [Message(id, queue, PAYLOAD, 1)]


async def test_a_slow_function_is_cancelled(boss: Any, queue: str) -> None:
    await _created(boss, queue, retryLimit=0, expireInSeconds=1)

    async def handle(_: Message) -> None:
        await asyncio.Event().wait()

    async with calling(handle, queue) as app, app.workers.background():
        id = await boss.call("send", queue=queue)
        output = (await _job_in(boss, queue, id, "failed"))["output"]
    assert output == {
        "name": "AttemptTimeout",
        "message": "the job took longer than the expireInSeconds of its queue, 1 s",
    }


async def test_a_failure_is_retried_then_dead_lettered(boss: Any, queue: str) -> None:
    dead = await _created(boss, queue, retryLimit=2, retryDelay=0)
    attempts: list[int] = []

    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        raise OSError(f"no luck {message.attempt}")

    async with calling(handle, queue) as app, app.workers.background():
        id = await boss.call("send", queue=queue, data={"order": 7})
        failed = await _job_in(boss, queue, id, "failed")
    assert attempts == [1, 2, 3]
    assert failed["output"] == {"name": "OSError", "message": "no luck 3"}
    (letter,) = await boss.call("jobs", queue=dead)
    assert (letter["data"], letter["state"]) == ({"order": 7}, "created")
    # pg-boss knows the source of the dead letter too: its own worker could redrive it.
    await boss.call("work", queue=dead)
    assert (await boss.wait_for_event("worked", letter["id"]))["data"] == {"order": 7}
    row = postgres_server.server().do("SELECT * FROM pgboss.job WHERE name = $1", dead)[0]
    assert (row["source_name"], str(row["source_id"]), row["source_retry_count"]) == (queue, id, 2)
    assert str(row["source_root_id"]) == id
    assert "no luck 3" in row["source_output"]


async def test_an_invalid_job_is_not_retried(boss: Any, queue: str, url: str) -> None:
    dead = await _created(boss, queue, retryLimit=5)
    bridge = PgBoss(boss_url(), consume={queue: StartFlow("order")}, **QUICK)
    async with App(url, handlers=[order], bridges=[bridge]) as app, app.workers.background():
        id = await boss.call("send", queue=queue, data={"n": 2.0**60})  # outside our integer range
        failed = await _job_in(boss, queue, id, "failed")
        assert "2^53" in failed["output"]["message"] or "integer" in failed["output"]["message"]
        assert len(await boss.call("jobs", queue=dead)) == 1
        assert await app.runs.list() == []


async def test_node_runs_the_jobs_we_send(boss: Any, queue: str) -> None:
    await _created(boss, queue, notify=True)
    bridge = PgBoss(boss_url())
    async with App(":memory:", handlers=[mail], bridges=[bridge]):
        await boss.call("work", queue=queue)
        id = await bridge.send(queue, PAYLOAD)
        assert (await boss.wait_for_event("worked", id))["data"] == PAYLOAD
        done = await _job_in(boss, queue, id, "completed")
        assert done["output"] == {"by": "node"}
        assert done["deadLetter"] == f"{queue}-dead"


async def test_sent_jobs_have_queue_options_and_their_own(boss: Any, queue: str) -> None:
    await _created(boss, queue, retryLimit=4, retryDelay=3, retryBackoff=True, expireInSeconds=60)
    bridge = PgBoss(boss_url())
    async with App(":memory:", handlers=[mail], bridges=[bridge]):
        id = str(uuid4())
        assert await bridge.send(queue, 1, id=id, delay="1h", priority=7, retry_limit=1) == id
        assert await bridge.send(queue, 2, id=id) is None
        found = await boss.call("job", queue=queue, id=id)
        sent = await bridge.send(queue, 3)
        assert sent is not None
        other = await boss.call("job", queue=queue, id=sent)
    # Our job must equal one that Node sent.
    theirs = await boss.call("job", queue=queue, id=await boss.call("send", queue=queue, data=3))
    times = {"id", "createdOn", "startAfter", "keepUntil"}
    assert {k: v for k, v in other.items() if k not in times} == {k: v for k, v in theirs.items() if k not in times}
    assert (found["retryLimit"], found["retryDelay"], found["priority"], found["state"]) == (1, 3, 7, "created")
    assert found["startAfter"] > other["startAfter"]


async def test_a_job_sent_with_a_connection_is_in_its_transaction(boss: Any, queue: str) -> None:
    await _created(boss, queue)
    bridge = PgBoss(boss_url())
    async with App(":memory:", handlers=[mail], bridges=[bridge]):
        connection = await asyncpg.connect(boss_url())
        try:
            transaction = connection.transaction()
            await transaction.start()
            await bridge.send(queue, 1, connection=connection)
            assert await boss.call("jobs", queue=queue) == []
            await transaction.rollback()
            async with connection.transaction():
                await bridge.send(queue, 2, connection=connection)
        finally:
            await connection.close()
    assert [one["data"] for one in await boss.call("jobs", queue=queue)] == [2]


async def test_our_events_become_jobs_once(boss: Any, queue: str, url: str) -> None:
    await _created(boss, queue)
    make: Callable[[], App] = lambda: App(  # noqa: E731
        url, handlers=[order], bridges=[PgBoss(boss_url(), produce={"order.done": queue}, **QUICK)]
    )
    async with make() as app:
        async with app.workers.background():
            await app.start(order, {"n": 1})
            await until(lambda: boss.call("jobs", queue=queue), 30)
        await app.start(order, {"n": 2})
    async with make() as app:
        # As after a crash before the cursor was saved: all events are read and sent again.
        await app.state.set("pgboss/pgboss/relayed", "")
        async with app.workers.background():
            await until(lambda: _at_least(boss, queue, 2), 30)
            await until(lambda: _caught_up(app), 30)
            found = await boss.call("jobs", queue=queue)
    assert sorted(one["data"]["input"]["n"] for one in found) == [1, 2]


async def test_jobs_have_the_data_of_events_as_emitted(boss: Any, queue: str, url: str) -> None:
    await _created(boss, queue)
    bridge = PgBoss(boss_url(), produce={"order.done": queue}, **QUICK)
    async with App(url, handlers=[order], bridges=[bridge]) as app, app.workers.background():
        run = await app.start(order, {"uploadToken": "aaa"})
        (sent,) = await until(lambda: boss.call("jobs", queue=queue), 30)
        (shown,) = [e.data for e in await app.events.read_all(f"nq:flow:{run}") if e.kind == "order.done"]
    assert (sent["data"], shown) == ({"input": {"uploadToken": "aaa"}}, {"input": {"uploadToken": "[redacted]"}})


async def _at_least(boss: Any, queue: str, many: int) -> Any:
    found = await boss.call("jobs", queue=queue)
    return found if len(found) >= many else None


async def _caught_up(app: App) -> bool:
    newest = await app.store.feed(None)
    return bool(newest) and await app.state.get("pgboss/pgboss/relayed") != ""


async def test_a_crash_before_the_completion_starts_no_run(
    boss: Any, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one database both are one transaction: the run does not exist before the job is completed."""
    await _created(boss, queue)
    id = await boss.call("send", queue=queue, data={"n": 1})
    real, crashed = Queues.complete, asyncio.Event()

    async def crash(self: Queues, connection: Any, held: Any, output: Any = None) -> bool:
        if crashed.is_set():
            return await real(self, connection, held, output)
        crashed.set()
        raise ConnectionError("cut")

    monkeypatch.setattr(Queues, "complete", crash)
    monkeypatch.setattr(consuming, "RETRY_WAIT_S", 3600)
    url = postgres_server.url()
    async with (
        App(url, handlers=[order], bridges=[PgBoss(consume={queue: order}, **QUICK)]) as app,
        app.workers.background(),
    ):
        await crashed.wait()
        assert (await boss.call("job", queue=queue, id=id))["state"] == "created"
        assert await app.runs.list() == []
    async with (
        App(url, handlers=[order], bridges=[PgBoss(consume={queue: order}, **QUICK)]) as app,
        app.workers.background(),
    ):
        assert (await _job_in(boss, queue, id, "completed"))["retryCount"] == 0
        assert await app.result(id, timeout=20) == {"n": 1}


async def test_a_job_that_another_worker_has_is_not_completed(boss: Any, queue: str) -> None:
    await _created(boss, queue, retryLimit=3, expireInSeconds=600)
    started, may_end = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> str:
        started.set()
        await may_end.wait()
        return f"attempt {message.attempt}"

    async with calling(handle, queue) as app:
        id = await boss.call("send", queue=queue, data=1)
        async with app.workers.background():
            await started.wait()
            # It expired, and a worker of pg-boss has it now.
            postgres_server.server().do(
                "UPDATE pgboss.job SET retry_count = 1 WHERE name = $1 AND state = 'active'", queue
            )
            may_end.set()
            other = await boss.call("send", queue=queue, data=2)
            await _job_in(boss, queue, other, "completed")
        assert (await boss.call("job", queue=queue, id=id))["state"] == "active"


async def test_a_stopping_worker_releases_its_job(boss: Any, queue: str) -> None:
    await _created(boss, queue)
    started = asyncio.Event()

    async def handle(message: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    async with calling(handle, queue) as app:
        id = await boss.call("send", queue=queue, data=1)
        async with app.workers.background():
            await started.wait()
        found = await boss.call("job", queue=queue, id=id)
    assert (found["state"], found["retryCount"]) == ("created", 0)


async def test_a_job_of_a_dead_worker_is_claimed_again(boss: Any, queue: str) -> None:
    await _created(boss, queue, retryLimit=1, retryDelay=0)
    id = await boss.call("send", queue=queue, data=1)
    postgres_server.server().do(
        "UPDATE pgboss.job SET state = 'active', started_on = now() - interval '1 day' WHERE name = $1", queue
    )

    async def handle(message: Message) -> int:
        return message.attempt

    async with calling(handle, queue) as app, app.workers.background():
        assert (await _job_in(boss, queue, id, "completed"))["output"] == {"value": 2}


async def test_permanent_dead_letters_at_once(boss: Any, queue: str) -> None:
    dead = await _created(boss, queue, retryLimit=5)

    async def handle(message: Message) -> None:
        raise Permanent("never")

    async with calling(handle, queue) as app:
        id = await boss.call("send", queue=queue, data=1)
        async with app.workers.background():
            assert (await _job_in(boss, queue, id, "failed"))["retryCount"] == 0
    assert len(await boss.call("jobs", queue=dead)) == 1


async def test_a_singleton_policy_is_respected(boss: Any, queue: str) -> None:
    """A stately queue has one job per key and state: a failed job cannot be retried while another one waits."""
    dead = await _created(boss, queue, policy="stately", retryLimit=5, retryDelay=600)
    started, may_end = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        started.set()
        await may_end.wait()
        raise OSError("no luck")

    async with calling(handle, queue) as app:
        first = await boss.call("send", queue=queue, data=1, options={"singletonKey": "k"})
        async with app.workers.background():
            await started.wait()
            postgres_server.server().do(
                "INSERT INTO pgboss.job (name, data, state, policy, singleton_key, start_after) "
                "VALUES ($1, '2', 'retry', 'stately', 'k', now() + interval '1 hour')",
                queue,
            )
            may_end.set()
            await _job_in(boss, queue, first, "failed")
    assert len(await boss.call("jobs", queue=dead)) == 1


# Refusals


async def _refused(bridge: PgBoss, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        async with App(":memory:", handlers=[mail, order], bridges=[bridge]):
            pass


async def test_a_schema_without_pgboss_is_refused(boss: Any) -> None:
    await boss.call("schedules")
    await _refused(PgBoss(boss_url(), schema="nowhere"), PgBossSchema, "no pg-boss in schema 'nowhere'")
    with pytest.raises(PgBossSchema, match="letters, digits"):
        PgBoss(schema="a b")
    await _refused(PgBoss(), ConfigError, "pass the URL of pg-boss")


async def test_an_unknown_queue_or_flow_is_refused(boss: Any, queue: str) -> None:
    await _created(boss, queue)
    await _refused(PgBoss(boss_url(), consume={"nobody": order}), NotFound, r"no queue 'nobody'.*createQueue")
    await _refused(PgBoss(boss_url(), consume={queue: StartFlow("ordre")}), NotFound, "ordre")
    bridge = PgBoss(boss_url())
    async with App(":memory:", handlers=[mail], bridges=[bridge]):
        with pytest.raises(NotFound, match="no queue 'nobody'"):
            await bridge.send("nobody", 1)
    with pytest.raises(ConfigError, match="not open"):
        await bridge.send(queue, 1)
    await boss.call("create", queue=f"{queue}-fifo", options={"policy": "key_strict_fifo"})
    await _refused(PgBoss(boss_url(), consume={f"{queue}-fifo": order}), PgBossSchema, "key_strict_fifo")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("UPDATE other.version SET version = 20", "has version 20; 34 to 43 are supported. Upgrade"),
        ("ALTER TABLE other.job DROP COLUMN blocked", r"lacks job\.blocked"),
    ],
)
async def test_an_unknown_version_is_refused(boss: Any, change: str, match: str) -> None:
    await boss.call("schedules")
    do = postgres_server.server().run
    do("DROP SCHEMA IF EXISTS other CASCADE; CREATE SCHEMA other")
    for table in ("version", "job", "queue", "schedule"):
        do(f"CREATE TABLE other.{table} AS TABLE pgboss.{table} WITH {'' if table == 'version' else 'NO '}DATA")
    do(change)
    await _refused(PgBoss(boss_url(), schema="other"), PgBossSchema, match)


async def test_cut_connections_lose_no_job_and_start_no_run_twice(
    boss: Any, queue: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server cuts connections during the handover. Jobs that were claimed come back when they expire."""
    monkeypatch.setattr(consuming, "RETRY_WAIT_S", 0.01)
    await _created(boss, queue, retryLimit=1000, expireInSeconds=1, retryDelay=0)
    named = "application_name=bridge"
    bridge = PgBoss(f"{boss_url()}?{named}", consume={queue: order}, concurrency=2, **QUICK)
    ours = f"{url}&{named}" if url.startswith("postgresql") else url
    async with App(ours, handlers=[order], bridges=[bridge]) as app, app.workers.background():
        sent = set()
        for n in range(CUTS * 4):
            sent.add(await boss.call("send", queue=queue, data={"n": n}))
            if n % 4 == 3:
                postgres_server.server().do(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'bridge'"
                )
        await until(lambda: _all_done(boss, queue), 60)
        for id in sent:
            await app.result(id, timeout=30)
        assert {row.id for row in await app.runs.list(limit=1000)} == sent
        kinds = [[e.kind for e in await app.events.read(f"nq:flow:{id}")].count("flow.started") for id in sent]
        assert kinds == [1] * len(sent)
    assert await boss.call("jobs", queue=f"{queue}-dead") == []


async def _all_done(boss: Any, queue: str) -> bool:
    return all(one["state"] == "completed" for one in await boss.call("jobs", queue=queue))
