"""Work of one run that grows: its steps, its fan-out, its waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import App, Context, flow, step

from .reading import Meter

LIMIT = "10m"


def _make_chain(count: int) -> list[Callable[..., Any]]:
    """Return a flow of steps that start one after the other."""

    @flow("chain", emits=["done.s0"])
    async def first(ctx: Context) -> None:
        ctx.emit("done.s0", 1)

    steps: list[Callable[..., Any]] = [first]
    for n in range(1, count):

        def make(n: int = n) -> Callable[..., Any]:
            emits = [f"done.s{n}"] if n < count - 1 else []

            @step(name=f"s{n}", on=f"done.s{n - 1}", emits=emits, flow="chain")
            async def one(_: Any, ctx: Context) -> None:
                if emits:
                    ctx.emit(f"done.s{n}", 1)

            return one

        steps.append(make())
    return steps


async def chain(meter: Meter, url: str, size: int) -> None:
    """A chain of distinct steps, one run at a time."""
    runs = max(2_000 // size, 1)
    async with App(url, handlers=_make_chain(size)) as app, app.workers.background(concurrency=10):
        with meter.each(runs * size):
            for _ in range(runs):
                await app.result(await app.start("chain"), timeout=LIMIT)


def _make_fan_out(*, result: Any = None, is_compensated: bool = False, fails: bool = False) -> list[Any]:
    @flow("fan", emits=["item"])
    async def fan(count: int, ctx: Context) -> None:
        for n in range(count):
            ctx.emit("item", {"n": n, "of": count})

    @step(on="item", mode="each", flow="fan", emits=["last"], compensation="undo" if is_compensated else None)
    async def handle(item: dict[str, int], ctx: Context) -> Any:
        if fails and item["n"] == item["of"] - 1:
            ctx.emit("last", 1)
        return result

    @step(flow="fan")
    async def undo(_: Any) -> None: ...

    @step(on="last", flow="fan", retry=1)
    async def last() -> None:
        raise RuntimeError("no")

    return [fan, handle, *([undo] if is_compensated else []), *([last] if fails else [])]


async def _fan_out(meter: Meter, url: str, size: int, handlers: list[Any]) -> None:
    runs = max(2_000 // size, 1)
    async with App(url, handlers=handlers) as app, app.workers.background(concurrency=50):
        with meter.each(runs * size):
            for _ in range(runs):
                await app.runs.wait(await app.start("fan", size), timeout=LIMIT)


async def fan_out(meter: Meter, url: str, size: int) -> None:
    """A fan-out of one step that returns nothing."""
    await _fan_out(meter, url, size, _make_fan_out())


async def fan_out_results(meter: Meter, url: str, size: int) -> None:
    """A fan-out whose instances return something: the run's result is a list of it."""
    await _fan_out(meter, url, size, _make_fan_out(result={"done": True}))


async def fan_out_compensation(meter: Meter, url: str, size: int) -> None:
    """A fan-out of a step that has a compensation, which is not needed."""
    await _fan_out(meter, url, size, _make_fan_out(result={"done": True}, is_compensated=True))


async def fan_out_undone(meter: Meter, url: str, size: int) -> None:
    """A fan-out and the compensation of each of its instances."""
    await _fan_out(meter, url, size, _make_fan_out(result={"done": True}, is_compensated=True, fails=True))


@flow("waits")
async def waiting(count: int, ctx: Context) -> int:
    for _ in range(count):
        await ctx.wait.time(0.001)
    return count


async def waits(meter: Meter, url: str, size: int) -> None:
    """Waits of one handler, one after the other."""
    runs = max(500 // size, 1)
    async with App(url, handlers=[waiting]) as app, app.workers.background(concurrency=10):
        with meter.each(runs * size):
            for _ in range(runs):
                assert await app.result(await app.start("waits", size), timeout=LIMIT) == size
