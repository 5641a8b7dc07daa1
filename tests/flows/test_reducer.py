"""Any flow with any end: its events fold at every point, and at the end to the state of the record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import App, Permanent, flow, step
from penstock.flows.reducer import RunView, reduce_flow
from penstock.flows.run_record import decode

ENDS = ("flow.completed", "flow.failed", "flow.cancelled", "flow.compensated")
KINDS = ("k0", "k1", "k2", "k3")


@dataclass(frozen=True)
class Plan:
    """The subscriptions and the behaviour of a step."""

    on: tuple[str, ...]
    mode: str
    emits: tuple[str, ...]
    fails: int  # how often it fails before it succeeds; 9 means always
    permanent: bool
    undone: bool
    threaded: bool
    speaks: bool


plans = st.builds(
    Plan,
    on=st.lists(st.sampled_from(KINDS), min_size=1, max_size=2, unique=True).map(tuple),
    mode=st.sampled_from(["once", "each", "all"]),
    # A step emits only later kinds than it listens to, so that no run loops.
    emits=st.lists(st.integers(1, 3), max_size=3).map(tuple),
    fails=st.sampled_from([0, 0, 0, 1, 9]),
    permanent=st.booleans(),
    undone=st.booleans(),
    threaded=st.booleans(),
    speaks=st.booleans(),
)


def later(plan: Plan) -> list[str]:
    newest = max(KINDS.index(kind) for kind in plan.on)
    return [KINDS[newest + by] for by in plan.emits if newest + by < len(KINDS)]


def handler(number: int, plan: Plan) -> Any:
    emits = later(plan)

    def act(ctx: Any) -> int:
        if plan.speaks:
            ctx.log("at work")
            ctx.progress(ctx.attempt)
        for kind in emits:
            ctx.emit(kind, number)
        if ctx.attempt <= plan.fails:
            raise (Permanent if plan.permanent else ValueError)(f"attempt {ctx.attempt}")
        return number

    async def on_the_loop(ctx: Any) -> int:
        return act(ctx)

    def on_a_thread(ctx: Any) -> int:
        return act(ctx)

    return step(
        on=plan.on,
        mode=plan.mode,  # type: ignore[arg-type]
        name=f"s{number}",
        flow="any",
        emits=emits,
        retry={"attempts": 2, "backoff": {"delay": "1ms"}},
        compensation="undo" if plan.undone else None,
    )(on_a_thread if plan.threaded else on_the_loop)


@pytest.fixture(autouse=True, scope="module")
def _no_warnings() -> Iterator[None]:
    """Disable the many warnings about steps that nothing can start."""
    logger = logging.getLogger("penstock")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@flow("any", emits=["k0", "k1"])
async def begin(input: Any, ctx: Any) -> None:
    for kind in input:
        ctx.emit(kind)


@step(flow="any")
async def undo(input: Any) -> str:
    return f"undid {input['step']}"


@pytest.mark.spec("000-16.12", "003-1.2", "003-5.1", "003-10.1")
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(plans, min_size=1, max_size=5),
    kinds_emitted=st.lists(st.sampled_from(("k0", "k1")), max_size=4),
    cancel=st.booleans(),
    redrive=st.booleans(),
)
def test_any_run_folds(steps: list[Plan], kinds_emitted: list[str], cancel: bool, redrive: bool) -> None:
    asyncio.run(run_and_fold(steps, kinds_emitted, cancel, redrive))


async def run_and_fold(steps: list[Plan], kinds_emitted: list[str], cancel: bool, redrive: bool) -> None:
    handlers = [begin, undo, *(handler(number, plan) for number, plan in enumerate(steps))]
    async with App(":memory:", handlers=handlers) as app, app.workers.background():
        run = await app.start("any", kinds_emitted)
        if cancel:
            await app.runs.cancel(run)
        await app.runs.wait(run, timeout=20)
        if redrive:
            await app.dead_letters.redrive_all("default")
            await app.runs.wait(run, timeout=20)
        events = await app.events.read_all(f"nq:flow:{run}")
        row = await app.store.run(run)
        assert row is not None
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
        views = [reduce_flow(events[:n]) for n in range(len(events) + 1)]
        assert all(msgspec.json.encode(view) for view in views)
        check_end(views[-1], row.status, [e.kind for e in events])
        check_tally(views[-1], row.record)
        assert await app.store.stuck_runs() == []


def check_end(view: RunView, status: str, kinds: list[str]) -> None:
    assert view.status == status
    assert sum(kind in ENDS for kind in kinds) == 1 + kinds.count("flow.reopened")
    assert view.completed_at is not None
    assert not {s.status for s in view.steps.values()} & {"pending", "running", "retrying", "waiting"}


def check_tally(view: RunView, record: bytes) -> None:
    """Check that the record counts what the view shows."""
    tallies = decode(record).steps
    for name, tally in tallies.items():
        shown = [s.status for s in view.steps.values() if s.step == name]
        assert shown.count("completed") == tally.completed, name
        assert shown.count("failed") == tally.failed, name
        assert tally.open == 0
