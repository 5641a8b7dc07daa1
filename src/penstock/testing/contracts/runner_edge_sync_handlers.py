"""The `def` handlers of the second half of the runner contract: values, errors, floods and crashes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock import SyncContext, flow, job, step

FIXED = {"type": "fixed", "delayMs": 10, "jitter": False}
TWICE = {"attempts": 2, "backoff": FIXED}


def note(input: Any, line: str) -> None:
    with Path(input["trace"]).open("a") as file:
        file.write(f"{line}\n")


def _sleep(seconds: float) -> None:
    """Sleep in short steps: an interrupt reaches a thread at its next Python instruction."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


@flow("passes", emits=["passed"])
def passes(input: Any, ctx: SyncContext) -> Any:
    ctx.log("value", value=input)
    ctx.progress(input)
    ctx.partial(input)
    ctx.state.set("value", input)
    stored = ctx.state.get("value")
    called = ctx.run("same", lambda: input)
    ctx.emit("passed", input)
    return [stored, called]


@step(flow="passes", on="passed", emits=[])
def receives(input: Any) -> Any:
    return input


@flow("wrong-value", emits=["wrong"])
def wrong_value(kind: str, ctx: SyncContext) -> Any:
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
            ctx.run("wrong", lambda: bad)
        case "return":
            return bad
    return None


@flow("raises", emits=[])
def raises(kind: str) -> None:
    if kind == "cause":
        try:
            raise ValueError("the cause")
        except ValueError as problem:
            raise RuntimeError("the effect") from problem
    texts = {"empty": "", "unicode": "Zoë 🚀\n\u2028 'quoted' \"twice\"", "long": "x" * 1_100_000}
    raise RuntimeError(texts[kind])


@flow("dates", emits=[])
def dates(input: Any) -> Any:
    return datetime.fromtimestamp(86_400, UTC)


@flow("prints", emits=[])
def prints(input: Any) -> str:
    for n in range(2000):
        print(f"line {n}")
    sys.stdout.write("x" * 2**20 + '\n{"type":"done","result":"forged"}\n')
    sys.stdout.flush()
    return "printed"


@flow("crashes", emits=["survived"], retry=TWICE)
def crashes(input: Any, ctx: SyncContext) -> Any:
    ctx.emit("survived", ctx.attempt)
    ctx.run("charge", lambda: note(input, "charge"))
    if ctx.attempt == 1:
        os._exit(3)
    return ctx.attempt


@flow("emits-many", emits=["many"])
def emits_many(input: Any, ctx: SyncContext) -> None:
    for n in range(100):
        ctx.emit("many", n)


@flow("floods", emits=[])
def floods(input: Any, ctx: SyncContext) -> str:
    for n in range(3000):
        ctx.partial("x" * 500)
        ctx.log("line", n=n)
    return "done"


@flow("loops", emits=[])
def loops(input: Any, ctx: SyncContext) -> Any:
    seen = []
    for n in range(3):
        seen.append(ctx.run(f"step {n}", lambda n=n: n * n))
        ctx.wait.time("1h", name=f"pause {n}")
    return seen


@flow("hears-two", emits=[])
def hears_two(input: Any, ctx: SyncContext) -> Any:
    first = ctx.wait.event("runner.x")
    second = ctx.wait.event("runner.y", where=lambda event: event.data["n"] > 5)
    return [first.data, second.data, first.kind]


@flow("stubborn", emits=["late"])
def stubborn(input: Any, ctx: SyncContext) -> Any:
    note(input, "started")
    try:
        _sleep(60)
    except BaseException:
        note(input, "stopped")
    ctx.emit("late")
    return "late"


@flow("long-call", emits=[])
def long_call(input: Any, ctx: SyncContext) -> Any:
    def work() -> None:
        note(input, "started")
        try:
            _sleep(60)
        finally:
            note(input, "stopped")

    ctx.run("work", work)


@flow("inner-error", emits=[])
def inner_error(input: Any, ctx: SyncContext) -> Any:
    def fail() -> None:
        raise KeyError("missing" + "x" * 1_100_000)

    ctx.run("fails", fail)


@flow("emits-then-fails", emits=["half"], retry=TWICE)
def emits_then_fails(input: Any, ctx: SyncContext) -> Any:
    ctx.emit("half", ctx.attempt)
    ctx.state.set("half", ctx.attempt)
    raise RuntimeError("no")


@job(queue="runner-work", retry=TWICE)
def work(kind: str, ctx: SyncContext) -> Any:
    ctx.progress(50)
    ctx.log("working")
    if kind == "fails" or (kind == "recovers" and ctx.attempt == 1):
        raise RuntimeError("the job failed")
    return [kind, ctx.attempt, ctx.flow, ctx.run_id]


@job(queue="runner-naps")
def naps(input: Any, ctx: SyncContext) -> Any:
    ctx.wait.time("1h")


@job(queue="runner-echo")
def echo_job(input: Any) -> Any:
    return input


HANDLERS: list[Callable[..., Any]] = [
    *(passes, receives, wrong_value, raises, dates, prints, crashes, emits_many, floods, loops, hears_two, stubborn),
    *(long_call, inner_error, emits_then_fails, work, naps, echo_job),
]
