"""Keys of records that another program wrote with another Redis type: each fails alone, and its neighbours complete."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import redis_server
from damage import Damage
from penstock import Context, flow, job
from penstock.core.errors import UnreadableRecord
from penstock.ports.store import Retention
from penstock.testing.until import until

TEST_TIMEOUT_S = 20
PAST = datetime(2020, 1, 1, tzinfo=UTC)
TYPES = {"string": ("SET", "x"), "list": ("RPUSH", "x"), "set": ("SADD", "x"), "empty hash": ("HSET", "x", "y")}


@flow("order")
async def order(input: Any) -> Any:
    return input


@flow("patient")
async def patient(input: Any, ctx: Context) -> Any:
    first = await ctx.run("first", lambda: 1)
    return first, (await ctx.wait.event("go", match={"n": input})).data["n"]


@job(queue="ticks")
async def tick(input: Any) -> Any:
    return input


@pytest.fixture
def damage() -> Damage:
    return Damage(redis_server.url())


@pytest.fixture
def app(damage: Damage, app_factory: Any) -> Any:
    return app_factory(damage.url)(order, patient, tick)


def retype(damage: Damage, key: str, type_: str) -> None:
    command, *values = TYPES[type_]
    damage.redis("DEL", key)
    damage.redis(command, key, *values)


@pytest.mark.parametrize("type_", ["string", "list", "set"])
async def test_a_run(app: Any, damage: Damage, type_: str) -> None:
    async with app:
        runs = [await app.start("order", n) for n in range(3)]
        retype(damage, f"nq:run:{runs[1]}", type_)
        async with app.workers.background():
            assert [await app.wait_for_end(run) for run in (runs[0], runs[2])] == ["completed"] * 2
            failed = await app.wait_for_step(runs[1], "order", "failed")
            assert b"unreadable_record" in (failed.error or b"")
        found = {row.id: row.unreadable is None for row in await app.runs.list()}
        assert found == {runs[0]: True, runs[1]: False, runs[2]: True}
        with pytest.raises(UnreadableRecord, match="cannot be read"):
            await app.runs.pause(runs[1])
        with pytest.raises(UnreadableRecord, match="cannot be read"):
            await app.start("order", 1, key=runs[1])
        assert await app.runs.cancel(runs[1])
        assert [row.id for row in await app.runs.list(status="cancelled")] == [runs[1]]
        assert await app.runs.list(status="open") == []
        assert (await app.store.sweep(Retention(runs_before=2**52)))["runs"] == 3


async def test_a_version_that_is_no_number(app: Any, damage: Damage) -> None:
    async with app:
        run = await app.start("order", 1)
        damage.redis("HSET", f"nq:run:{run}", "version", "many")
        async with app.workers.background():
            await app.wait_for_step(run, "order", "failed")
        assert await app.runs.cancel(run)


@pytest.mark.parametrize("type_", TYPES)
async def test_a_wait(app: Any, damage: Damage, type_: str) -> None:
    async with app, app.workers.background():
        runs = [await app.start("patient", 1) for _ in range(3)]
        for run in runs:
            await app.wait_for_step(run, "patient", "suspended")
        (wait,) = await app.waits.list(run=runs[1])
        retype(damage, f"nq:wait:{wait.id}", type_)
        assert len(await app.waits.list()) == 3
        await app.emit("go", {"n": 1})
        for run in (runs[0], runs[2]):
            assert await app.result(run, timeout=TEST_TIMEOUT_S) == [1, 1]
        assert await app.runs.cancel(runs[1])
        assert await app.waits.list() == []


@pytest.mark.parametrize("type_", ["string", "list", "set"])
async def test_memos(app: Any, damage: Damage, type_: str) -> None:
    async with app, app.workers.background():
        runs = [await app.start("patient", 1) for _ in range(2)]
        for run in runs:
            await app.wait_for_step(run, "patient", "suspended")
        retype(damage, f"nq:memos:{runs[0]}.patient.1", type_)
        await app.emit("go", {"n": 1})
        assert await app.result(runs[1], timeout=TEST_TIMEOUT_S) == [1, 1]
        assert await app.wait_for_end(runs[0]) == "failed"
        (letter,) = await app.list_dead_letters()
        assert letter.error["code"] == "unreadable_record"


@pytest.mark.parametrize("type_", ["string", "list", "set"])
async def test_state(app: Any, damage: Damage, type_: str) -> None:
    async with app:
        for key in "abc":
            await app.state.set(key, key)
        retype(damage, "nq:state:shared/b", type_)
        with pytest.raises(UnreadableRecord, match="state key 'b' cannot be read"):
            await app.state.get("b")
        page = await app.state.list()
        assert (dict(page), list(page.unreadable)) == ({"a": "a", "c": "c"}, ["b"])
        await app.state.set("b", 1)
        assert await app.state.get("b") == 1


@pytest.mark.parametrize("type_", TYPES)
async def test_a_schedule(app: Any, damage: Damage, type_: str) -> None:
    async with app:
        for id in "abc":
            await app.schedules.add(id, queue="ticks", at=PAST, input=id)
        retype(damage, "nq:schedule:b", type_)
        assert [(row.id, row.unreadable is None) for row in await app.schedules.list()] == [
            ("a", True),
            ("b", False),
            ("c", True),
        ]
        async with app.workers.background():
            for id in "ac":
                await until(lambda id=id: _fired(app, id), TEST_TIMEOUT_S)  # type: ignore[misc]
        await app.schedules.add("b", queue="ticks", every="1h", input="b")
        assert [row.unreadable for row in await app.schedules.list()] == [None] * 3
        retype(damage, "nq:schedule:b", type_)
        assert await app.schedules.remove("b")
        assert [row.id for row in await app.schedules.list()] == ["a", "c"]


async def _fired(app: Any, id: str) -> bool:
    return any(job.input == id for job in await app.jobs.list("ticks", "completed"))


@pytest.mark.parametrize("type_", ["string", "empty hash"])
async def test_the_stream_of_a_run(app: Any, damage: Damage, type_: str) -> None:
    async with app:
        runs = [await app.start("order", n) for n in range(3)]
        key = f"nq:flow:{runs[1]}"
        retype(damage, key, type_)
        (marked,) = await app.stream(runs[1])
        assert marked.is_unreadable
        assert f"as a {type_.removeprefix('empty ')}" in marked.data["error"]
        assert (await app.runs.get(runs[1])).id == runs[1]
        assert await app.runs.list(where=5) == []
        assert {check.name for check in await app.diagnose() if not check.ok} >= {"events"}
        async with app.workers.background():
            assert [await app.wait_for_end(run) for run in runs] == ["completed"] * 3
        assert [event.kind for event in await app.stream(runs[1])] == [
            "step.started",
            "step.completed",
            "flow.completed",
        ]
        (store,) = [check for check in await app.diagnose() if check.name == "store"]
        assert f"another program wrote the key {key} as a {type_.removeprefix('empty ')}" in store.detail
        damage.redis("DEL", f"nq:aside:{key}")
        (store,) = [check for check in await app.diagnose() if check.name == "store"]
        assert key not in store.detail
        assert (await app.store.sweep(Retention(runs_before=2**52)))["runs"] == 3


# Keys that every commit writes: a commit moves the damaged one, and all work continues.
SHARED_KEYS = (
    "nq:feed", "nq:streams", "nq:stream_heads", "nq:kinds:go", "nq:global", "nq:queue:ticks", "nq:set_aside",
    "bull:ticks:events", "bull:default:events",
)  # fmt: skip
# Keys that some commits and readers use: indexes of runs, waits, state, schedules, workers, rates, and our own of a queue.
INDEX_KEYS = (
    "nq:runs", "nq:runs:open", "nq:runs:closed", "nq:runs:status:waiting", "nq:runs:status:completed", "nq:runs:flow:order",
    "nq:waits:event", "nq:topic:go", "nq:topic_keys:go", "nq:states", "nq:states:due", "nq:units", "nq:once_keys",
    "nq:queues", "nq:job_queues", "nq:schedules", "nq:schedules:due", "nq:workers", "nq:worker_facts", "nq:minute_keys",
    "nq:streams:by_type:nq:flow:", "nq:sweep_cursors", "bull:ticks:nq:plain", "bull:ticks:nq:leases",
    "bull:ticks:completed", "bull:default:completed", "bull:penstock-events:completed", "bull:ticks:marker",
    "bull:default:marker", "bull:penstock-events:marker",
)  # fmt: skip


@pytest.mark.parametrize("key", SHARED_KEYS)
async def test_a_key_of_the_whole_namespace(app: Any, damage: Damage, key: str) -> None:
    type_ = "string"
    async with app:
        async with app.workers.background():
            early = await app.start("patient", 1)
            await app.wait_for_step(early, "patient", "suspended")
            await app.emit("other", {})
            assert await app.jobs.result(await app.enqueue(tick, 1), timeout=TEST_TIMEOUT_S) == 1
            retype(damage, key, type_)
            assert await app.jobs.result(await app.enqueue(tick, 2), timeout=TEST_TIMEOUT_S) == 2
            assert await app.run_for_result("order", 3) == 3
            await app.emit("go", {"n": 1})
            assert await app.result(early, timeout=TEST_TIMEOUT_S) == [1, 1]
            late = await app.start("patient", 2)
            await app.emit("go", {"n": 2})
            assert await app.result(late, timeout=TEST_TIMEOUT_S) == [1, 2]
        assert [event.seq for event in await app.stream(early)] == list(range(1, 1 + len(await app.stream(early))))
        assert all(event.is_unreadable is False for event in await app.events.read_all("nq:queue:ticks"))
        if key != "nq:set_aside":
            (store,) = [check for check in await app.diagnose() if check.name == "store"]
            assert f"another program wrote the key {key} as a {type_}" in store.detail
        while any((await app.store.sweep(Retention(runs_before=2**52, jobs_before=2**52, keep_events=0))).values()):
            pass


JUNK_HEADS = (
    "",
    "junk",
    "1",
    "1 2",
    "1 2 3",
    "x y 1-1",
    "-1 -1 1-1",
    "1 2 1-x",
    f"{2**64} 2 1-1",
    f"1 {2**64} 1-1",
    "\x00",
)


@pytest.mark.parametrize("head", JUNK_HEADS)
async def test_the_head_of_a_stream(app: Any, damage: Damage, head: str) -> None:
    async with app:
        run = await app.start("patient", 1)
        damage.redis("HSET", "nq:stream_heads", f"nq:flow:{run}", head)
        async with app.workers.background():
            await app.wait_for_step(run, "patient", "suspended")
            damage.redis("HSET", "nq:stream_heads", f"nq:flow:{run}", head)
            damage.redis("HDEL", "nq:stream_heads", "nq:global")
            await app.emit("go", {"n": 1})
            assert await app.result(run, timeout=TEST_TIMEOUT_S) == [1, 1]
        events = await app.stream(run)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))


async def test_the_highest_id_of_a_stream(app: Any, damage: Damage) -> None:
    """A stream takes no entry after its highest id: it is replaced."""
    async with app:
        run = await app.start("order", 1)
        damage.redis("XADD", f"nq:flow:{run}", f"{2**64 - 1}-{2**64 - 1}", "a", "b")
        damage.redis("XADD", "nq:feed", f"{2**64 - 1}-{2**64 - 1}", "a", "b")
        async with app.workers.background():
            assert await app.result(run, timeout=TEST_TIMEOUT_S) == 1


async def test_a_job_names_no_key_to_move(app: Any, damage: Damage) -> None:
    """Any program can write the stream's name into a job. A key that is no stream of ours stays where it is."""
    async with app:
        for n in range(2):
            await app.enqueue(tick, n, key=f"tick-{n}")
        damage.redis("HSET", "bull:ticks:tick-0", "nq:stream", "nq:runs")
        run = await app.start("order", 1)
        async with app.workers.background():
            for n in range(2):
                assert await app.jobs.result(f"tick-{n}", timeout=TEST_TIMEOUT_S) == n
        assert [row.id for row in await app.runs.list()] == [run]


READS: dict[str, Callable[[Any], Any]] = {
    "runs": lambda app: app.runs.list(),
    "completed runs": lambda app: app.runs.list(status="completed"),
    "runs of a flow": lambda app: app.runs.list(flow="order"),
    "waits": lambda app: app.waits.list(),
    "state": lambda app: app.state.list(),
    "schedules": lambda app: app.schedules.list(),
    "workers": lambda app: app.workers.list(),
    "queues": lambda app: app.queues.list(internal=True),
    "rates": lambda app: app.queues.rates("ticks"),
    "jobs": lambda app: app.jobs.list("ticks", "completed"),
    "groups": lambda app: app.dead_letters.groups(),
    "streams": lambda app: app.events.streams("flow"),
    "webhooks": lambda app: app.webhooks.list(),
    "preflight": lambda app: app.runs.preflight(),
    "stuck runs": lambda app: app.store.stuck_runs(),
    "checks": lambda app: app.diagnose(),
}


@pytest.mark.parametrize("key", INDEX_KEYS)
async def test_an_index_that_another_program_wrote(app: Any, damage: Damage, key: str) -> None:
    """Readers see nothing in it. The first command that writes it moves it, and no commit is half applied."""
    async with app:
        async with app.workers.background():
            early = await app.start("patient", 1)
            await app.wait_for_step(early, "patient", "suspended")
            assert await app.run_for_result("order", 1, key="done") == 1
            await app.state.set("a", 1, ttl="1h")
            await app.schedules.add("old", queue="ticks", every="1h")
            await app.emit("other", {}, key="once-1")
        retype(damage, key, "string")
        for read in READS.values():
            await read(app)
        async with app.workers.background():
            await app.emit("go", {"n": 1})
            assert await app.result(early, timeout=TEST_TIMEOUT_S) == [1, 1]
            assert await app.run_for_result("order", 3, key="late") == 3
            late = await app.start("patient", 2)
            await app.wait_for_step(late, "patient", "suspended")
            await app.emit("go", {"n": 2}, key="once-2")
            assert await app.result(late, timeout=TEST_TIMEOUT_S) == [1, 2]
            assert await app.jobs.result(await app.enqueue(tick, 2), timeout=TEST_TIMEOUT_S) == 2
            await app.state.set("a", 2, ttl="1h")
            await app.schedules.add("new", queue="ticks", every="1h")
            await app.schedules.remove("new")
        for read in READS.values():
            await read(app)
        assert {late, "late"} <= {row.id for row in await app.runs.list()}
        while any((await app.store.sweep(Retention(runs_before=2**52, jobs_before=2**52, keep_events=0))).values()):
            pass


async def test_tokens_are_still_required_without_the_index_of_keys(app: Any, damage: Damage) -> None:
    async with app:
        _, text = await app.tokens.add("ada", "admin")
        retype(damage, "nq:states", "string")
    async with app.__class__(damage.url, handlers=[]) as other:
        assert await other.tokens.exist()
        assert await other.tokens.check(text) is not None


@pytest.mark.parametrize("state", ["suspended", "completed"])
async def test_a_job_of_a_run(app: Any, damage: Damage, state: str) -> None:
    """Its run can be cancelled and swept, and the sweep removes the others."""
    async with app, app.workers.background():
        runs = [await app.start("patient", 1) for _ in range(2)]
        for run in runs:
            await app.wait_for_step(run, "patient", "suspended")
        if state == "completed":
            await app.emit("go", {"n": 1})
            for run in runs:
                await app.wait_for_end(run)
        retype(damage, f"bull:default:{runs[0]}.patient.1", "string")
        for run in runs:
            assert await app.runs.cancel(run) is (state == "suspended")
        while any((await app.store.sweep(Retention(runs_before=2**52))).values()):
            pass
        assert await app.runs.list() == []


async def test_a_finished_list_of_another_type_stops_no_other_sweep(app: Any, damage: Damage) -> None:
    async with app:
        async with app.workers.background():
            await app.jobs.result(await app.enqueue(tick, 1), timeout=TEST_TIMEOUT_S)
            await app.run_for_result("order", 1)
        retype(damage, "bull:default:completed", "string")
        while any((await app.store.sweep(Retention(jobs_before=2**52))).values()):
            pass
        assert list(await app.jobs.list("ticks", "completed")) == []


async def test_a_preflight_reads_the_other_runs(app: Any, damage: Damage) -> None:
    async with app, app.workers.background():
        runs = [await app.start("patient", 1) for _ in range(2)]
        for run in runs:
            await app.wait_for_step(run, "patient", "suspended")
        retype(damage, f"nq:memos:{runs[0]}.patient.1", "string")
        report = await app.runs.preflight()
        assert (report.runs, {problem.run for problem in report.problems}) == (2, {runs[0]})


@pytest.mark.parametrize("key", ["errors", "error:{group}"])
async def test_error_groups(damage: Damage, app_factory: Any, key: str) -> None:
    @job(queue="fails", retry=1)
    async def fail(input: Any) -> Any:
        raise ValueError("full")

    async with app_factory(damage.url)(fail) as app, app.workers.background():
        await app.wait_for_state(await app.enqueue(fail, 1, key="first"), "failed")
        (group,) = await app.dead_letters.groups()
        retype(damage, "bull:fails-dlq:nq:" + key.format(group=group.id), "string")
        assert await app.dead_letters.groups() == []
        await app.wait_for_state(await app.enqueue(fail, 2, key="second"), "failed")
        (again,) = await app.dead_letters.groups()
        assert (again.id, again.count) == (group.id, 1 if key != "errors" else 2)
        assert len(await app.list_dead_letters("fails")) == 2
        for id in ("first", "second"):
            assert await app.dead_letters.discard(f"{id}.dlq")
        assert await app.dead_letters.groups() == []
