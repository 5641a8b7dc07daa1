"""The simulation's flows that wait, what clients do to them, and what must have become of them.

They are in the hands of the same parties, under the same faults: a gate may be opened while its step is on the way to
it, while it sleeps, while it is run again, or while nobody is there at all.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from penstock import App, flow, step
from penstock.core.errors import AwaitTimeout, TriggerError
from penstock.testing.history import History, Trigger, Violation

Plan = list[tuple[float, str, Any]]
QUICK = {"attempts": 8, "backoff": {"type": "fixed", "delayMs": 200, "jitter": False}}
FLOWS = ("nap", "order", "order", "ask", "ask", "pick")


def _world() -> Any:
    from . import sim

    return sim.WORLD


async def _work(ctx: Any, slow: float = 0.0) -> None:
    from . import sim

    await sim._work(ctx, slow)


class Facts:
    """What handlers and clients of one seed have seen."""

    def __init__(self) -> None:
        self.heard: dict[tuple[str, str], set[str]] = {}  # (step instance, wait) -> what the handler was told
        self.tokens: dict[str, list[str]] = {}  # run -> tokens its handler was given
        self.fired: dict[str, list[str]] = {}  # run -> payloads of fires that were answered
        self.woke_early: list[str] = []

    def hear(self, ctx: Any, wait: str, what: str) -> None:
        self.heard.setdefault((ctx.idempotency_key(), wait), set()).add(what)


@flow("nap", queue="a", emits="nap.over", retry=QUICK)
async def nap_1(x: Any, ctx: Any) -> None:
    await _work(ctx)
    began = await ctx.run("began", lambda: _world().clock.now_ms())
    ctx.emit("nap.over", {"n": 1})
    await ctx.wait.time(x["nap"])
    if _world().clock.now_ms() < began + x["nap"] * 1000:
        _world().facts.woke_early.append(ctx.job_id)
    await _work_on(ctx, "awake")


@step(on="nap.over", queue="b", emits=[], retry=QUICK)
async def nap_2(x: Any, ctx: Any) -> None:
    await _work(ctx)
    await ctx.all([ctx.wait.time("200ms", name="one"), ctx.wait.time("500ms", name="other")])


@flow("order", queue="a", emits=[], retry=QUICK)
async def order(x: Any, ctx: Any) -> Any:
    """Waits twice for the same kind of event: one payment is not two."""
    await _work(ctx, 0.5)
    got = []
    for name in ("first", "second"):
        try:
            paid = await ctx.wait.event("paid", match={"order": x["id"]}, timeout=x["patience"], name=name)
            got.append(paid.data["key"])
        except AwaitTimeout:
            got.append("timeout")
        _world().facts.hear(ctx, name, got[-1])
        await _work_on(ctx, name)
    return got


async def _work_on(ctx: Any, name: str) -> None:
    await asyncio.sleep(_world().dice(ctx.job_id, ctx.attempt, name).choice((0.0, 0.05, 0.4)))


@flow("ask", queue="b", emits=[], retry=QUICK)
async def ask(x: Any, ctx: Any) -> Any:
    facts = _world().facts
    trigger = await ctx.wait.trigger("approval", timeout=x["patience"], type="api")
    facts.tokens.setdefault(ctx.run_id, []).append(trigger.token)
    await ctx.run("told", lambda: None)
    await _work(ctx, 0.5)
    try:
        answer = await trigger.wait()
    except AwaitTimeout:
        answer = "timeout"
    facts.hear(ctx, "approval", answer)
    await _work_on(ctx, "answered")
    return answer


@flow("pick", queue="a", emits=[], retry=QUICK)
async def pick(x: Any, ctx: Any) -> Any:
    """Whichever comes first; the one that is let go has a timeout that passes later."""
    await _work(ctx)
    which, _ = await ctx.first(
        {
            "paid": ctx.wait.event("paid", match={"order": x["id"]}, timeout="1500ms"),
            "slow": ctx.wait.time(x["nap"]),
        }
    )
    decided = await ctx.run("decided", lambda: which)
    await ctx.wait.time("2s", name="longer")
    return [which, decided]


@flow("receipt", queue="b", emits=[], retry=QUICK, start_on="paid")
async def receipt(x: Any, ctx: Any) -> Any:
    await _work(ctx)
    return x["key"]


HANDLERS = [nap_1, nap_2, order, ask, pick, receipt]
TRIGGERS = {
    "nap": {"nap_1": Trigger(()), "nap_2": Trigger(("nap.over",))},
    **{name: {name: Trigger(())} for name in ("order", "ask", "pick", "receipt")},
}


def plan_of(name: str, run: str, at: float, rng: random.Random) -> Plan:
    """What is done to a run that waits, and when. One without a timeout is given what it waits for, sooner or later."""
    patience = rng.choice((None, None, "600ms", "2s"))
    plan: Plan = [(at, "start", (name, run, {"id": run, "nap": rng.choice((0.1, 0.8, 2.0)), "patience": patience}))]
    if name in ("order", "pick"):
        plan += [(at + rng.uniform(0, 3), "pay", (run, f"{run}-{n}")) for n in range(2)]
    if name == "ask":
        plan += [(at + rng.uniform(0, 3), "fire", (run, f"{run}-{n}")) for n in range(2)]
    if rng.random() < 0.25:
        plan.append((at + rng.uniform(0, 2), "pause", (run, rng.uniform(0, 1))))
    return plan


async def fire(world: Any, app: App, run: str, payload: str) -> bool:
    """Fires with any token the handler was given; whether there is nothing more to try."""
    tokens = world.facts.tokens.get(run, ())
    for token in world.rng.sample(tokens, len(tokens)):
        try:
            await app.waits.fire(token, payload)
        except TriggerError:
            continue
        world.facts.fired.setdefault(run, []).append(payload)
        return True
    return bool(tokens)


def judge(world: Any, history: History) -> list[Violation]:
    """What holds of waits besides what the history check says."""
    facts, found = world.facts, []
    for (where, wait), heard in facts.heard.items():
        if len(heard) > 1:
            found.append(Violation("heard", where, f"{wait} was told {sorted(heard)}"))
    found += [Violation("early", job, "woke before its time") for job in facts.woke_early]
    results = {run.id: run.events[-1].data.get("result") for run in history.runs if run.status == "completed"}
    for run in history.runs:
        found += _judge_run(run, results.get(run.id), facts)
    return found


def _judge_run(run: Any, result: Any, facts: Facts) -> list[Violation]:
    found = []
    if run.flow == "order" and result is not None:
        paid = [key for key in result if key != "timeout"]
        if len(paid) != len(set(paid)):
            found.append(Violation("taken", run.id, f"one payment was had twice: {result}"))
    if run.flow == "ask":
        fired = facts.fired.get(run.id, [])
        if len(fired) > 1:
            found.append(Violation("fired", run.id, f"its trigger was fired by {fired}"))
        if result is not None and fired and result != fired[0]:
            found.append(Violation("fired", run.id, f"{fired[0]} fired its trigger, it gave {result}"))
    if run.flow == "pick" and result is not None and result[0] != result[1]:
        found.append(Violation("first", run.id, f"acted on {result[1]} and went on with {result[0]}"))
    return found
