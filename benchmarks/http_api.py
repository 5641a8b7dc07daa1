"""Measure the HTTP API on a real server: `python -m benchmarks.http_api [FIGURE …]`, all of them by default.

    ready      time until `penstock serve` accepts requests                                          goal: < 1 s
    start      runs started per second on SQLite, 100 at a time, and the same FastAPI route with
               Celery's delay on Redis, in alternating rounds              goal: >= 1,500/s, p99 < 25 ms, 3 times
    exact      clients that disconnect at random: missing, repeated, out of order                    goal: 0
    rate       1,000 events/s to 500 clients: time from the writer to the client           goal: p99 < 100 ms
    stalled    memory that 50 clients cost which do not read                                     goal: <= 64 MB
    subscribe  time from the connection to the first event                                  goal: p99 < 50 ms
    reconnect  time to the snapshot of a run with 1 MB of partial output                         goal: <= 100 ms
    scrape     /api/_metrics of each store with 10 million finished jobs; --stores chooses            goal: < 50 ms

The server is another process. Run it on a quiet machine: the load average is printed before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

from penstock import App

from . import servers
from .http_clients import count_events, read_events, start_runs, subscribe
from .http_metrics import measure_scrape
from .http_server import describe, read_cpu, read_memory, serve, serve_celery

STREAM = "nq:entity:bench"
PATH = "/api/_events/entity/bench/stream"


async def write_events(url: str, count: int, per_second: int | None, size: int = 0) -> None:
    """Append numbered events, at a rate or as fast as they go."""
    text = "x" * size
    async with App(url, handlers=()) as app:
        start = time.perf_counter()
        for n in range(count):
            if per_second is not None:
                await asyncio.sleep(max(0.0, start + n / per_second - time.perf_counter()))
            await app.events.append(STREAM, "bench.event", {"n": n, "at": time.time(), "text": text})


async def measure_ready(args: argparse.Namespace) -> None:
    """Start the server five times; the first one may compile."""
    times = []
    for _ in range(5):
        async with serve(args.url) as bench:
            times.append(bench.ready_s)
    print(f"ready after {min(times[1:]):.2f} to {max(times[1:]):.2f} s, four starts (goal: < 1)")


async def measure_start(args: argparse.Namespace) -> None:
    """Start runs in alternating rounds: Penstock, Celery."""
    async with AsyncExitStack() as stack:
        bench = await stack.enter_async_context(serve(args.url))
        target = stack.enter_context(servers.open_target("redis", Path(tempfile.gettempdir())))
        celery = await stack.enter_async_context(serve_celery(target.reset()))
        served = {"Penstock": bench, "FastAPI with Celery's delay": celery}
        found: dict[str, list[tuple[float, list[float]]]] = {name: [] for name in served}
        cpu = dict.fromkeys(served, 0.0)
        for _ in range(args.rounds):
            for name, one in served.items():
                await start_runs(one.port, 200, 100)  # connections, threads and caches
                before = read_cpu(one.pid)
                found[name].append(await start_runs(one.port, args.requests, 100))
                cpu[name] += read_cpu(one.pid) - before
        paced = await start_runs(bench.port, args.requests, 100, per_second=1500)
    rates = {name: sorted(rate for rate, _ in rounds)[len(rounds) // 2] for name, rounds in found.items()}
    for name, rounds in found.items():
        cost = cpu[name] / args.rounds / args.requests * 1e6
        times = describe([t for _, times in rounds for t in times])
        print(f"{name}: {rates[name]:.0f} starts/s, {times}, {cost:.0f} µs of CPU in the server for each")
    ours, theirs = rates.values()
    print(f"ratio {ours / theirs:.1f} (goal: >= 3); median of {args.rounds} rounds (goal: >= 1500/s)")
    print(f"Penstock at 1500 starts/s over 100 connections: {describe(paced[1])} (goal: p99 < 25 ms)")


async def measure_exact(args: argparse.Namespace) -> None:
    """Count what clients that disconnect at random miss, repeat or reorder."""
    clients, events = args.clients, args.events
    async with serve(args.url) as bench:

        async def client(seed: int) -> list[int]:
            rng, cursor = random.Random(seed), ""
            seen: list[tuple[int, float]] = []
            while len(seen) < events:
                count = min(rng.randint(1, 2000), events - len(seen))
                async with subscribe(bench.port, f"{PATH}?after={cursor}") as reader:
                    cursor = await read_events(reader, count, seen, cursor)
            return [n for n, _ in seen]

        writing = asyncio.create_task(write_events(bench.url, events, None))
        found = await asyncio.gather(*map(client, range(clients)))
        await writing
    missing = sum(events - len(set(one)) for one in found)
    repeated = sum(len(one) - len(set(one)) for one in found)
    reordered = sum(a >= b for one in found for a, b in pairwise(one))
    print(f"{clients} clients x {events} events: {missing} missing, {repeated} repeated, {reordered} out of order")


async def measure_rate(args: argparse.Namespace) -> None:
    """Measure the time from the writer to 20 of the clients; the others only read."""
    clients, events, looked_at = 500, args.events, 20
    async with serve(args.url) as bench:
        seen: list[list[tuple[int, float]]] = [[] for _ in range(looked_at)]
        ready = asyncio.Semaphore(0)

        async def client(n: int) -> None:
            async with subscribe(bench.port, f"{PATH}?after=") as reader:
                ready.release()
                if n < looked_at:
                    await read_events(reader, events, seen[n], "")
                else:
                    await count_events(reader, events)

        reading = asyncio.gather(*map(client, range(clients)))
        for _ in range(clients):
            await ready.acquire()
        command = [sys.executable, "-m", "benchmarks.http_api", "--write", bench.url, "--events", str(events)]
        before = read_cpu(bench.pid)
        writer = await asyncio.create_subprocess_exec(*command)
        await reading
        await writer.wait()
        share = (read_cpu(bench.pid) - before) / (events / 1000)
    late = [one for times in seen for _, one in times]
    print(f"1000 events/s to {clients} clients: delivered after {describe(late)} (goal: p99 < 100 ms)")
    print(f"the server used {share:.0%} of a core for it")


async def measure_stalled(args: argparse.Namespace) -> None:
    """Let clients ask for 20 MB and not read."""
    clients = 50
    async with serve(args.url) as bench, AsyncExitStack() as stack:
        await write_events(bench.url, 5_000, None, size=4_000)
        async with subscribe(bench.port, f"{PATH}?after=") as reader:
            await count_events(reader, 5_000)
        before = read_memory(bench.pid)
        for _ in range(clients):
            reader = await stack.enter_async_context(subscribe(bench.port, f"{PATH}?after="))
            reader._transport.pause_reading()  # type: ignore[attr-defined]
        peak = before
        for _ in range(50):
            await asyncio.sleep(0.1)
            peak = max(peak, read_memory(bench.pid))
    print(f"{clients} stalled clients: {(peak - before) / 2**20:.1f} MB (goal: <= 64)")


async def measure_subscribe(args: argparse.Namespace) -> None:
    """Subscribe and wait for the newest event, ten clients at a time."""
    async with serve(args.url) as bench:
        await write_events(bench.url, 1_000, None)
        times: list[float] = []
        left = iter(range(1_000))

        async def client() -> None:
            for _ in left:
                start = time.perf_counter()
                async with subscribe(bench.port, f"{PATH}?backfill=1") as reader:
                    await read_events(reader, 1, [], "")
                times.append(time.perf_counter() - start)

        await asyncio.gather(*(client() for _ in range(10)))
    print(f"{len(times)} subscriptions, 10 at a time: first event after {describe(times)} (goal: p99 < 50 ms)")


async def measure_reconnect(args: argparse.Namespace) -> None:
    """Connect to a run that has written 1 MB of partial output, with a snapshot first."""
    async with serve(args.url, "--worker") as bench:
        async with App(bench.url, handlers=()) as app:
            await start_one(bench.port, "answer")
            while not (found := await app.runs.list(flow="answer", status="completed")):
                await asyncio.sleep(0.05)
        path, times, size = f"/api/_events/flow/{found[0].id}/stream?snapshot=true", [], 0
        for _ in range(20):
            start = time.perf_counter()
            async with subscribe(bench.port, path) as reader:
                while not (line := await reader.readline()).startswith(b"data: {"):
                    pass
                size = len(line)
            times.append(time.perf_counter() - start)
    print(f"snapshot of {size / 1e6:.2f} MB after {describe(times)} (goal: <= 100 ms)")


async def start_one(port: int, flow: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST /api/_flow/{flow}/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n".encode())
    assert b" 201 " in await reader.readuntil(b"\r\n")
    writer.close()


FIGURES: dict[str, Callable[[argparse.Namespace], Awaitable[None]]] = {
    "ready": measure_ready,
    "start": measure_start,
    "exact": measure_exact,
    "rate": measure_rate,
    "stalled": measure_stalled,
    "subscribe": measure_subscribe,
    "reconnect": measure_reconnect,
    "scrape": measure_scrape,
}


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.http_api", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURE", choices=[[], *FIGURES], default=[])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--events", type=int, default=5000)
    parser.add_argument("--requests", type=int, default=5000, help="starts in one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=10_000_000, help="finished jobs of `scrape`")
    stores = ["sqlite", "redis", "postgres"]
    parser.add_argument("--stores", nargs="+", choices=stores, default=stores, help="stores of `scrape`")
    parser.add_argument("--url", help="store of the server; default a SQLite file")
    parser.add_argument("--write", metavar="URL", help="write 1,000 events/s to this store; used by `rate`")
    args = parser.parse_args()
    if args.write is not None:
        await write_events(args.write, args.events, 1000)
        return
    print(f"load average {os.getloadavg()[0]:.1f}")
    for name in args.figures or FIGURES:
        await FIGURES[name](args)
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    asyncio.run(main())
