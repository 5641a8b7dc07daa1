"""The flows of the simulation that wait, what clients do to them, and the checks of their outcome.

The same parties run them under the same faults: a wait may be resolved before its step suspends, while it is
suspended, while it re-runs, or while no worker is alive.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from penstock import App, flow, step
from penstock.core.errors import AwaitTimeout, TriggerError
from penstock.testing.history import History, Trigger, Violation

from . import sim_flows
from .sim_flows import work

Plan = list[tuple[float, str, Any]]
QUICK = {"attempts": 8, "backoff": {"type": "fixed", "delayMs": 200, "jitter": False}}
FLOWS = ("nap", "order", "order", "ask", "ask", "pick")


class Observations:
    """What handlers and clients of one seed have seen."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], set[str]] = {}  # (step instance, wait) -> answers the handler saw
        self.tokens: dict[str, list[str]] = {}  # run -> tokens that its handler published
        self.fired: dict[str, list[str]] = {}  # run -> payloads of accepted fires
        self.resumed_early: list[str] = []

    def record_answer(self, ctx: Any, wait: str, answer: str) -> None:
        self.answers.setdefault((ctx.idempotency_key(), wait), set()).add(answer)


@flow("nap", queue="a", emits="nap.over", retry=QUICK)
async def nap_1(x: Any, ctx: Any) -> None:
    await work(ctx)
    started = await ctx.run("started", lambda: sim_flows.SIMULATION.clock.now_ms())
    ctx.emit("nap.over", {"n": 1})
    await ctx.wait.time(x["nap"])
    if sim_flows.SIMULATION.clock.now_ms() < started + x["nap"] * 1000:
        sim_flows.SIMULATION.observations.resumed_early.append(ctx.job_id)
    await _continue(ctx, "awake")


@step(on="nap.over", queue="b", emits=[], retry=QUICK)
async def nap_2(x: Any, ctx: Any) -> None:
    await work(ctx)
    await ctx.all([ctx.wait.time("200ms", name="one"), ctx.wait.time("500ms", name="other")])


@flow("order", queue="a", emits=[], retry=QUICK)
async def order(x: Any, ctx: Any) -> Any:
    """Wait twice for the same kind of event: one payment must not resolve both waits."""
    await work(ctx, 0.5)
    got = []
    for name in ("first", "second"):
        try:
            paid = await ctx.wait.event("paid", match={"order": x["id"]}, timeout=x["timeout"], name=name)
            got.append(paid.data["key"])
        except AwaitTimeout:
            got.append("timeout")
        sim_flows.SIMULATION.observations.record_answer(ctx, name, got[-1])
        await _continue(ctx, name)
    return got


async def _continue(ctx: Any, name: str) -> None:
    await asyncio.sleep(sim_flows.SIMULATION.dice(ctx.job_id, ctx.attempt, name).choice((0.0, 0.05, 0.4)))


@flow("ask", queue="b", emits=[], retry=QUICK)
async def ask(x: Any, ctx: Any) -> Any:
    observations = sim_flows.SIMULATION.observations
    trigger = await ctx.wait.trigger("approval", timeout=x["timeout"], type="api")
    observations.tokens.setdefault(ctx.run_id, []).append(trigger.token)
    await ctx.run("publish", lambda: None)
    await work(ctx, 0.5)
    try:
        answer = await trigger.wait()
    except AwaitTimeout:
        answer = "timeout"
    observations.record_answer(ctx, "approval", answer)
    await _continue(ctx, "answered")
    return answer


@flow("pick", queue="a", emits=[], retry=QUICK)
async def pick(x: Any, ctx: Any) -> Any:
    """Race an event against a time; the losing wait has a timeout that passes later."""
    await work(ctx)
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
    await work(ctx)
    return x["key"]


HANDLERS = [nap_1, nap_2, order, ask, pick, receipt]
TRIGGERS = {
    "nap": {"nap_1": Trigger(()), "nap_2": Trigger(("nap.over",))},
    **{name: {name: Trigger(())} for name in ("order", "ask", "pick", "receipt")},
}


def plan_of(name: str, run: str, at: float, rng: random.Random) -> Plan:
    """Plan what clients do to a run that waits, and when. A wait without a timeout is always resolved in the end."""
    timeout = rng.choice((None, None, "600ms", "2s"))
    plan: Plan = [(at, "start", (name, run, {"id": run, "nap": rng.choice((0.1, 0.8, 2.0)), "timeout": timeout}))]
    if name in ("order", "pick"):
        plan += [(at + rng.uniform(0, 3), "pay", (run, f"{run}-{n}")) for n in range(2)]
    if name == "ask":
        plan += [(at + rng.uniform(0, 3), "fire", (run, f"{run}-{n}")) for n in range(2)]
    if rng.random() < 0.25:
        plan.append((at + rng.uniform(0, 2), "pause", (run, rng.uniform(0, 1))))
    return plan


async def fire(sim: Any, app: App, run: str, payload: str) -> bool:
    """Fire with any published token; return whether a token existed."""
    tokens = sim.observations.tokens.get(run, ())
    for token in sim.rng.sample(tokens, len(tokens)):
        try:
            await app.waits.fire(token, payload)
        except TriggerError:
            continue
        sim.observations.fired.setdefault(run, []).append(payload)
        return True
    return bool(tokens)


def check_waits(sim: Any, history: History) -> list[Violation]:
    """Check the rules of waits that the history check does not cover."""
    observations, found = sim.observations, []
    for (where, wait), answers in observations.answers.items():
        if len(answers) > 1:
            found.append(Violation("answers", where, f"{wait} had several answers: {sorted(answers)}"))
    found += [Violation("early", job, "resumed too early") for job in observations.resumed_early]
    results = {run.id: run.events[-1].data.get("result") for run in history.runs if run.status == "completed"}
    for run in history.runs:
        found += _check_run(run, results.get(run.id), observations)
    return found


def _check_run(run: Any, result: Any, observations: Observations) -> list[Violation]:
    found = []
    if run.flow == "order" and result is not None:
        paid = [key for key in result if key != "timeout"]
        if len(paid) != len(set(paid)):
            found.append(Violation("consumed", run.id, f"one payment resolved two waits: {result}"))
    if run.flow == "ask":
        fired = observations.fired.get(run.id, [])
        if len(fired) > 1:
            found.append(Violation("fired", run.id, f"its trigger fired more than once: {fired}"))
        if result is not None and fired and result != fired[0]:
            found.append(Violation("fired", run.id, f"its trigger fired with {fired[0]}, but its result is {result}"))
    if run.flow == "pick" and result is not None and result[0] != result[1]:
        found.append(Violation("first", run.id, f"recorded {result[1]} and continued with {result[0]}"))
    return found
