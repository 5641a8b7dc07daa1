"""Usual jobs take a shorter way than BullMQ's scripts. What both leave behind is the same, key by key."""

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

USUAL = "local usual = not meta[1]"
ASK = ClaimRequest((QueueDemand("orders", 4),), 30_000, "w1")


@pytest.fixture
def rewritten(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sends every job the way of BullMQ's scripts, or breaks the usual way."""

    def rewrite(old: str, new: str) -> None:
        made = {name: scripts.Script(name, one.text.replace(old, new)) for name, one in scripts.scripts().items()}
        assert any(old in one.text for one in scripts.scripts().values())
        for module in (store, connection):
            monkeypatch.setattr(module, "scripts", lambda: made)

    return rewrite


def _job(n: int, **more: Any) -> NewJob:
    return NewJob(f"j{n}", "orders", "charge", b'{"n":%d}' % n, published=PublishedOptions(attempts=3), **more)


def _end(claim: Claim, *more: NewJob) -> Unit:
    return Unit(f"end-{claim.job}-{claim.attempt}", claim=claim, outcome=Completed(b'"done"'), jobs=list(more))


def _special(n: int) -> list[NewJob]:
    """Jobs that are not usual, between those that are."""
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
    """Every kind of end in turn."""
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


async def _work(place: RedisStore, clock: FakeClock) -> None:
    """Batches in which usual jobs come among others; some are left waiting, some active, and a queue runs dry."""
    await place.commit([Unit("u0", jobs=[_job(0)])])
    await place.commit([Unit(f"u{n}", jobs=[_job(n)]) for n in range(1, 12)])
    begin = RunWrite("run", 0, b"{}", "shop", "running")
    step = _job(50, run="run", started=Started("nq:flow:run", b'{"kind":"step.started","meta":{"v":1,'))
    first = NewEvent("nq:flow:run", b'{"kind":"flow.started"}', "flow.started")
    await place.commit([Unit("begin", run=begin, events=[first], jobs=[step])])
    for job in _special(100):
        await place.commit(
            [Unit(f"s-{job.id}", jobs=[job])]
        ) if not job.waits_for_children and job.parent is None else None
    await place.commit([Unit("tree", jobs=_special(100)[-2:]), Unit("more", jobs=[_job(n) for n in range(60, 64)])])
    work, ended = await place.claim(ASK), 0
    while work.claims:
        clock.advance("7s")
        units = [_outcome(ended + n, claim, clock.now_ms()) for n, claim in enumerate(work.claims)]
        ended += len(units)
        if ended > 60:
            units = [_end(claim) for claim in work.claims]
        work = (await place.commit(units, ASK)).claimed
    clock.advance("61s")
    await place.commit([Unit("last", jobs=[_job(n) for n in range(300, 310)])])
    await place.claim(ASK)
    await _mix(place)
    await _plain_ends(place, clock)
    await _steps(place, clock)


async def _mix(place: RedisStore) -> None:
    """New jobs among some that are let go on, or taken away, by other units of the same commit."""

    def mixed(n: int, **more: Any) -> NewJob:
        return replace(_job(n, **more), queue="mixed")

    def run(expect: int, *, paused: bool = False) -> RunWrite:
        return RunWrite("held", expect, b"{}", "shop", "running", paused=paused)

    ask = ClaimRequest((QueueDemand("mixed", 3),), 30_000, "w1")
    await place.commit([Unit("m0", run=run(0), jobs=[mixed(400, run="held")]), Unit("m1", run=run(1, paused=True))])
    await place.claim(ask)
    added = [Unit(f"m{n}", jobs=[mixed(n)]) for n in (401, 402)]
    await place.commit([added[0], Unit("m2", run=run(2)), added[1]])
    claims = (await place.claim(ask)).claims
    assert [claim.job for claim in claims] == ["j401", "j400", "j402"]
    *first, last = [_end(claim) for claim in claims]
    await place.commit([*first, Unit("m3", removes=["j309"]), Unit("m4", jobs=[mixed(403)]), last])


async def _plain_ends(place: RedisStore, clock: FakeClock) -> None:
    """Commits of nothing but completed attempts, which end in another order than they began; then some with a parent, or
    urgent, or due meanwhile."""

    def new(n: int, **more: Any) -> NewJob:
        started = Started("nq:queue:plain", b'{"kind":"job.active","meta":{"v":1,')
        return replace(_job(n, started=started, **more), queue="plain")

    def end(claim: Claim) -> Unit:
        return replace(_end(claim), events=[NewEvent("nq:queue:plain", b'{"kind":"job.completed"}')])

    ask = ClaimRequest((QueueDemand("plain", 5), QueueDemand("orders", 0)), 30_000, "w1", 5)
    tree = [
        new(520, waits_for_children=True),
        *(new(521 + n, parent=Parent("j520", "plain", OnFailure.FAIL)) for n in range(2)),
    ]
    begun = RunWrite("plain", 0, b"{}", "shop", "running")
    await place.commit([Unit("p0", jobs=[new(n) for n in range(500, 516)])])
    await place.commit([Unit("p1", run=begun, jobs=[new(516, run="plain")]), Unit("p2", jobs=tree)])
    await place.commit(
        [Unit("p3", jobs=[new(530, priority=-1), new(531, due=clock.now_ms() + 20), new(532, priority=3)])]
    )
    held = (await place.claim(ask)).claims
    while len(held) > 2:
        clock.advance("6ms")
        ended = [held.pop(3), held.pop(1)] if len(held) > 3 else [held.pop(1)]
        reply = await place.commit([end(claim) for claim in ended], ask)
        held += reply.claimed.claims


def _step(run: str, n: int) -> NewJob:
    started = Started(f"nq:flow:{run}", b'{"kind":"step.started","meta":{"v":1,')
    return NewJob(f"{run}.s.{n}", "steps", "s", b"{}", run=run, started=started)


def _begin(run: str) -> Unit:
    event = NewEvent(f"nq:flow:{run}", b'{"kind":"flow.started"}', "flow.started")
    return Unit(f"{run}-0", run=RunWrite(run, 0, b"{}", "shop", "running"), events=[event], jobs=[_step(run, 1)])


def _end_step(claim: Claim, *, last: int = 3) -> Unit:
    """A step that emits an event and is followed by another, up to the last one. The second one changes the status."""
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


async def _steps(place: RedisStore, clock: FakeClock) -> None:
    """Runs of three steps, one of them alone at the end; then a gate is opened for what they emit, and in one of them."""
    ask = ClaimRequest((QueueDemand("steps", 3), QueueDemand("penstock-events", 2)), 30_000, "w1", 3)
    await place.commit([_begin(f"r{n}") for n in range(4)])
    held = (await place.claim(ask)).claims
    while held:
        clock.advance("9ms")
        held = (await place.commit([_end_step(claim) for claim in held[::-1]], ask)).claimed.claims
    await _disturbed_steps(
        place, ClaimRequest((QueueDemand("steps", 5), QueueDemand("penstock-events", 2)), 30_000, "w1")
    )


async def _disturbed_steps(place: RedisStore, ask: ClaimRequest) -> None:
    """Steps whose run has changed meanwhile, for whose events someone waits, and whose run ends with a gate open."""

    def open_gate(run: str, topic: str) -> Unit:
        gate = NewWait(f"gate-{run}", run, f"{run}.s.1", "event", job=f"{run}.s.1", topic=topic)
        return Unit(f"gate-{run}", run=RunWrite(run, 1, b"{}", "shop", "running"), waits=[gate])

    twice = _begin("r7")
    twice.jobs.append(_step("r7", 9))
    await place.commit([_begin("r5"), _begin("r6"), twice])
    r5, r6, *r7 = (await place.claim(ask)).claims
    first, second = (_end_step(claim) for claim in r7)
    receipts = (await place.commit([first, replace(second, jobs=[])])).receipts
    assert [type(one) for one in receipts] == [Committed, Conflict]
    await place.commit([open_gate("r6", "other")])
    assert isinstance((await place.commit([_end_step(r6)])).receipts[0], Conflict)
    assert isinstance((await place.commit([_end_step(replace(r6, version=2), last=2)])).receipts[0], Committed)
    await place.commit([open_gate("r5", "seen")])
    reply = await place.commit([_end_step(replace(r5, version=2))], ask)
    assert [claim.name for claim in reply.claimed.claims] == ["s", "s", "deliver"]


def _plain(text: str) -> str:
    """Without places in streams, which are the server's time."""
    return re.sub(r"\d{13}-\d+", "PLACE", text)


def _left(url: str) -> dict[str, Any]:
    with Redis.from_url(url, decode_responses=True) as redis:
        return {_plain(key): _value(redis, key) for key in sorted(redis.scan_iter(count=1000))}


def _value(redis: Any, key: str) -> Any:
    match redis.type(key):
        case "hash":
            found = {_plain(name): _plain(value) for name, value in redis.hgetall(key).items()}
            if "opts" in found and "data" in found:
                found["opts"] = json.loads(found["opts"])  # in whatever order they are written
            return found
        case "list":
            return [_plain(member) for member in redis.lrange(key, 0, -1)]
        case "zset":
            return [(_plain(member), score) for member, score in redis.zrange(key, 0, -1, withscores=True)]
        case "set":
            return sorted(redis.smembers(key))
        case "stream":
            return [{name: _plain(value) for name, value in fields.items()} for _, fields in redis.xrange(key)]
        case _:
            return redis.get(key)


async def _leaves(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    tokens = iter(f"t{n}" for n in range(10_000))
    monkeypatch.setattr(claiming, "new_token", lambda: next(tokens))
    url, clock = redis_server.url(), FakeClock(1_700_000_000_000)
    async with _opened(url, clock) as place:
        await _work(place, clock)
    return _left(url)


@asynccontextmanager
async def _opened(url: str, clock: FakeClock) -> AsyncIterator[RedisStore]:
    place = RedisStore(url, clock=clock)
    await place.open()
    try:
        yield place
    finally:
        await place.close()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(USUAL, "local usual = false and not meta[1]", id="by BullMQ's scripts"),
        pytest.param("if not places then return false end", "if true then return false end", id="ends the long way"),
        pytest.param("if not served then", "if true then", id="claims the long way"),
    ],
)
async def test_every_way_leaves_the_same(old: str, new: str, rewritten: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    short = await _leaves(monkeypatch)
    assert any(key.endswith("orders:completed") for key in short)
    rewritten(old, new)
    other = await _leaves(monkeypatch)
    assert short.keys() == other.keys()
    for key in short:
        assert short[key] == other[key], key


async def test_plain_work_needs_none_of_the_long_ways_functions(rewritten: Any) -> None:
    url, clock = redis_server.url(), FakeClock(1_700_000_000_000)
    started = Started("nq:queue:orders", b'{"kind":"job.active","meta":{"v":1,')
    jobs = [_job(n, started=started) for n in range(9)]
    async with _opened(url, clock) as place:
        await place.commit([Unit("u0", jobs=jobs)])
        (first, *held) = (await place.claim(ASK)).claims
        await place.commit([_end(first)])  # the first of a minute is BullMQ's to count
    rewritten("local function go_long(...)", "local function go_long(...)\nerror('the long way')")
    async with _opened(url, clock) as place:
        while held:
            units = [replace(_end(claim), events=[NewEvent("nq:queue:orders", b"{}")]) for claim in held]
            held = (await place.commit(units, ASK)).claimed.claims
        assert [row.id for row in await place.jobs("orders", JobState.COMPLETED)] == [job.id for job in jobs]
        with pytest.raises(StoreError, match="the long way"):
            await place.commit([Unit("u1", jobs=[_job(10)])])


async def test_a_step_may_be_followed_by_more_jobs_than_lua_can_pass() -> None:
    async with _opened(redis_server.url(), FakeClock(1_700_000_000_000)) as place:
        await place.commit([_begin("r0"), _begin("r1")])
        first, claim = (await place.claim(ClaimRequest((QueueDemand("steps", 2),), 30_000, "w1"))).claims
        await place.commit([_end_step(first)])
        many = replace(_end_step(claim), jobs=[_step("r1", n) for n in range(2, 8_200)])
        (receipt,) = (await place.commit([many])).receipts
        assert isinstance(receipt, Committed)
        assert all(receipt.added)


async def test_steps_of_a_flow_need_none_of_them_either(rewritten: Any) -> None:
    url, clock = redis_server.url(), FakeClock(1_700_000_000_000)
    ask = ClaimRequest((QueueDemand("steps", 3), QueueDemand("penstock-events", 2)), 30_000, "w1", 3)
    async with _opened(url, clock) as place:
        await place.commit([_begin(f"r{n}") for n in range(4)])
        held = (await place.claim(ask)).claims
        held = (await place.commit([_end_step(claim) for claim in held], ask)).claimed.claims
    rewritten("local function go_long(...)", "local function go_long(...)\nerror('the long way')")
    async with _opened(url, clock) as place:
        ended = 0
        while held:
            ended += len(held)
            held = (await place.commit([_end_step(claim) for claim in held], ask)).claimed.claims
        assert ended == 9
        assert {row.status for row in await place.runs()} == {"completed"}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("'event', 'waiting', 'jobId', id)\n  return number", "'event', 'wait', 'jobId', id)\n  return number"),
        ("queue.ended = queue.ended + 1", ""),
        ("is_drained(queue) then call", "false then call"),
        ("{'atm', made, ", "{"),
        ("  keep_counts()\n  settle()", "  settle()"),
        (
            "if growing and queue.filled then return false end\n  settle()",
            "if growing and queue.filled then return false end",
        ),
        ("or job[5] or job[6]\n      or job[7] then return end", "or job[5] then return end"),
        ("if not last[ids[n]] then", "if false then"),
        ("call('LREM', queue.active, '-1', ids[n])", "call('LREM', queue.active, '-1', ids[1])"),
        ("call('LTRIM', queue.active, '0', -1 - #ids)", "call('LTRIM', queue.active, '0', -#ids)"),
        ("call('ZREM', queue.leases, unpack(ids))", ""),
        ("call('LPUSH', queue.active, unpack(ids))", "call('RPUSH', queue.active, unpack(ids))"),
        ("if is_special(queue) then return end", "is_special(queue)"),
        ("or job.defa or job['nq:p'] then return false end", "then return false end"),
        ("or run[1] ~= ARGV[at + 1] or", "or"),
        ("if seen[id] or run[1]", "if run[1]"),
        ("if ARGV[at + 5] == '1' then gates[", "if false then gates["),
        ("if call('ZCARD', NS .. 'topic:' .. kind) > 0 then return false end", ""),
        ("if jobs then settle() end", ""),
        ("if run[2] ~= status then call('ZREM',", "if false then call('ZREM',"),
        ("call('ZREM', NS .. 'runs:open', id)\n  call('ZADD', NS .. 'runs:closed', run[6]", "call('ZADD', NS, run[6]"),
        ("'nq:sh', ARGV[at + 8]", "'nq:sh', ARGV[at + 7]"),
        ("where[job.id], placed[job.id] = name, name", ""),
        ("if not nothing and call('EXISTS', base .. 'prioritized') == 1 then return end", ""),
    ],
)
async def test_a_difference_would_be_seen(
    right: str, wrong: str, rewritten: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = await _leaves(monkeypatch)
    rewritten(right, wrong)
    try:
        left = await _leaves(monkeypatch)
    except AssertionError:
        return  # seen on the way
    assert left != usual


async def test_what_is_let_go_on_comes_after_what_was_added_before_it(rewritten: Any) -> None:
    """The jobs a commit adds are put in line together, at its end or before any other."""
    rewritten("local function release(id, queue, base)\n  settle()", "local function release(id, queue, base)")
    place = RedisStore(redis_server.url())
    await place.open()
    try:
        await place.commit([Unit("u0", jobs=[_job(309)])])
        with pytest.raises(AssertionError, match="j400"):
            await _mix(place)
    finally:
        await place.close()
