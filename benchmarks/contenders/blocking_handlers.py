"""One process of `benchmarks.blocking`: adds jobs, or works on them. Each handler blocks, then counts."""

from __future__ import annotations

import mmap
import struct
import sys
import threading
import time
from collections.abc import Callable

THREADS, BLOCKED_S = 8, 0.005
_COUNT = struct.Struct("q")


def _make_handler(counts: str, process: int) -> Callable[[int], None]:
    lock = threading.Lock()
    with open(counts, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    done = 0

    def block(_: int) -> None:
        nonlocal done
        time.sleep(BLOCKED_S)
        with lock:
            done += 1
            _COUNT.pack_into(memory, process * _COUNT.size, done)

    return block


async def _run_penstock(url: str, counts: str, action: str, number: int) -> None:
    from penstock import App, job

    handler = _make_handler(counts, number if action == "work" else 0)

    def block(n: int) -> None:
        handler(n)

    async with App(url, handlers=[job(queue="blocking")(block)]) as app:
        if action == "add":
            await app.jobs.enqueue_many("blocking", list(range(number)))
        else:
            await app.workers.run(concurrency=THREADS)


def _run_dramatiq(url: str, counts: str, action: str, number: int) -> None:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=url)
    dramatiq.set_broker(broker)
    actor = dramatiq.actor(_make_handler(counts, number if action == "work" else 0), actor_name="block", broker=broker)
    if action == "add":
        for n in range(number):
            actor.send(n)
    else:
        dramatiq.Worker(broker, worker_threads=THREADS).start()
        threading.Event().wait()


def _run_engine(engine: str, url: str, counts: str, action: str, number: str) -> None:
    if engine == "dramatiq":
        _run_dramatiq(url, counts, action, int(number))
        return
    import uvloop

    uvloop.run(_run_penstock(url, counts, action, int(number)))


if __name__ == "__main__":
    _run_engine(*sys.argv[1:])
