"""The `def` handlers of the runner contract: the same as runner_handlers, without `await`."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import AwaitTimeout, Permanent, RateLimited, Retry, SyncContext, flow, job, step
from penstock.errors import CallFailed

FIXED = {"type": "fixed", "delayMs": 10, "jitter": False}


def note(input: Any, line: str) -> None:
    """Leave a trace that the contract can read, whatever process the handler runs in."""
    with Path(input["trace"]).open("a") as file:
        file.write(f"{line}\n")


def count(input: Any, line: str) -> int:
    """Return how often a line was noted."""
    return Path(input["trace"]).read_text().splitlines().count(line)


def _sleep(seconds: float) -> None:
    """Sleep in short steps: an interrupt reaches a thread at its next Python instruction."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


@dataclass
class Order:
    id: int
    total: float = 0.0


class PaymentError(LookupError):
    """An error with a code of its own."""

    code = "card_declined"


@flow("echo", emits=[])
def echo(input: Any) -> Any:
    print("a handler may print", flush=True)
    return input


@flow("facts", emits=[])
def facts(input: Any, ctx: SyncContext) -> Any:
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
def bad_result(input: Any) -> Any:
    return object()


@flow("model", emits=[])
def model(order: Order) -> Any:
    return [type(order).__name__, order.id, order.total]


@flow("bad-model", emits=["order.made"])
def bad_model(input: Any, ctx: SyncContext) -> None:
    ctx.emit("order.made", {"id": "seven"})


@step(flow="bad-model", on="order.made", emits=[])
def takes(order: Order) -> int:
    return order.id


@flow("fails", emits=[])
def fails(input: Any) -> None:
    raise PaymentError("no money left")


@flow("recovers", emits=["tried"], retry={"attempts": 3, "backoff": FIXED})
def recovers(input: Any, ctx: SyncContext) -> int:
    ctx.emit("tried", ctx.attempt)
    if ctx.attempt < 3:
        raise ConnectionError("busy")
    return ctx.attempt


@flow("permanent", emits=[], retry=5)
def permanent(input: Any, ctx: SyncContext) -> None:
    raise Permanent(f"not again after attempt {ctx.attempt}")


@flow("later", emits=[], retry=2)
def later(input: Any, ctx: SyncContext) -> int:
    if ctx.attempt == 1:
        raise Retry("soon", after="2h")
    return ctx.attempt


@flow("selective", emits=[], retry={"attempts": 5, "backoff": FIXED, "retriable_errors": ["LookupError"]})
def selective(input: Any, ctx: SyncContext) -> None:
    if ctx.attempt == 1:
        raise PaymentError("is a LookupError")
    raise ValueError(f"attempt {ctx.attempt}")


@job(queue="runner-api")
def limited(input: Any, ctx: SyncContext) -> int:
    note(input, "called")
    if count(input, "called") == 1:
        raise RateLimited("1h", "quota")
    return ctx.attempt


@flow("emits", emits=["order.paid"])
def emits(input: Any, ctx: SyncContext) -> str:
    ctx.emit("order.paid", {"id": 7, "name": "Zoë"}, tags=["audit", "eu"])
    return "first"


@step(flow="emits", on="order.paid", emits=[])
def ship(event: Any, ctx: SyncContext) -> Any:
    return event


@flow("undeclared", emits=["order.paid"])
def undeclared(input: Any, ctx: SyncContext) -> None:
    ctx.emit("order.lost", 1)
    _sleep(0.2)


@flow("live", emits=[])
def live(input: Any, ctx: SyncContext) -> None:
    ctx.log("charging", cents=5)
    ctx.log.warning("slow")
    ctx.progress(40)
    ctx.partial({"text": "a"})


@flow("state", emits=["stored"])
def state(input: Any, ctx: SyncContext) -> Any:
    missing = ctx.state.get("cart", "none")
    ctx.state.set("cart", {"n": 1})
    ctx.state.set("gone", 1)
    ctx.state.delete("gone")
    ctx.shared.set(f"seen-{ctx.run_id}", True, ttl="1h")
    count = [ctx.state.patch("count", lambda n: (n or 0) + 1) for _ in range(3)]
    ctx.emit("stored")
    return [missing, ctx.state.get("cart"), count, sorted(ctx.state.list())]


@step(flow="state", on="stored", emits=[])
def reads(input: Any, ctx: SyncContext) -> Any:
    seen = ctx.shared.get(f"seen-{ctx.run_id}")
    return [ctx.state.get("cart"), ctx.state.get("gone"), ctx.state.get("count"), seen]


@flow("once", emits=[], retry={"attempts": 3, "backoff": FIXED})
def once(input: Any, ctx: SyncContext) -> Any:
    def charge(cents: int) -> dict[str, int]:
        note(input, "charge")
        return {"charged": cents}

    paid = ctx.run("charge", charge, 5)
    values = [ctx.uuid(), ctx.random(), ctx.now().isoformat()]
    again = ctx.state.patch("tries", lambda n: (n or 0) + 1)
    note(input, str(values))
    if ctx.attempt < 3:
        ctx.run("barrier", lambda: ctx.attempt)  # values are recorded with the next commit
        raise ConnectionError("after the charge")
    return [paid, again]


@flow("call-fails", emits=[])
def call_fails(input: Any, ctx: SyncContext) -> str:
    def broken() -> None:
        note(input, "try")
        raise ValueError("no")

    try:
        ctx.run("broken", broken, retry={"attempts": 2, "backoff": FIXED})
    except CallFailed as problem:
        return str(problem)
    return "it did not fail"


@flow("naps", emits=["before"])
def naps(input: Any, ctx: SyncContext) -> str:
    ctx.emit("before")
    ctx.log("going to wait")
    ctx.wait.time("24h")
    note(input, "woke")
    return ctx.now().isoformat()


@flow("hears", emits=[])
def hears(input: Any, ctx: SyncContext) -> Any:
    try:
        event = ctx.wait.event("runner.paid", match={"id": 7}, timeout="1h")
    except AwaitTimeout:
        return "timed out"
    return event.data


@flow("gives-up", emits=[], retry=3)
def gives_up(input: Any, ctx: SyncContext) -> Any:
    ctx.wait.event("runner.never", timeout="1h")


@flow("asks", emits=["asked"])
def asks(input: Any, ctx: SyncContext) -> Any:
    trigger = ctx.wait.trigger("approval", timeout="1h")
    ctx.run("tell", lambda: note(input, trigger.token))
    return [trigger.url.endswith(trigger.token), trigger.wait()]


@flow("joins", emits=[])
def joins(input: Any, ctx: SyncContext) -> Any:
    branch = ctx.branch
    return (
        ctx.all(
            [branch.run("one", lambda: 1), branch.time("1h", name="pause"), branch.event("runner.paid", name="paid")]
        )
        and "all"
    )


@flow("branches", emits=[])
def branches(input: Any, ctx: SyncContext) -> Any:
    def did(what: str) -> str:
        note(input, what)
        return what

    with ThreadPoolExecutor(3) as pool:
        names = ("a", "b", "c")
        first = dict(zip(names, pool.map(lambda name: ctx.run(f"{name} one", did, f"{name}1"), names), strict=True))
    waits = {name: ctx.branch.event(f"runner.{name}") for name in ("b", "a")}
    ctx.all([waits["b"]])
    second_b = ctx.run("b two", did, "b2")
    ctx.all([waits["a"]])
    return [f"{first['a']} {ctx.run('a two', did, 'a2')}", f"{first['b']} {second_b}", first["c"]]


@flow("reorders", emits=["order.a", "order.b", "order.c"])
def reorders(input: Any, ctx: SyncContext) -> Any:
    """Branches that never overlap, in another order when the handler runs again."""

    def branch(name: str) -> None:
        ctx.run(name, note, input, name)
        ctx.emit(f"order.{name}", name)
        ctx.state.set(name, name)

    note(input, "turn")
    for name in "ab" if count(input, "turn") == 1 else "cba":
        with ThreadPoolExecutor(1) as pool:
            pool.submit(branch, name).result()
    ctx.wait.event("runner.go")
    return "reordered"


@flow("swaps", emits=[])
def swaps(input: Any, ctx: SyncContext) -> Any:
    """Calls one after the other, in another order when the handler runs again."""
    note(input, "turn")
    for name in "ab" if count(input, "turn") == 1 else "ba":
        ctx.run(name, note, input, name)
    ctx.wait.event("runner.go")


@flow("races", emits=[])
def races(input: Any, ctx: SyncContext) -> Any:
    calls: dict[str, Any] = {"event": ctx.branch.event("runner.never"), "time": ctx.branch.time("1h", name="late")}
    return (ctx.first(calls))[0]


@flow("two-sites", emits=[])
def two_sites(input: Any, ctx: SyncContext) -> None:
    ctx.run("same", lambda: 1)
    ctx.run("same", lambda: 2)


@flow("hangs", emits=[], timeout="300ms")
def hangs(input: Any) -> None:
    _sleep(60)


@flow("runs-long", emits=[])
def runs_long(input: Any, ctx: SyncContext) -> None:
    note(input, "started")
    try:
        _sleep(60)
    finally:
        note(input, "stopped")


@job(queue="runner-child")
def child(n: int) -> int:
    return n * 10


@job(queue="runner-parent")
def parent(input: Any, ctx: SyncContext) -> Any:
    return sorted((ctx.children_values()).values())


@flow("launches", emits=[], retry={"attempts": 3, "backoff": FIXED})
def launches(input: Any, ctx: SyncContext) -> Any:
    note(input, "attempt")
    first = ctx.enqueue(child, 4, priority=2)
    run = ctx.start(echo, "hi", tags={"by": "launches"})
    ctx.wait.time("1h")
    second = ctx.enqueue("runner-child", 5, delay="1h")
    if count(input, "attempt") < 3:
        raise LookupError("once more")
    return [first, run, second]


@job(queue="runner-launch", retry={"attempts": 2, "backoff": FIXED})
def launch(input: Any, ctx: SyncContext) -> Any:
    ids = [ctx.enqueue("runner-child", 6, key="six"), ctx.start("echo", "from a job")]
    if ctx.attempt == 1:
        raise LookupError("once more")
    return ids


@flow("bad-launch", emits=[])
def bad_launch(input: Any, ctx: SyncContext) -> Any:
    return ctx.start("ecko", 1)


@flow("calls", emits=[])
def calls(input: Any, ctx: SyncContext) -> Any:
    one = ctx.call(echo, "hi")
    many = ctx.call_many("echo", [1, 2])
    both = ctx.all([ctx.branch.call("echo", "a", name="a"), ctx.branch.call("echo", "b", name="b")])
    try:
        ctx.call("permanent")
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
