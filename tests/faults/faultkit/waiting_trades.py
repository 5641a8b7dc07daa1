"""The flows that wait in suites with real processes: for a time, for two events, for a trigger, for whichever comes."""

from __future__ import annotations

import asyncio
import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock import flow
from penstock.core.errors import AwaitTimeout
from penstock.testing.history import Trigger

from .trades import EFFECTS, MOST_MS, QUICK

TOKENS = Path(f"{EFFECTS.path}.tokens")


def tell(path: Path, *words: object) -> None:
    """Appends a line that no other process can tear."""
    fd = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.write(fd, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(fd)


async def _while() -> None:
    await asyncio.sleep(random.random() * MOST_MS / 1000)


@flow("nap", queue="a", emits=[], retry=QUICK)
async def nap(x: Any, ctx: Any) -> str:
    EFFECTS.record(ctx)
    await ctx.wait.time(datetime.fromtimestamp(x["until"] / 1000, UTC))
    await _while()
    return "rested"


@flow("order", queue="b", emits=[], retry=QUICK)
async def order(x: Any, ctx: Any) -> list[str]:
    EFFECTS.record(ctx)
    await _while()
    one = await ctx.wait.event("paid", match={"order": x["order"]}, name="one")
    await _while()
    other = await ctx.wait.event("paid", match={"order": x["order"]}, name="other")
    return [one.data["key"], other.data["key"]]


@flow("ask", queue="a", emits=[], retry=QUICK)
async def ask(x: Any, ctx: Any) -> Any:
    EFFECTS.record(ctx)
    trigger = await ctx.wait.trigger("approval", type="api")
    if str(TOKENS) != "/dev/null.tokens":
        token = trigger.token
        await ctx.run("told", lambda: tell(TOKENS, ctx.run_id, token))
    await _while()
    answer = await trigger.wait()
    await _while()
    return answer


@flow("late", queue="b", emits=[], retry=QUICK)
async def late(x: Any, ctx: Any) -> str:
    EFFECTS.record(ctx)
    try:
        await ctx.wait.event("never", timeout=x["patience"])
    except AwaitTimeout:
        await _while()
        return "late"
    return "impossible"


HANDLERS = [nap, order, ask, late]
FLOWS = ("nap", "order", "ask", "late")
TRIGGERS = {name: {name: Trigger(())} for name in FLOWS}
