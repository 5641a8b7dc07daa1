"""A second process on the same file: `python child.py write|claim|time PATH`. It prints what it committed."""

from __future__ import annotations

import asyncio
import sys

from penstock.stores.sqlite import SqliteStore
from penstock.testing.contracts.samples import apply, claim_one, event, job, unit


async def write(store: SqliteStore) -> None:
    """Commit events and jobs, one unit after another, until killed."""
    n = 0
    while True:
        await apply(store, unit(events=[event(data=n)], jobs=[job(f"j{n}", "written")]))
        print(n, flush=True)
        n += 1


async def claim(store: SqliteStore) -> None:
    """Claim one job and hold it until killed."""
    one = await claim_one(store, lease="1m")
    print(one.job, one.attempt, flush=True)
    await asyncio.Event().wait()


async def time(store: SqliteStore) -> None:
    """Print the time of the store's clock."""
    print(store.clock.now_ms(), flush=True)
    await store.close()


async def main(verb: str, path: str) -> None:
    store = SqliteStore(path)
    await store.open()
    await {"write": write, "claim": claim, "time": time}[verb](store)


asyncio.run(main(*sys.argv[1:]))
