"""Dry runs: they write nothing, and the real call writes what they show. `version=` refuses a run that has moved on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock import Context, Permanent, flow, job, step
from penstock.commit.committer import CommitRequest, Committer
from penstock.commit.preview import PLAN, Preview, PreviewWait
from penstock.core.errors import BadArgument, RunMoved
from penstock.jobs.job_trees import Node
from penstock.ports.unit import DELIVERIES, ClaimRequest, JobState, QueueDemand, StateWrite, Unit
from penstock.testing.contracts.store_under_test import take_snapshot
from penstock.testing.until import until

IS_FIXED: list[bool] = []


@job(queue="mail", retry=1)
async def send(kind: str) -> None:
    if kind == "failed-job":
        raise Permanent("no such address")


@job(queue="mail", retry=1, name="parent")
async def parent(_input: Any) -> None: ...


@flow("order", emits=["paid"], accepts=["noted"], version="1")
async def order(kind: str, ctx: Context) -> Any:
    if kind == "fail" and not IS_FIXED:
        raise Permanent("out of stock")
    if kind == "sleep":
        await ctx.wait.time("30d")
    if kind == "ask":
        return await (await ctx.wait.trigger("approval")).wait()
    return await ctx.wait.event("paid")


@step(on="noted", flow="order")
async def note(data: Any) -> Any:
    return data


async def wait_of(app: Any, run: str) -> str:
    return str((await app.waits.list(run=run))[0].id)


async def cancel(app: Any, run: str, **options: Any) -> Any:
    return await app.runs.cancel(run, "stop", **options)


async def pause(app: Any, run: str, **options: Any) -> Any:
    return await app.runs.pause(run, **options)


async def retry(app: Any, run: str, **options: Any) -> Any:
    return await app.runs.retry(run, **options)


async def redrive(app: Any, run: str, **options: Any) -> Any:
    return await app.dead_letters.redrive(f"{run}.order.1", **options)


async def emit(app: Any, run: str, **options: Any) -> Any:
    return await app.events.emit("noted", {"n": 1}, run=run, **options)


async def resolve(app: Any, run: str, **options: Any) -> Any:
    return await app.waits.resolve(await wait_of(app, run), None, by="ada", **options)


async def cancel_wait(app: Any, run: str, **options: Any) -> Any:
    return await app.waits.cancel(await wait_of(app, run), by="ada", **options)


async def replay(app: Any, run: str, **options: Any) -> Any:
    return await app.runs.replay(run, key="again", **options)


async def fork(app: Any, run: str, **options: Any) -> Any:
    events = await app.events.read_all(f"nq:flow:{run}")
    return await app.runs.fork(run, events[1].id, key="fork", **options)


async def redrive_all(app: Any, _id: str, **options: Any) -> Any:
    return await app.dead_letters.redrive_all((await list_dead(app))[0], **options)


async def redrive_group(app: Any, _id: str, **options: Any) -> Any:
    (group,) = await app.dead_letters.groups()
    return await app.dead_letters.redrive_group(group.id, **options)


async def cancel_job(app: Any, id: str, **options: Any) -> Any:
    return await app.jobs.cancel(id, "stop", **options)


async def retry_job(app: Any, id: str, **options: Any) -> Any:
    return await app.jobs.retry(id, **options)


async def redrive_job(app: Any, id: str, **options: Any) -> Any:
    return await app.dead_letters.redrive(id, **options)


async def list_dead(app: Any) -> list[str]:
    return [*await app.dead_letters.queues()]


Action = Callable[..., Awaitable[Any]]
ACTIONS: list[tuple[Action, str]] = [
    (cancel, "ask"),
    (pause, "sleep"),
    (retry, "fail"),
    (redrive, "fail"),
    (emit, "event"),
    (resolve, "sleep"),
    (resolve, "event"),
    (resolve, "ask"),
    (cancel_wait, "ask"),
    (replay, "fail"),
    (fork, "fail"),
    (fork, "sleep"),
    (redrive_all, "fail"),
    (redrive_group, "fail"),
    (redrive_all, "failed-job"),
    (redrive_job, "failed-job"),
    (retry_job, "failed-job"),
    (cancel_job, "waiting-job"),
]


HANDLERS = (order, note, send, parent)


async def start(app: Any, kind: str) -> str:
    if kind.endswith("-job"):
        id = str(await app.enqueue(send, kind, delay="1h" if kind == "waiting-job" else None))
        await (app.settle() if kind == "failed-job" else app.jobs.get(id))
        return id
    run = str(await app.start("order", kind))
    await app.settle()
    return run


async def everything(app: Any) -> str:
    """Return all that a store holds of runs, jobs, events, waits, memos and state."""
    snapshot = await take_snapshot(app.store)
    waits = [
        await app.store.waits_by_time(kind="trigger", state=state) for state in ("resolved", "expired", "cancelled")
    ]
    memos = [await app.store.memos(f"{row.id}.order.1") for row in await app.store.runs()]
    return repr([snapshot, waits, memos])


async def count(app: Any) -> dict[str, int]:
    snapshot = await take_snapshot(app.store)
    return {name: len(snapshot[name]) for name in ("runs", "jobs", "state")}


@pytest.mark.parametrize(("act", "kind"), ACTIONS, ids=[f"{act.__name__}-{kind}" for act, kind in ACTIONS])
async def test_a_dry_run_writes_nothing_and_shows_what_the_call_writes(kit: Any, act: Action, kind: str) -> None:
    IS_FIXED.clear()
    async with kit(*HANDLERS) as app:
        run = await start(app, kind)
        app.workers.stop()
        before, counted = await everything(app), await count(app)
        preview = await act(app, run, dry_run=True)
        assert isinstance(preview, Preview)
        assert preview
        assert await everything(app) == before
        assert_about(preview, run, await app.store.run(run), await app.store.job(run))
        streams = {event.stream for event in preview.events}
        old = {stream: len(await app.events.read_all(stream)) for stream in streams}
        await act(app, run, version=preview)
        written = [
            (stream, event.kind, event.step, event.data)
            for stream in sorted(streams)
            for event in (await app.events.read_all(stream))[old[stream] :]
            if event.kind != "step.started"  # a worker may have claimed the job at once
            and "copied" not in (event.meta or {})
        ]
        copied = [event for stream in streams for event in await app.events.read_all(stream)]
        assert preview.copied == sum("copied" in (event.meta or {}) for event in copied) == 2 * (act is fork)
        shown = [(one.stream, one.kind, one.step, one.data) for one in preview.events]
        assert [one[:3] for one in written] == [one[:3] for one in sorted(shown, key=lambda one: one[0])]
        for job in preview.jobs:
            # An internal job is named after the unit that adds it.
            waiting = await app.store.jobs(job.queue, JobState.WAITING)
            added = waiting if job.queue == DELIVERIES else [await app.store.job(job.id)]
            assert (job.queue, job.name) in [(row.queue, row.name) for row in added]
        for wait in preview.waits:
            assert (await app.store.wait_row(wait.id)).state == wait.state
        for id in preview.removed_jobs:
            assert await app.store.job(id) is None
        for id in preview.cancelled_jobs:
            assert (await app.store.job(id)).state == "cancelled"
        if preview.status is not None:
            written = (preview.versions.keys() - {run} or {run}).pop()
            assert preview.status in ((await app.store.run(written)).status, "running")
        assert len(after := await count(app)) == len(counted)
        assert after["jobs"] - counted["jobs"] == len(preview.jobs) - len(preview.removed_jobs)
        assert after["runs"] - counted["runs"] == list(preview.versions.values()).count(0)


def assert_about(preview: Preview, id: str, run: Any, job: Any) -> None:
    """A preview has the version of the run, or the attempt of the job; one of many dead letters has those of their runs."""
    if preview.job is not None:
        assert (preview.job, preview.version) == (id, job.attempt)
    elif run is not None and preview.run is None:
        assert preview.versions == {id: run.version}
    else:
        assert (preview.run, preview.version) == ((id, run.version) if run is not None else (None, None))


# A dead letter is taken by what moves its run, and jobs have no version of a run.
MOVING = [(act, kind) for act, kind in ACTIONS if not act.__name__.startswith("redrive") and not kind.endswith("-job")]


@pytest.mark.parametrize(("act", "kind"), MOVING, ids=[f"{act.__name__}-{kind}" for act, kind in MOVING])
async def test_a_run_that_has_moved_on_is_left_alone(kit: Any, act: Action, kind: str) -> None:
    IS_FIXED.clear()
    async with kit(*HANDLERS) as app:
        run = await start(app, kind)
        preview = await act(app, run, dry_run=True)
        if kind == "fail":
            await app.runs.retry(run)
        else:
            await app.events.emit("noted", 1, run=run)
        await app.settle()
        before = await everything(app)
        with pytest.raises(RunMoved, match="has moved on: its version is"):
            await act(app, run, version=preview.version)
        assert await everything(app) == before


async def test_the_guard_is_in_the_commit(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run moves after its last read: the store's conflict rebuilds the unit, which is refused."""
    async with kit(*HANDLERS) as app:
        run = await start(app, "sleep")
        version = (await app.store.run(run)).version
        guarded, submit = [], Committer.submit

        async def move_before_commit(self: Committer, request: CommitRequest) -> Any:
            if not guarded:
                guarded.append(request)
                token = PLAN.set(None)
                await app.events.emit("noted", 1, run=run)
                PLAN.reset(token)
            return await submit(self, request)

        monkeypatch.setattr(Committer, "submit", move_before_commit)
        with pytest.raises(RunMoved, match=rf"its version is \d, not {version}"):
            await app.runs.cancel(run, version=version)
        assert guarded[0].run == run
        assert (await app.runs.get(run)).status != "cancelled"


@flow("twice", emits=["left", "right"])
async def twice(ctx: Context) -> None:
    ctx.emit("left")
    ctx.emit("right")


@step(on="left", flow="twice")
async def left() -> None:
    raise Permanent("no")


@step(on="right", flow="twice")
async def right() -> None:
    raise Permanent("no")


async def test_several_writes_of_one_run(kit: Any) -> None:
    """A retry of two failed steps writes the run twice: the second is decided on what the first leaves."""
    async with kit(twice, left, right) as app:
        run = await app.start("twice")
        await app.settle()
        app.workers.stop()
        preview = await app.runs.retry(run, dry_run=True)
        assert [event.kind for event in preview.events] == ["step.redriven", "flow.reopened", "step.redriven"]
        version = (await app.store.run(run)).version
        assert preview.versions == {run: version}
        done = await app.runs.retry(run, version=preview)
        assert (len(done.sent), done.refused) == (2, {})
        assert sorted(done.sent.values()) == sorted(job.id for job in preview.jobs)
        assert (await app.store.run(run)).version == version + 2


async def test_nothing_to_do_is_an_empty_preview(memory: Any) -> None:
    async with memory(*HANDLERS) as app:
        run = await app.start("order", "sleep")
        await app.runs.cancel(run)
        assert not await app.runs.cancel(run, dry_run=True)
        with pytest.raises(BadArgument, match="version=3 needs a call that changes exactly one run"):
            await app.events.emit("paid", version=3)
        with pytest.raises(BadArgument, match="version must be the version of a run"):
            await app.runs.cancel(run, version="3")
        preview = await app.events.emit("paid", {"n": 1}, dry_run=True)
        assert [(one.stream, one.kind) for one in preview.events] == [("nq:global", "paid")]
        assert await app.events.read_all("nq:global") == []


@pytest.mark.parametrize("act", [cancel_job, retry_job])
async def test_a_job_that_was_claimed_since_is_left_alone(kit: Any, act: Action) -> None:
    async with kit(*HANDLERS) as app:
        job = await start(app, "waiting-job" if act is cancel_job else "failed-job")
        preview = await act(app, job, dry_run=True)
        await (app.jobs.promote(job) if act is cancel_job else app.jobs.retry(job))
        await app.settle()
        before = await everything(app)
        with pytest.raises(RunMoved, match="has moved on: it has attempt"):
            await act(app, job, version=preview)
        assert await everything(app) == before


async def test_the_guard_of_a_job_is_in_the_commit(app: Any) -> None:
    """A worker claims the job between the check and the commit: the store refuses the unit."""
    async with app(*HANDLERS) as a:  # it has no worker of its own, which would claim the job first
        id = await start(a, "waiting-job")
        preview = await cancel_job(a, id, dry_run=True)
        read = a.store.children

        async def claim_before_commit(job: str) -> Any:
            a.store.children = read
            await a.jobs.promote(id)
            found = await a.store.claim(ClaimRequest((QueueDemand("mail", 1),), 60_000, "other"))
            assert [claim.job for claim in found.claims] == [id]
            return await read(job)

        a.store.children = claim_before_commit  # the last read before the commit
        with pytest.raises(RunMoved, match="has moved on: it has attempt 1, not 0"):
            await cancel_job(a, id, version=preview)
        assert (await a.jobs.get(id)).state == "active"


async def test_a_bulk_redrive_refuses_what_has_moved_on_and_what_is_new(kit: Any) -> None:
    IS_FIXED.clear()
    async with kit(*HANDLERS) as app:
        moved, still = [await start(app, "fail") for _ in range(2)]
        preview = await redrive_all(app, "", dry_run=True)
        await app.runs.retry(moved)  # it fails again, with another version and another dead letter
        await app.settle()
        new = await start(app, "fail")
        done = await redrive_all(app, "", version=preview)
        assert [*done.sent] == [f"{still}.order.1.dlq"]
        assert sorted(done.refused) == sorted([f"{moved}.order.1.redrive-1.dlq", f"{new}.order.1.dlq"])
        with pytest.raises(BadArgument, match="version must be the Preview of a dry run"):
            await redrive_all(app, "", version=3)


async def test_a_dry_run_of_a_start_does_not_hide_the_next_one(kit: Any) -> None:
    """A versioned flow writes its trigger table with its first run. A dry run must not count as that."""
    async with kit(*HANDLERS) as app:
        run = await start(app, "event")
        app.workers.stop()
        (key,) = [row.key for row in await app.store.states("", limit=10)]
        await app.store.commit([Unit("forget", state=[StateWrite(key, None)])])
        app._transactions.direct.commands._pinned.clear()  # as in a new process
        await app.runs.replay(run, dry_run=True)
        assert await app.store.states("", limit=10) == []
        await app.runs.replay(run, key="again")
        assert [row.key for row in await app.store.states("", limit=10)] == [key]
        assert not await app.runs.replay(run, key="again", dry_run=True)  # the key was used


async def test_a_preview_of_another_call_is_refused(memory: Any) -> None:
    async with memory(*HANDLERS) as app:
        one, two = [await app.start("order", "sleep") for _ in range(2)]
        preview = await app.runs.cancel(one, dry_run=True)
        with pytest.raises(BadArgument, match="is a Preview of another call"):
            await app.runs.cancel(two, version=preview)


@flow("receipt", start_on="paid")
async def receipt(data: Any) -> Any:
    return data


@flow("refund", start_on={"eventKind": "paid", "when": lambda event: event.data["n"] < 0})
async def refund(data: Any) -> Any:
    return data


@flow("billed")
async def billed(ctx: Context) -> Any:
    return (await ctx.wait.event("paid", match={"n": 2})).data


async def test_a_dry_run_of_a_global_emit_shows_the_waits_and_flows_that_it_reaches(kit: Any) -> None:
    async with kit(*HANDLERS, receipt, refund, billed) as app:
        run, other = str(await app.start("order", "event")), str(await app.start("billed"))
        await app.settle()
        await until_registered(app, {"receipt", "refund"})
        before = await everything(app)
        preview = await app.events.emit("paid", {"n": 1}, dry_run=True)
        assert await everything(app) == before
        wait = await wait_of(app, run)
        assert preview.waits == (PreviewWait(wait, "resolved"),)
        assert preview.woken_jobs == (f"{run}.order.1",)
        assert preview.starts == ("receipt",)
        assert ("delivery.new", DELIVERIES) in [(job.id, job.queue) for job in preview.jobs]
        shown = {(one.stream, one.kind) for one in preview.events}
        assert shown == {
            ("nq:global", "paid"),
            (f"nq:flow:{run}", "step.resumed"),
            ("nq:flow:receipt-new", "flow.started"),
        }
        await app.emit("paid", {"n": 1})
        await app.settle()
        assert (await app.store.wait_row(wait)).state == "resolved"
        assert (await app.runs.get(run)).status == "completed"
        assert (await app.runs.get(other)).status != "completed"
        names = [one.flow for one in await app.runs.list()]
        assert sorted(names) == ["billed", "order", "receipt"]


async def test_a_dry_run_of_an_emit_to_a_run_shows_the_waits_of_other_runs(kit: Any) -> None:
    async with kit(*HANDLERS) as app:
        one, two = [str(await app.start("order", "event")) for _ in range(2)]
        await app.settle()
        app.workers.stop()
        preview = await app.events.emit("paid", {"n": 1}, run=one, dry_run=True)
        assert {wait.id for wait in preview.waits} == {await wait_of(app, one), await wait_of(app, two)}
        added = await app.store.jobs(DELIVERIES, JobState.WAITING)
        await app.events.emit("paid", {"n": 1}, run=one, version=preview)
        assert len(await app.store.jobs(DELIVERIES, JobState.WAITING)) == len(added) + 1
        assert [job.id for job in preview.jobs] == ["delivery.new"]


async def test_a_process_without_the_code_names_the_flows_that_may_start(kit: Any) -> None:
    async with kit(*HANDLERS, receipt) as app:
        await until_registered(app, {"receipt"})
        app._delivery_preview._flows = dict  # as in a process that has loaded no flow
        preview = await app.events.emit("paid", {"n": 1}, dry_run=True)
        assert preview.starts == ("receipt",)
        assert [(one.stream, one.kind) for one in preview.events] == [("nq:global", "paid")]


async def until_registered(app: Any, flows: set[str]) -> None:
    """Wait until the worker has registered the events that start these flows."""

    async def is_registered() -> bool:
        return flows <= {row.scope for row in await app.store.waits("", kind="flow")}

    await until(is_registered)


@flow("leaf")
async def leaf(_n: int, ctx: Context) -> None:
    await ctx.wait.time("30d")


@flow("branch")
async def branch(n: int, ctx: Context) -> None:
    await ctx.call("leaf", n)


@flow("trunk")
async def trunk(_input: Any, ctx: Context) -> None:
    await ctx.start("leaf", 0)  # it does not follow
    await ctx.call_many("branch", [1, 2])


TREE = (leaf, branch, trunk)


async def cancel_call(app: Any, run: str, **options: Any) -> Any:
    return await app.waits.cancel(await wait_of(app, run), **options)


async def resolve_call(app: Any, run: str, **options: Any) -> Any:
    return await app.waits.resolve(await wait_of(app, run), [None, None], **options)


async def resume(app: Any, run: str, **options: Any) -> Any:
    return await app.runs.resume(run, **options)


@pytest.mark.parametrize(
    ("act", "kinds"),
    [
        (cancel, {"flow.cancelled", "step.await.cancelled"}),
        (pause, {"flow.paused"}),
        (resume, {"flow.resumed"}),
        (cancel_call, {"flow.cancelled", "step.await.cancelled", "step.resumed"}),
        (resolve_call, {"flow.cancelled", "step.await.cancelled", "step.resumed"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_a_dry_run_shows_what_called_runs_do(kit: Any, act: Action, kinds: set[str]) -> None:
    async with kit(*TREE) as app:
        run = str(await app.start("trunk"))
        await app.settle()
        if act is resume:
            await app.runs.pause(run)
            await app.settle()
        streams = [f"nq:flow:{row.id}" for row in await app.runs.list()]
        assert len(streams) == 6
        before = {stream: len(await app.events.read_all(stream)) for stream in streams}
        was = await everything(app)
        preview = await act(app, run, dry_run=True)
        assert await everything(app) == was
        await act(app, run, version=preview)
        await app.settle()
        for stream in streams:
            added = (await app.events.read_all(stream))[before[stream] :]
            written = [event.kind for event in added if event.kind in kinds]
            assert [one.kind for one in preview.events if one.stream == stream] == written
        assert len({one.stream for one in preview.events}) == 5, "all but the run that was only started"


async def test_a_dry_run_reads_a_bounded_number_of_called_runs(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.worker.child_runs.MAX_PREVIEWED", 3)
    async with kit(*TREE) as app:
        run = await app.start("trunk")
        await app.settle()
        preview = await app.runs.cancel(run, dry_run=True)
        assert len({one.stream for one in preview.events}) == 1 + 3


async def test_a_dry_run_shows_the_children_of_a_cancelled_job(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def letter(delay: str) -> Node:
        return Node("mail", "waiting-job", name="send", delay=delay)

    async with kit(*HANDLERS) as app:
        branch = Node("mail", name="parent", children=[letter("1h")])
        id = (await app.jobs.enqueue_tree(Node("mail", name="parent", children=[letter("2h"), branch]))).id
        await app.settle()
        before, old = await everything(app), len(await app.events.read_all("nq:queue:mail"))
        preview = await app.jobs.cancel(id, "stop", dry_run=True)
        assert await everything(app) == before
        assert len(preview.cancelled_jobs) == 4
        await app.jobs.cancel(id, "stop", version=preview)
        await app.settle()
        for one in preview.cancelled_jobs:
            assert (await app.jobs.get(one)).state == JobState.CANCELLED
        written = [(event.kind, event.data) for event in (await app.events.read_all("nq:queue:mail"))[old:]]
        assert sorted(map(repr, written)) == sorted(repr((one.kind, one.data)) for one in preview.events)
        other = (await app.jobs.enqueue_tree(Node("mail", name="parent", children=[letter("1h"), letter("2h")]))).id
        monkeypatch.setattr("penstock.jobs.cancellation.MAX_PREVIEWED", 2)
        assert len((await app.jobs.cancel(other, dry_run=True)).cancelled_jobs) == 2
