"""The `async def` handlers of the second half of the runner contract: values, errors, floods and crashes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock import Context, flow, job, step

FIXED = {"type": "fixed", "delayMs": 10, "jitter": False}
TWICE = {"attempts": 2, "backoff": FIXED}


def note(input: Any, line: str) -> None:
    with Path(input["trace"]).open("a") as file:
        file.write(f"{line}\n")


@flow("passes", emits=["passed"])
async def passes(input: Any, ctx: Context) -> Any:
    ctx.log("value", value=input)
    ctx.progress(input)
    ctx.partial(input)
    ctx.state.set("value", input)
    stored = await ctx.state.get("value")
    called = await ctx.run("same", lambda: input)
    ctx.emit("passed", input)
    return [stored, called]


@step(flow="passes", on="passed", emits=[])
async def receives(input: Any) -> Any:
    return input


@flow("wrong-value", emits=["wrong"])
async def wrong_value(kind: str, ctx: Context) -> Any:
    values = {"nan": float("nan"), "integer": 2**53 + 1, "surrogate": "\ud83d", "large": "x" * 1_100_000}
    place, _, what = kind.partition(" ")
    bad: Any = values.get(what, object())
    match place:
        case "emit":
            ctx.emit("wrong", bad)
        case "state":
            ctx.state.set("wrong", bad)
        case "enqueue":
            ctx.enqueue("runner-echo", bad)
        case "call":
            await ctx.run("wrong", lambda: bad)
        case "return":
            return bad
    return None


@flow("raises", emits=[])
async def raises(kind: str) -> None:
    if kind == "cause":
        try:
            raise ValueError("the cause")
        except ValueError as problem:
            raise RuntimeError("the effect") from problem
    texts = {"empty": "", "unicode": "Zoë 🚀\n\u2028 'quoted' \"twice\"", "long": "x" * 1_100_000}
    raise RuntimeError(texts[kind])


@flow("dates", emits=[])
async def dates(input: Any) -> Any:
    return datetime.fromtimestamp(86_400, UTC)


@flow("prints", emits=[])
async def prints(input: Any) -> str:
    for n in range(2000):
        print(f"line {n}")
    sys.stdout.write("x" * 2**20 + '\n{"type":"done","result":"forged"}\n')
    sys.stdout.flush()
    return "printed"


@flow("crashes", emits=["survived"], retry=TWICE)
async def crashes(input: Any, ctx: Context) -> Any:
    ctx.emit("survived", ctx.attempt)
    await ctx.run("charge", lambda: note(input, "charge"))
    if ctx.attempt == 1:
        os._exit(3)
    return ctx.attempt


@flow("emits-many", emits=["many"])
async def emits_many(input: Any, ctx: Context) -> None:
    for n in range(100):
        ctx.emit("many", n)


@flow("floods", emits=[])
async def floods(input: Any, ctx: Context) -> str:
    for n in range(3000):
        ctx.partial("x" * 500)
        ctx.log("line", n=n)
    return "done"


@flow("loops", emits=[])
async def loops(input: Any, ctx: Context) -> Any:
    seen = []
    for n in range(3):
        seen.append(await ctx.run(f"step {n}", lambda n=n: n * n))
        await ctx.wait.time("1h", name=f"pause {n}")
    return seen


@flow("hears-two", emits=[])
async def hears_two(input: Any, ctx: Context) -> Any:
    first = await ctx.wait.event("runner.x")
    second = await ctx.wait.event("runner.y", where=lambda event: event.data["n"] > 5)
    return [first.data, second.data, first.kind]


@flow("stubborn", emits=["late"])
async def stubborn(input: Any, ctx: Context) -> Any:
    note(input, "started")
    try:
        await asyncio.sleep(60)
    except BaseException:
        note(input, "stopped")
    ctx.emit("late")
    return "late"


@flow("long-call", emits=[])
async def long_call(input: Any, ctx: Context) -> Any:
    async def work() -> None:
        note(input, "started")
        try:
            await asyncio.sleep(60)
        finally:
            note(input, "stopped")

    await ctx.run("work", work)


@flow("inner-error", emits=[])
async def inner_error(input: Any, ctx: Context) -> Any:
    def fail() -> None:
        raise KeyError("missing" + "x" * 1_100_000)

    await ctx.run("fails", fail)


@flow("emits-then-fails", emits=["half"], retry=TWICE)
async def emits_then_fails(input: Any, ctx: Context) -> Any:
    ctx.emit("half", ctx.attempt)
    ctx.state.set("half", ctx.attempt)
    raise RuntimeError("no")


@job(queue="runner-work", retry=TWICE)
async def work(kind: str, ctx: Context) -> Any:
    ctx.progress(50)
    ctx.log("working")
    if kind == "fails" or (kind == "recovers" and ctx.attempt == 1):
        raise RuntimeError("the job failed")
    return [kind, ctx.attempt, ctx.flow, ctx.run_id]


@job(queue="runner-naps")
async def naps(input: Any, ctx: Context) -> Any:
    await ctx.wait.time("1h")


@job(queue="runner-echo")
async def echo_job(input: Any) -> Any:
    return input


HANDLERS: list[Callable[..., Any]] = [
    *(passes, receives, wrong_value, raises, dates, prints, crashes, emits_many, floods, loops, hears_two, stubborn),
    *(long_call, inner_error, emits_then_fails, work, naps, echo_job),
]
