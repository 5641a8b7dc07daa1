"""The `async def` handlers of the runner contract. A runner in another process imports this file by its path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import AwaitTimeout, Context, Permanent, RateLimited, Retry, flow, job, step
from penstock.errors import CallFailed

FIXED = {"type": "fixed", "delayMs": 10, "jitter": False}


def note(input: Any, line: str) -> None:
    """Leave a trace that the contract can read, whatever process the handler runs in."""
    with Path(input["trace"]).open("a") as file:
        file.write(f"{line}\n")


def count(input: Any, line: str) -> int:
    """Return how often a line was noted."""
    return Path(input["trace"]).read_text().splitlines().count(line)


@dataclass
class Order:
    id: int
    total: float = 0.0


class PaymentError(LookupError):
    """An error with a code of its own."""

    code = "card_declined"


@flow("echo", emits=[])
async def echo(input: Any) -> Any:
    print("a handler may print", flush=True)
    return input


@flow("facts", emits=[])
async def facts(input: Any, ctx: Context) -> Any:
    return {
        "run": ctx.run_id,
        "flow": ctx.flow,
        "step": ctx.step,
        "job": ctx.job_id,
        "queue": ctx.queue,
        "attempt": ctx.attempt,
        "n": ctx.n,
        "correlation": str(ctx.correlation_id),
        "key": ctx.idempotency_key("charge"),
        "cancelled": ctx.cancelled,
    }


@flow("bad-result", emits=[])
async def bad_result(input: Any) -> Any:
    return object()


@flow("model", emits=[])
async def model(order: Order) -> Any:
    return [type(order).__name__, order.id, order.total]


@flow("bad-model", emits=["order.made"])
async def bad_model(input: Any, ctx: Context) -> None:
    ctx.emit("order.made", {"id": "seven"})


@step(flow="bad-model", on="order.made", emits=[])
async def takes(order: Order) -> int:
    return order.id


@flow("fails", emits=[])
async def fails(input: Any) -> None:
    raise PaymentError("no money left")


@flow("recovers", emits=["tried"], retry={"attempts": 3, "backoff": FIXED})
async def recovers(input: Any, ctx: Context) -> int:
    ctx.emit("tried", ctx.attempt)
    if ctx.attempt < 3:
        raise ConnectionError("busy")
    return ctx.attempt


@flow("permanent", emits=[], retry=5)
async def permanent(input: Any, ctx: Context) -> None:
    raise Permanent(f"not again after attempt {ctx.attempt}")


@flow("later", emits=[], retry=2)
async def later(input: Any, ctx: Context) -> int:
    if ctx.attempt == 1:
        raise Retry("soon", after="2h")
    return ctx.attempt


@flow("selective", emits=[], retry={"attempts": 5, "backoff": FIXED, "retriable_errors": ["LookupError"]})
async def selective(input: Any, ctx: Context) -> None:
    if ctx.attempt == 1:
        raise PaymentError("is a LookupError")
    raise ValueError(f"attempt {ctx.attempt}")


@job(queue="runner-api")
async def limited(input: Any, ctx: Context) -> int:
    note(input, "called")
    if count(input, "called") == 1:
        raise RateLimited("1h", "quota")
    return ctx.attempt


@flow("emits", emits=["order.paid"])
async def emits(input: Any, ctx: Context) -> str:
    ctx.emit("order.paid", {"id": 7, "name": "Zoë"}, tags=["audit", "eu"])
    return "first"


@step(flow="emits", on="order.paid", emits=[])
async def ship(event: Any, ctx: Context) -> Any:
    return event


@flow("undeclared", emits=["order.paid"])
async def undeclared(input: Any, ctx: Context) -> None:
    ctx.emit("order.lost", 1)
    await asyncio.sleep(0.2)


@flow("live", emits=[])
async def live(input: Any, ctx: Context) -> None:
    ctx.log("charging", cents=5)
    ctx.log.warning("slow")
    ctx.progress(40)
    ctx.partial({"text": "a"})
    await asyncio.sleep(0)


@flow("state", emits=["stored"])
async def state(input: Any, ctx: Context) -> Any:
    missing = await ctx.state.get("cart", "none")
    ctx.state.set("cart", {"n": 1})
    ctx.state.set("gone", 1)
    ctx.state.delete("gone")
    ctx.shared.set(f"seen-{ctx.run_id}", True, ttl="1h")
    count = [await ctx.state.patch("count", lambda n: (n or 0) + 1) for _ in range(3)]
    ctx.emit("stored")
    return [missing, await ctx.state.get("cart"), count, sorted(await ctx.state.list())]


@step(flow="state", on="stored", emits=[])
async def reads(input: Any, ctx: Context) -> Any:
    seen = await ctx.shared.get(f"seen-{ctx.run_id}")
    return [await ctx.state.get("cart"), await ctx.state.get("gone"), await ctx.state.get("count"), seen]


@flow("once", emits=[], retry={"attempts": 3, "backoff": FIXED})
async def once(input: Any, ctx: Context) -> Any:
    def charge(cents: int) -> dict[str, int]:
        note(input, "charge")
        return {"charged": cents}

    paid = await ctx.run("charge", charge, 5)
    values = [ctx.uuid(), ctx.random(), ctx.now().isoformat()]
    again = await ctx.state.patch("tries", lambda n: (n or 0) + 1)
    note(input, str(values))
    if ctx.attempt < 3:
        await ctx.run("barrier", lambda: ctx.attempt)  # values are recorded with the next commit
        raise ConnectionError("after the charge")
    return [paid, again]


@flow("call-fails", emits=[])
async def call_fails(input: Any, ctx: Context) -> str:
    def broken() -> None:
        note(input, "try")
        raise ValueError("no")

    try:
        await ctx.run("broken", broken, retry={"attempts": 2, "backoff": FIXED})
    except CallFailed as problem:
        return str(problem)
    return "it did not fail"


@flow("naps", emits=["before"])
async def naps(input: Any, ctx: Context) -> str:
    ctx.emit("before")
    ctx.log("going to wait")
    await ctx.wait.time("24h")
    note(input, "woke")
    return ctx.now().isoformat()


@flow("hears", emits=[])
async def hears(input: Any, ctx: Context) -> Any:
    try:
        event = await ctx.wait.event("runner.paid", match={"id": 7}, timeout="1h")
    except AwaitTimeout:
        return "timed out"
    return event.data


@flow("gives-up", emits=[], retry=3)
async def gives_up(input: Any, ctx: Context) -> Any:
    await ctx.wait.event("runner.never", timeout="1h")


@flow("asks", emits=["asked"])
async def asks(input: Any, ctx: Context) -> Any:
    trigger = await ctx.wait.trigger("approval", timeout="1h")
    await ctx.run("tell", lambda: note(input, trigger.token))
    return [trigger.url.endswith(trigger.token), await trigger.wait()]


@flow("joins", emits=[])
async def joins(input: Any, ctx: Context) -> Any:
    return (
        await ctx.all(
            [ctx.run("one", lambda: 1), ctx.wait.time("1h", name="pause"), ctx.wait.event("runner.paid", name="paid")]
        )
        and "all"
    )


@flow("branches", emits=[])
async def branches(input: Any, ctx: Context) -> Any:
    def did(what: str) -> str:
        note(input, what)
        return what

    async def branch(name: str) -> str:
        first = await ctx.run(f"{name} one", did, f"{name}1")
        await ctx.wait.event(f"runner.{name}")
        return f"{first} {await ctx.run(f'{name} two', did, f'{name}2')}"

    return await asyncio.gather(branch("a"), branch("b"), asyncio.create_task(ctx.run("c", did, "c1")))


@flow("reorders", emits=["order.a", "order.b", "order.c"])
async def reorders(input: Any, ctx: Context) -> Any:
    """Branches that never overlap, in another order when the handler runs again."""

    async def branch(name: str) -> None:
        await ctx.run(name, note, input, name)
        ctx.emit(f"order.{name}", name)
        ctx.state.set(name, name)

    note(input, "turn")
    for name in "ab" if count(input, "turn") == 1 else "cba":
        await asyncio.create_task(branch(name))
    await ctx.wait.event("runner.go")
    return "reordered"


@flow("swaps", emits=[])
async def swaps(input: Any, ctx: Context) -> Any:
    """Calls one after the other, in another order when the handler runs again."""
    note(input, "turn")
    for name in "ab" if count(input, "turn") == 1 else "ba":
        await ctx.run(name, note, input, name)
    await ctx.wait.event("runner.go")


@flow("races", emits=[])
async def races(input: Any, ctx: Context) -> Any:
    calls: dict[str, Any] = {"event": ctx.wait.event("runner.never"), "time": ctx.wait.time("1h", name="late")}
    return (await ctx.first(calls))[0]


@flow("two-sites", emits=[])
async def two_sites(input: Any, ctx: Context) -> None:
    await ctx.run("same", lambda: 1)
    await ctx.run("same", lambda: 2)


@flow("hangs", emits=[], timeout="300ms")
async def hangs(input: Any) -> None:
    await asyncio.sleep(60)


@flow("runs-long", emits=[])
async def runs_long(input: Any, ctx: Context) -> None:
    note(input, "started")
    try:
        await asyncio.sleep(60)
    finally:
        note(input, "stopped")


@job(queue="runner-child")
async def child(n: int) -> int:
    return n * 10


@job(queue="runner-parent")
async def parent(input: Any, ctx: Context) -> Any:
    return sorted((await ctx.children_values()).values())


@flow("launches", emits=[], retry={"attempts": 3, "backoff": FIXED})
async def launches(input: Any, ctx: Context) -> Any:
    note(input, "attempt")
    first = ctx.enqueue(child, 4, priority=2)
    run = ctx.start(echo, "hi", tags={"by": "launches"})
    await ctx.wait.time("1h")
    second = ctx.enqueue("runner-child", 5, delay="1h")
    if count(input, "attempt") < 3:
        raise LookupError("once more")
    return [first, run, second]


@job(queue="runner-launch", retry={"attempts": 2, "backoff": FIXED})
async def launch(input: Any, ctx: Context) -> Any:
    ids = [ctx.enqueue("runner-child", 6, key="six"), ctx.start("echo", "from a job")]
    if ctx.attempt == 1:
        raise LookupError("once more")
    return ids


@flow("bad-launch", emits=[])
async def bad_launch(input: Any, ctx: Context) -> Any:
    return ctx.start("ecko", 1)


@flow("calls", emits=[])
async def calls(input: Any, ctx: Context) -> Any:
    one = await ctx.call(echo, "hi")
    many = await ctx.call_many("echo", [1, 2])
    both = await ctx.all([ctx.call("echo", "a", name="a"), ctx.call("echo", "b", name="b")])
    try:
        await ctx.call("permanent")
    except Exception as problem:
        return [one, many, both, getattr(problem, "code", None)]


HANDLERS: list[Callable[..., Any]] = [
    *(
        echo,
        branches,
        reorders,
        swaps,
        facts,
        bad_result,
        model,
        bad_model,
        takes,
        fails,
        recovers,
        permanent,
        later,
        selective,
        limited,
        emits,
        ship,
        undeclared,
    ),
    *(live, state, reads, once, call_fails, naps, hears, gives_up, asks, joins, races, two_sites, hangs, runs_long),
    *(child, parent, launches, launch, bad_launch, calls),
]
