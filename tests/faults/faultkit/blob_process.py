"""A process that works, or sweeps, on large values and kills itself with SIGKILL: `python -m faultkit.blob_process …`.

The point is where it dies: `uploading` and `uploaded` are before and after the upload of an object, `committed` is after
a commit that refers to values, `fenced` is after the sweep's fence, and `deleted` after it has deleted an object.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import App, job
from penstock.stores.offload.sweep import ValueSweeper
from penstock.stores.offload.values import Values

LEASE = "500ms"


def make_chat(turns: int) -> list[dict[str, str]]:
    """Return a conversation that is the beginning of every longer one."""
    return [{"role": "user", "content": f"{n:06} " * 4000} for n in range(turns)]


def make_answer(chat: list[Any]) -> list[Any]:
    return [*chat, {"role": "assistant", "content": f"{len(chat)} turns " * 2000}]


@job(queue="chats", retry={"attempts": 3, "backoff": {"type": "fixed", "delay": "1ms", "jitter": False}})
async def answer(chat: list[Any], ctx: Any) -> list[Any]:
    """Return the conversation with one more turn; the durable call records it too."""
    longer: list[Any] = await ctx.run("think", lambda: make_answer(chat))
    return longer


def open_app(url: str, blobs: str) -> App:
    return App(url, handlers=[answer], blob_url=blobs, lease=LEASE)


def make_sweeper(app: Any) -> ValueSweeper:
    """Return a sweeper that takes values of any age."""
    return ValueSweeper(app.store._inner, app.store._objects, app.store.clock, app._runtime.new_unit_id, -1)


class Killer:
    """Kills this process when a point is reached for the `left`th time, and leaves a file that says so."""

    def __init__(self, mark: Path, point: str, left: int) -> None:
        self._mark = mark
        self._point = point
        self._left = left

    def reach(self, point: str) -> None:
        self._left -= point == self._point
        if self._left == 0:
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(self, call: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
        async def reaching(*args: Any, **options: Any) -> Any:
            self.reach(before)
            result = await call(*args, **options)
            self.reach(after)
            return result

        return reaching


def upload_after_commit(app: Any) -> None:
    """The mutant: a unit is committed with references to values that are uploaded next."""
    late: list[tuple[Any, ...]] = []
    put, commit = Values._put, app.store._inner.commit

    async def put_later(*args: Any) -> None:
        late.append(args)

    async def commit_first(*args: Any, **options: Any) -> Any:
        reply = await commit(*args, **options)
        while late:
            await put(*late.pop())
        return reply

    Values._put = put_later  # type: ignore[method-assign]
    app.store._inner.commit = commit_first


async def main(url: str, blobs: str, killer: Killer, mutant: bool) -> None:
    async with open_app(url, blobs) as opened:
        app: Any = opened
        objects, inner, sweeper = app.store._objects, app.store._inner, make_sweeper(app)
        objects.put = killer.wrap(objects.put, "uploading", "uploaded")
        objects.delete = killer.wrap(objects.delete, "fenced", "deleted")
        commit = inner.commit

        async def commit_units(units: Any, *more: Any) -> Any:
            reply = await commit(units, *more)
            writes = (write for unit in units for write in unit.state)
            if any(write.key.startswith("blob/ref/") and write.value is not None for write in writes):
                killer.reach("committed")
            return reply

        inner.commit = commit_units
        if mutant:
            upload_after_commit(app)
        async with app.workers.background(concurrency=2):
            while True:
                await sweeper.sweep_all()
                await asyncio.sleep(0.02)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("blobs")
    parser.add_argument("mark", type=Path)
    parser.add_argument("point")
    parser.add_argument("left", type=int)
    parser.add_argument("--mutant", action="store_true")
    args = parser.parse_args()
    asyncio.run(main(args.url, args.blobs, Killer(args.mark, args.point, args.left), args.mutant))
