"""A worker process that is made to be killed: `python -m faultkit.worker <url> [options]`.

It loads everything, waits for a line on its standard input, then works. With `--starts` it also starts flows and notes
which of them were acknowledged, since the process of a caller can die as well.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from typing import Any

from penstock import App
from penstock.ports.unit import Committed, Fenced

from . import tree_trades, waiting_trades
from .notes import Line
from .trades import FLOWS, HANDLERS


async def work(options: argparse.Namespace) -> None:
    app = App(options.url, handlers=[*HANDLERS, *waiting_trades.HANDLERS, *tree_trades.HANDLERS])
    async with app:
        if options.receipts:
            _note_receipts(app, Line(options.receipts))
        if options.starts:
            keep = asyncio.create_task(_start(app, options.starts, Line(options.acks)))
            keep.add_done_callback(lambda task: task.cancelled() or task.exception())
        await app.workers.run(options.queues.split(",") if options.queues else None, concurrency=options.concurrency)


async def _start(app: App, count: int, acks: Line) -> None:
    for n in range(count):
        run = await app.start(FLOWS[n % 3], {"by": os.getpid()}, key=f"own-{os.getpid()}-{os.urandom(4).hex()}")
        acks(run)
        await asyncio.sleep(0.05)


def _note_receipts(app: App, note: Line) -> None:
    """Writes down what became of every attempt's end, and when it was sent."""
    committer: Any = app._committer
    store = committer._store
    commit = store.commit

    async def noted(units: Any, ask: Any = None) -> Any:
        reply = await commit(units, ask)
        for unit, receipt in zip(units, reply.receipts, strict=True):
            if unit.claim is not None and unit.outcome is not None:
                kind = (
                    "fenced"
                    if isinstance(receipt, Fenced)
                    else "committed"
                    if isinstance(receipt, Committed)
                    else "other"
                )
                note(os.getpid(), unit.claim.job, unit.claim.attempt, kind)
        return reply

    store.commit = noted


def _put_back(mutant: str) -> None:
    kind, _, name = mutant.rpartition(":")
    if kind == "redis":
        from . import redis_mutants

        redis_mutants.apply(name)
    else:
        from . import mutants

        mutants.apply(name)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--mutant")
    parser.add_argument("--starts", type=int, default=0)
    parser.add_argument("--acks")
    parser.add_argument("--receipts")
    parser.add_argument("--queues")
    parser.add_argument("--concurrency", type=int, default=10)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(process)d %(name)s %(message)s")
    if options.mutant:
        _put_back(options.mutant)
    print("loaded", flush=True)
    if not sys.stdin.readline():
        return  # nobody needs us
    asyncio.run(work(options))


if __name__ == "__main__":
    main()
