"""Events and dashboards of a queue that two programs share."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import App, Context, job
from penstock.core.errors import StoreClosed
from penstock.core.events import Event
from penstock.jobs.reducer import reduce_job
from penstock.ports.unit import JobState
from penstock.testing.until import until

pytestmark = pytest.mark.xdist_group("interop")
QUEUE = "mail"


@job(queue=QUEUE)
async def send(input: Any, ctx: Context) -> Any:
    ctx.log.info("sent")
    if input == "nobody":
        raise ValueError("no such address")
    return {"sent": input}


async def _events_until_end(app: App, *jobs: str, after: str | None = None) -> list[Event]:
    """Return the events of the queue up to the end of these jobs."""
    left, seen = set(jobs), []
    async for event in app.queues.events(QUEUE, shared=True, after=after):
        seen.append(event)
        if event.kind in ("job.completed", "job.failed"):
            left.discard(event.subject)
        if not left:
            break
    return seen


def _kinds(events: list[Event], job: str) -> list[str]:
    return [event.kind for event in events if event.subject == job]


@pytest.mark.spec("000-7.30", "004-7.2", "004-7.4")
async def test_events_of_a_node_worker(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app:
        await node.call("work", queue=QUEUE)
        ours = await app.enqueue(QUEUE, 1, key="wait")  # the name of a BullMQ key
        theirs = await node.call("add", queue=QUEUE, name="send", data=2, opts={"delay": 50})
        events = await _events_until_end(app, ours, theirs)
        assert _kinds(events, ours) == ["job.added", "job.active", "job.completed"]
        assert _kinds(events, theirs) == ["job.added", "job.delayed", "job.active", "job.completed"]
        assert [event for event in events if event.subject == ours][-1].data == {"result": {"seen": 1, "by": "node"}}
        view = reduce_job(events, theirs)
        assert (view.status, view.name, view.result) == ("completed", "send", {"seen": 2, "by": "node"})
        stored = [event.kind for event in await app.events.read_all(f"nq:queue:{QUEUE}")]
        assert stored == ["job.added"], "read, and not stored again"


async def test_events_after_a_cursor(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app:
        await node.call("work", queue=QUEUE, fail=True)
        first = await app.enqueue(QUEUE, 1)
        cursor = (await _events_until_end(app, first))[-1].id
        second = await app.enqueue(QUEUE, 2)
        events = await _events_until_end(app, second, after=cursor)
        assert {event.subject for event in events} == {second}
        assert events[-1].data == {"error": "no", "willRetry": False}


@pytest.mark.spec("004-7.2", "004-7.4")
async def test_events_of_our_worker(redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app, app.workers.background():
        id = await app.enqueue(QUEUE, 1)
        events = await _events_until_end(app, id)
        assert _kinds(events, id) == ["job.added", "job.active", "job.completed"]


async def test_a_lost_connection_loses_no_event(redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app, app.workers.background():
        events = app.queues.events(QUEUE, shared=True)
        first = await app.enqueue(QUEUE, 1)
        seen = [await anext(events)]
        await app.store._client.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")  # type: ignore[attr-defined]
        second = await app.enqueue(QUEUE, 2)
        while sum(event.kind == "job.completed" for event in seen) < 2:
            seen.append(await anext(events))
        await events.aclose()  # type: ignore[attr-defined]
        assert [event.id for event in seen] == sorted({event.id for event in seen}, key=lambda id: (len(id), id))
        assert [_kinds(seen, id) for id in (first, second)] == [["job.added", "job.active", "job.completed"]] * 2


async def test_following_ends_with_the_app(redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app:
        events = app.queues.events(QUEUE, shared=True)
        await app.enqueue(QUEUE, 1)
        await anext(events)
        waiting = asyncio.create_task(anext(events))  # type: ignore[arg-type]
        await asyncio.sleep(0)
    with pytest.raises(StoreClosed, match="is closed"):
        async with asyncio.timeout(30):
            await waiting
    with pytest.raises(StoreClosed, match="is closed"):
        await anext(app.queues.events(QUEUE, shared=True))


async def test_unreadable_entries_are_marked(redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app:
        add = ("XADD", f"bull:{QUEUE}:events", "*")
        for fields in (
            (b"event", b"added", b"jobId", b"\xff\xfe"),
            (b"\xff", b"added"),
            (b"event", b"delayed", b"jobId", b"a", b"delay", b"soon"),
            (b"event", b"delayed", b"jobId", b"a", b"delay", b"inf"),
            (b"event", b"delayed", b"jobId", b"a", b"delay", b"nan"),
            (b"event", b"nothing", b"jobId", b"a"),
            (b"event", b"completed"),
        ):
            await app.store._client.call(*add, *fields)  # type: ignore[attr-defined]
        id = await app.enqueue(QUEUE, 1)
        events = app.queues.events(QUEUE, shared=True)
        found = [await anext(events) for _ in range(6)]
        assert [event.is_unreadable for event in found] == [False, True, True, True, True, False]
        assert (found[0].subject, found[-1].subject) == ("~hex:fffe", id)


@pytest.mark.spec("000-4.2.4", "002-8.11")
async def test_bull_board_shows_our_jobs(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app:
        async with app.workers.background():
            good = await app.enqueue(QUEUE, {"to": "ada"}, key="letter-1")
            bad = await app.enqueue(QUEUE, "nobody", key="letter-2")
            for id, state in ((good, JobState.COMPLETED), (bad, JobState.FAILED)):
                await until(lambda id=id, state=state: _in(app, id, state), 30)  # type: ignore[misc]
        await app.enqueue(QUEUE, 3, key="letter-3", delay="1h", priority=2)
        query = {"activeQueue": QUEUE, "status": "latest", "page": "1", "jobsPerPage": "10"}
        (shown,) = (await node.call("board", queue=QUEUE, method="get", path="/api/queues", query=query))["queues"]
        assert {state: n for state, n in shown["counts"].items() if n} == {"completed": 1, "failed": 1, "delayed": 1}
        jobs = {job["id"]: job for job in shown["jobs"]}
        assert set(jobs) == {"letter-1", "letter-2", "letter-3"}
        assert jobs["letter-1"]["returnValue"] == {"sent": {"to": "ada"}}
        assert jobs["letter-1"]["data"] == {"to": "ada"}
        assert jobs["letter-2"]["failedReason"] == "no such address"
        assert jobs["letter-2"]["isFailed"] is True
        assert "ValueError" in jobs["letter-2"]["stacktrace"][0]
        params = {"queueName": QUEUE, "jobId": "letter-1"}
        path = "/api/queues/:queueName/:jobId/logs"
        assert await node.call("board", queue=QUEUE, method="get", path=path, params=params) == ["[info] sent"]


async def _in(app: App, id: str, state: JobState) -> bool:
    row = await app.store.job(id)
    return row is not None and row.state is state
