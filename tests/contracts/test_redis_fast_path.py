"""The fast path leaves the same keys as the full path and as BullMQ's scripts."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from redis import Redis

import redis_server
from penstock.core.errors import StoreError
from penstock.ports.unit import (
    Claim,
    ClaimRequest,
    Committed,
    Completed,
    Conflict,
    Dead,
    Dedupe,
    JobState,
    KeepJobs,
    NewEvent,
    NewJob,
    NewWait,
    OnFailure,
    Parent,
    PublishedOptions,
    QueueDemand,
    RetryAt,
    RunWrite,
    Started,
    Unit,
)
from penstock.stores.redis import RedisStore, connection, scripts, store
from penstock.stores.redis import claim as claiming
from penstock.testing import FakeClock

IS_FAST = "local is_fast = not meta[1]"
REQUEST = ClaimRequest((QueueDemand("orders", 4),), 30_000, "w1")


@pytest.fixture
def rewrite(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces a part of the scripts: sends work another way, or breaks the fast path."""

    def replace_text(old: str, new: str) -> None:
        made = {name: scripts.Script(name, one.text.replace(old, new)) for name, one in scripts.scripts().items()}
        assert any(old in one.text for one in scripts.scripts().values())
        for module in (store, connection):
            monkeypatch.setattr(module, "scripts", lambda: made)

    return replace_text


def _job(n: int, **more: Any) -> NewJob:
    return NewJob(f"j{n}", "orders", "charge", b'{"n":%d}' % n, published=PublishedOptions(attempts=3), **more)


def _end(claim: Claim, *more: NewJob) -> Unit:
    return Unit(f"end-{claim.job}-{claim.attempt}", claim=claim, outcome=Completed(b'"done"'), jobs=list(more))


def _full_path_jobs(n: int) -> list[NewJob]:
    """Return jobs that the fast path does not take."""
    tree = [
        _job(n + 5, waits_for_children=True),
        _job(n + 6, parent=Parent(f"j{n + 5}", "orders", OnFailure.FAIL)),
    ]
    return [
        _job(n, priority=5),
        _job(n + 1, due=2_000_000_000_000),
        _job(n + 2, dedupe=Dedupe("one")),
        _job(n + 3, priority=-1),
        _job(n + 4, dedupe=Dedupe("one")),
        *tree,
    ]


def _outcome(n: int, claim: Claim, now: int) -> Unit:
    """Return every kind of outcome in turn."""
    unit = _end(claim, _job(200 + n))
    match n % 5:
        case 1:
            unit.outcome = Dead(b'{"error":"no"}')
        case 2:
            unit.outcome = RetryAt(now + 10, b'{"error":"later"}')
        case 3:
            unit.outcome = Completed(b"1", KeepJobs(count=2))
        case 4:
            unit.outcome = Completed(b"1", KeepJobs(count=0))
    return unit


async def _work(redis_store: RedisStore, clock: FakeClock) -> None:
    """Commit batches that mix both paths; leave some jobs waiting, some active, and drain a queue."""
    await redis_store.commit([Unit("u0", jobs=[_job(0)])])
    await redis_store.commit([Unit(f"u{n}", jobs=[_job(n)]) for n in range(1, 12)])
    run = RunWrite("run", 0, b"{}", "shop", "running")
    step = _job(50, run="run", started=Started("nq:flow:run", b'{"kind":"step.started","meta":{"v":1,'))
    first = NewEvent("nq:flow:run", b'{"kind":"flow.started"}', "flow.started")
    await redis_store.commit([Unit("begin", run=run, events=[first], jobs=[step])])
    for job in _full_path_jobs(100):
        await redis_store.commit(
            [Unit(f"s-{job.id}", jobs=[job])]
        ) if not job.waits_for_children and job.parent is None else None
    await redis_store.commit(
        [Unit("tree", jobs=_full_path_jobs(100)[-2:]), Unit("more", jobs=[_job(n) for n in range(60, 64)])]
    )
    work, ended = await redis_store.claim(REQUEST), 0
    while work.claims:
        clock.advance("7s")
        units = [_outcome(ended + n, claim, clock.now_ms()) for n, claim in enumerate(work.claims)]
        ended += len(units)
        if ended > 60:
            units = [_end(claim) for claim in work.claims]
        work = (await redis_store.commit(units, REQUEST)).claimed
    clock.advance("61s")
    await redis_store.commit([Unit("last", jobs=[_job(n) for n in range(300, 310)])])
    await redis_store.claim(REQUEST)
    await _release_and_remove(redis_store)
    await _drain(redis_store)
    await _completions(redis_store, clock)
    await _steps(redis_store, clock)


async def _release_and_remove(redis_store: RedisStore) -> None:
    """Add jobs in commits in which other units release or remove jobs."""

    def mixed(n: int, **more: Any) -> NewJob:
        return replace(_job(n, **more), queue="mixed")

    def run(expect: int, *, paused: bool = False) -> RunWrite:
        return RunWrite("held", expect, b"{}", "shop", "running", paused=paused)

    request = ClaimRequest((QueueDemand("mixed", 3),), 30_000, "w1")
    await redis_store.commit(
        [Unit("m0", run=run(0), jobs=[mixed(400, run="held")]), Unit("m1", run=run(1, paused=True))]
    )
    await redis_store.claim(request)
    added = [Unit(f"m{n}", jobs=[mixed(n)]) for n in (401, 402)]
    await redis_store.commit([added[0], Unit("m2", run=run(2)), added[1]])
    claims = (await redis_store.claim(request)).claims
    assert [claim.job for claim in claims] == ["j401", "j400", "j402"]
    *first, last = [_end(claim) for claim in claims]
    await redis_store.commit([*first, Unit("m3", removes=["j309"]), Unit("m4", jobs=[mixed(403)]), last])


async def _drain(redis_store: RedisStore) -> None:
    """Complete the last job of a queue in a commit that takes the full path, because another unit adds a job."""
    await redis_store.commit([Unit("d0", jobs=[replace(_job(n), queue="drained") for n in (410, 411)])])
    first, last = (await redis_store.claim(ClaimRequest((QueueDemand("drained", 2),), 30_000, "w1"))).claims
    await redis_store.commit([_end(first)])  # BullMQ's script counts the first one of a minute
    await redis_store.commit([_end(last), Unit("d1", jobs=[replace(_job(412), queue="mixed")])])


async def _completions(redis_store: RedisStore, clock: FakeClock) -> None:
    """Commit only completed attempts, in another order than they started; some jobs have a parent, are urgent or become
    due meanwhile."""

    def new(n: int, **more: Any) -> NewJob:
        started = Started("nq:queue:mail", b'{"kind":"job.active","meta":{"v":1,')
        return replace(_job(n, started=started, **more), queue="mail")

    def end(claim: Claim) -> Unit:
        return replace(_end(claim), events=[NewEvent("nq:queue:mail", b'{"kind":"job.completed"}')])

    request = ClaimRequest((QueueDemand("mail", 5), QueueDemand("orders", 0)), 30_000, "w1", 5)
    tree = [
        new(520, waits_for_children=True),
        *(new(521 + n, parent=Parent("j520", "mail", OnFailure.FAIL)) for n in range(2)),
    ]
    run = RunWrite("letter", 0, b"{}", "shop", "running")
    await redis_store.commit([Unit("p0", jobs=[new(n) for n in range(500, 516)])])
    await redis_store.commit([Unit("p1", run=run, jobs=[new(516, run="letter")]), Unit("p2", jobs=tree)])
    await redis_store.commit(
        [Unit("p3", jobs=[new(530, priority=-1), new(531, due=clock.now_ms() + 20), new(532, priority=3)])]
    )
    held = (await redis_store.claim(request)).claims
    while len(held) > 2:
        clock.advance("6ms")
        ended = [held.pop(3), held.pop(1)] if len(held) > 3 else [held.pop(1)]
        reply = await redis_store.commit([end(claim) for claim in ended], request)
        held += reply.claimed.claims


def _step(run: str, n: int) -> NewJob:
    started = Started(f"nq:flow:{run}", b'{"kind":"step.started","meta":{"v":1,')
    return NewJob(f"{run}.s.{n}", "steps", "s", b"{}", run=run, started=started)


def _begin(run: str) -> Unit:
    event = NewEvent(f"nq:flow:{run}", b'{"kind":"flow.started"}', "flow.started")
    return Unit(f"{run}-0", run=RunWrite(run, 0, b"{}", "shop", "running"), events=[event], jobs=[_step(run, 1)])


def _end_step(claim: Claim, *, last: int = 3) -> Unit:
    """Return the end of a step that emits an event and starts the next one. The second step changes the status."""
    assert claim.run is not None
    stream, closed = f"nq:flow:{claim.run}", claim.version == last
    status = "completed" if closed else "going" if claim.version == 2 else "running"
    return Unit(
        f"end-{claim.job}",
        claim=claim,
        outcome=Completed(b'"done"'),
        run=RunWrite(claim.run, claim.version, b'{"v":%d}' % claim.version, "shop", status, closed=closed),
        events=[NewEvent(stream, b'{"kind":"step.completed"}'), NewEvent(stream, b'{"kind":"seen"}', "seen")],
        jobs=[] if closed else [_step(claim.run, claim.version + 1)],
    )


async def _steps(redis_store: RedisStore, clock: FakeClock) -> None:
    """Run flows of three steps, one of them alone at the end; then steps with conflicts and waits."""
    request = ClaimRequest((QueueDemand("steps", 3), QueueDemand("penstock-events", 2)), 30_000, "w1", 3)
    await redis_store.commit([_begin(f"r{n}") for n in range(4)])
    held = (await redis_store.claim(request)).claims
    while held:
        clock.advance("9ms")
        held = (await redis_store.commit([_end_step(claim) for claim in held[::-1]], request)).claimed.claims
    await _conflicting_steps(
        redis_store, ClaimRequest((QueueDemand("steps", 5), QueueDemand("penstock-events", 2)), 30_000, "w1")
    )


async def _conflicting_steps(redis_store: RedisStore, request: ClaimRequest) -> None:
    """Run steps whose run has changed meanwhile, whose event a wait is pending for, and whose run ends with a wait."""

    def create_wait(run: str, topic: str) -> Unit:
        wait = NewWait(f"wait-{run}", run, f"{run}.s.1", "event", job=f"{run}.s.1", topic=topic)
        return Unit(f"wait-{run}", run=RunWrite(run, 1, b"{}", "shop", "running"), waits=[wait])

    twice = _begin("r7")
    twice.jobs.append(_step("r7", 9))
    await redis_store.commit([_begin("r5"), _begin("r6"), twice])
    r5, r6, *r7 = (await redis_store.claim(request)).claims
    first, second = (_end_step(claim) for claim in r7)
    receipts = (await redis_store.commit([first, replace(second, jobs=[])])).receipts
    assert [type(one) for one in receipts] == [Committed, Conflict]
    await redis_store.commit([create_wait("r6", "other")])
    assert isinstance((await redis_store.commit([_end_step(r6)])).receipts[0], Conflict)
    assert isinstance((await redis_store.commit([_end_step(replace(r6, version=2), last=2)])).receipts[0], Committed)
    await redis_store.commit([create_wait("r5", "seen")])
    reply = await redis_store.commit([_end_step(replace(r5, version=2))], request)
    assert [claim.name for claim in reply.claimed.claims] == ["s", "s", "deliver"]


def _without_ids(text: str) -> str:
    """Replace stream ids, which contain the server's time."""
    return re.sub(r"\d{13}-\d+", "ID", text)


def _contents(url: str) -> dict[str, Any]:
    with Redis.from_url(url, decode_responses=True) as redis:
        return {_without_ids(key): _value(redis, key) for key in sorted(redis.scan_iter(count=1000))}


def _value(redis: Any, key: str) -> Any:
    match redis.type(key):
        case "hash":
            found = {_without_ids(name): _without_ids(value) for name, value in redis.hgetall(key).items()}
            if "opts" in found and "data" in found:
                found["opts"] = json.loads(found["opts"])  # the order differs
            return found
        case "list":
            return [_without_ids(member) for member in redis.lrange(key, 0, -1)]
        case "zset":
            return [(_without_ids(member), score) for member, score in redis.zrange(key, 0, -1, withscores=True)]
        case "set":
            return sorted(redis.smembers(key))
        case "stream":
            return [{name: _without_ids(value) for name, value in fields.items()} for _, fields in redis.xrange(key)]
        case _:
            return redis.get(key)


async def _contents_after_work(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    tokens = iter(f"t{n}" for n in range(10_000))
    monkeypatch.setattr(claiming, "new_token", lambda: next(tokens))
    url, clock = redis_server.url(), FakeClock(1_700_000_000_000)
    async with _opened(url, clock) as redis_store:
        await _work(redis_store, clock)
    return _contents(url)


@asynccontextmanager
async def _opened(url: str, clock: FakeClock) -> AsyncIterator[RedisStore]:
    redis_store = RedisStore(url, clock=clock)
    await redis_store.open()
    try:
        yield redis_store
    finally:
        await redis_store.close()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(IS_FAST, "local is_fast = false and not meta[1]", id="BullMQ's scripts"),
        pytest.param("if not unit_starts then return false end", "if true then return false end", id="full commits"),
        pytest.param("if not served then", "if true then", id="full claims"),
    ],
)
async def test_every_path_leaves_the_same_keys(
    old: str, new: str, rewrite: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = await _contents_after_work(monkeypatch)
    assert any(key.endswith("orders:completed") for key in fast)
    rewrite(old, new)
    other = await _contents_after_work(monkeypatch)
    assert fast.keys() == other.keys()
    for key in fast:
        assert fast[key] == other[key], key


async def test_completed_jobs_do_not_load_the_full_path(rewrite: Any) -> None:
    url, clock = redis_server.url(), FakeClock(1_700_000_000_000)
    started = Started("nq:queue:orders", b'{"kind":"job.active","meta":{"v":1,')
    jobs = [_job(n, started=started) for n in range(9)]
    async with _opened(url, clock) as redis_store:
        await redis_store.commit([Unit("u0", jobs=jobs)])
        (first, *held) = (await redis_store.claim(REQUEST)).claims
        await redis_store.commit([_end(first)])  # BullMQ's script counts the first one of a minute
    rewrite("local function load_full_path(...)", "local function load_full_path(...)\nerror('full path')")
    async with _opened(url, clock) as redis_store:
        while held:
            units = [replace(_end(claim), events=[NewEvent("nq:queue:orders", b"{}")]) for claim in held]
            held = (await redis_store.commit(units, REQUEST)).claimed.claims
        assert [row.id for row in await redis_store.jobs("orders", JobState.COMPLETED)] == [job.id for job in jobs]
        with pytest.raises(StoreError, match="full path"):
            await redis_store.commit([Unit("u1", jobs=[_job(10)])])


async def test_a_step_can_add_more_jobs_than_lua_can_unpack() -> None:
    async with _opened(redis_server.url(), FakeClock(1_700_000_000_000)) as redis_store:
        await redis_store.commit([_begin("r0"), _begin("r1")])
        first, claim = (await redis_store.claim(ClaimRequest((QueueDemand("steps", 2),), 30_000, "w1"))).claims
        await redis_store.commit([_end_step(first)])
        many = replace(_end_step(claim), jobs=[_step("r1", n) for n in range(2, 8_200)])
        (receipt,) = (await redis_store.commit([many])).receipts
        assert isinstance(receipt, Committed)
        assert all(receipt.added)


async def test_completed_steps_do_not_load_the_full_path(rewrite: Any) -> None:
    url, clock = redis_server.url(), FakeClock(1_700_000_000_000)
    request = ClaimRequest((QueueDemand("steps", 3), QueueDemand("penstock-events", 2)), 30_000, "w1", 3)
    async with _opened(url, clock) as redis_store:
        await redis_store.commit([_begin(f"r{n}") for n in range(4)])
        held = (await redis_store.claim(request)).claims
        held = (await redis_store.commit([_end_step(claim) for claim in held], request)).claimed.claims
    rewrite("local function load_full_path(...)", "local function load_full_path(...)\nerror('full path')")
    async with _opened(url, clock) as redis_store:
        ended = 0
        while held:
            ended += len(held)
            held = (await redis_store.commit([_end_step(claim) for claim in held], request)).claimed.claims
        assert ended == 9
        assert {row.status for row in await redis_store.runs()} == {"completed"}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("'event', 'waiting', 'jobId', id)\n  return number", "'event', 'wait', 'jobId', id)\n  return number"),
        ("queue.completed_count = queue.completed_count + 1", ""),
        ("if is_drained(queue) then careful_call", "if false then careful_call"),
        ("and is_drained(queue) then\n", "and false then\n"),
        ("{'atm', made, ", "{"),
        ("  flush_counts()\n  flush_writes()", "  flush_writes()"),
        (
            "if is_only_adding and queue.has_waiting then return false end\n  flush_writes()",
            "if is_only_adding and queue.has_waiting then return false end",
        ),
        ("or job[5] or job[6]\n      or job[7] then return end", "or job[5] then return end"),
        ("if not last[ids[n]] then", "if false then"),
        ("call('LREM', queue.active, '-1', ids[n])", "call('LREM', queue.active, '-1', ids[1])"),
        ("call('LTRIM', queue.active, '0', -1 - #ids)", "call('LTRIM', queue.active, '0', -#ids)"),
        ("careful_call('ZREM', queue.leases, unpack(ids))", ""),
        ("call('LPUSH', queue.active, unpack(ids))", "call('RPUSH', queue.active, unpack(ids))"),
        ("if needs_full_path(queue) then return end", "needs_full_path(queue)"),
        ("or job.defa or job['nq:priority'] then return false end", "then return false end"),
        ("or run[1] ~= ARGV[at + 1] or", "or"),
        ("if seen[id] or run[1]", "if run[1]"),
        ("if ARGV[at + 5] == '1' then wait_keys[", "if false then wait_keys["),
        ("if call('ZCARD', NS .. 'topic:' .. kind) > 0 then return false end", ""),
        ("if jobs then flush_writes() end", ""),
        ("if run[2] ~= status then careful_call('ZREM',", "if false then careful_call('ZREM',"),
        (
            "careful_call('ZREM', NS .. 'runs:open', id)\n  careful_call('ZADD', NS .. 'runs:closed', now_text",
            "call('ZADD', NS, now_text",
        ),
        ("'nq:started', ARGV[at + 8]", "'nq:started', ARGV[at + 7]"),
        ("job_queues[job.id], unsaved_job_queues[job.id] = name, name", ""),
        ("if not is_empty and call('EXISTS', base .. 'prioritized', base .. 'nq:ordered') > 0 then return end", ""),
    ],
)
async def test_a_changed_fast_path_is_noticed(
    right: str, wrong: str, rewrite: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await _contents_after_work(monkeypatch)
    rewrite(right, wrong)
    try:
        contents = await _contents_after_work(monkeypatch)
    except AssertionError:
        return  # noticed on the way
    assert contents != expected


async def test_released_jobs_come_after_jobs_added_before_them(rewrite: Any) -> None:
    """Jobs that a commit adds are buffered; they must be written before a job is released."""
    rewrite(
        "local function release_held(id, queue, base)\n  flush_writes()", "local function release_held(id, queue, base)"
    )
    redis_store = RedisStore(redis_server.url())
    await redis_store.open()
    try:
        await redis_store.commit([Unit("u0", jobs=[_job(309)])])
        with pytest.raises(AssertionError, match="j400"):
            await _release_and_remove(redis_store)
    finally:
        await redis_store.close()
