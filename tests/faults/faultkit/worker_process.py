"""A worker process for the kill suites: `python -m faultkit.worker_process <url> [options]`.

It imports everything, waits for a line on standard input, then works. With `--starts` it also starts flows and records
which of them were acknowledged, because the process of a caller can die as well.
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

from . import worker_calls, worker_waits
from .line_log import LineLog
from .worker_flows import FLOWS, HANDLERS, TREE_HANDLERS


async def work(options: argparse.Namespace) -> None:
    app = App(options.url, handlers=[*HANDLERS, *TREE_HANDLERS, *worker_waits.HANDLERS, *worker_calls.HANDLERS])
    async with app:
        if options.receipts:
            _record_receipts(app, LineLog(options.receipts))
        if options.starts:
            starting = asyncio.create_task(_start_flows(app, options.starts, LineLog(options.acks)))
            starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        await app.workers.run(options.queues.split(",") if options.queues else None, concurrency=options.concurrency)


async def _start_flows(app: App, count: int, acks: LineLog) -> None:
    for n in range(count):
        run = await app.start(FLOWS[n % 3], {"by": os.getpid()}, key=f"own-{os.getpid()}-{os.urandom(4).hex()}")
        acks.append(run)
        await asyncio.sleep(0.05)


def _record_receipts(app: App, log: LineLog) -> None:
    """Record the receipt of every commit that ends an attempt."""
    committer: Any = app._committer
    store = committer._store
    commit = store.commit

    async def recording_commit(units: Any, ask: Any = None) -> Any:
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
                log.append(os.getpid(), unit.claim.job, unit.claim.attempt, kind)
        return reply

    store.commit = recording_commit


def _apply_mutant(mutant: str) -> None:
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
        _apply_mutant(options.mutant)
    print("loaded", flush=True)
    if not sys.stdin.readline():
        return  # the test ended without needing this process
    asyncio.run(work(options))


if __name__ == "__main__":
    main()
