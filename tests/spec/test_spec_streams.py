"""Items of the specifications about event streams: between processes, under load and in memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from http_server import serve_app

STREAM = "nq:entity:order-7"
PATH = "/api/_events/entity/order-7/stream?after="


async def read_live(client: httpx.AsyncClient, count: int) -> list[Any]:
    """Return the data of the first events that a server sends."""
    found: list[Any] = []
    async with asyncio.timeout(20), client.stream("GET", PATH) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                found.append(json.loads(line[6:])["data"])
            if len(found) == count:
                break
    return found


@pytest.mark.spec("001-3.2", "003-4.4")
async def test_every_instance_sends_the_events_of_all_to_its_clients(shared: Any) -> None:
    async with shared() as here, shared() as there, serve_app(here) as one, serve_app(there) as two:
        reading = [asyncio.create_task(read_live(client, 6)) for client in (one, two, one)]
        for n in range(3):
            await here.events.append(STREAM, "order.changed", f"here {n}")
            await there.events.append(STREAM, "order.changed", f"there {n}")
        wanted = [f"{app} {n}" for n in range(3) for app in ("here", "there")]
        assert await asyncio.gather(*reading) == [wanted] * 3


@pytest.mark.spec("003-12.2")
async def test_a_slow_reader_holds_a_bounded_number_of_events(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal carries no event: what a reader has not asked for stays in the store."""
    async with app() as one:
        held = 0
        read = one.store.read  # readers of one stream share it

        async def count(*args: Any, **options: Any) -> Any:
            nonlocal held
            found = await read(*args, **options)
            held += len(found)
            return found

        monkeypatch.setattr(one.store._shared_reads, "_read", count)
        events = one.events.subscribe(STREAM)
        await one.events.append(STREAM, "order.changed", 0)
        assert (await anext(events)).data == 0
        for first in range(1, 2001, 500):
            await asyncio.gather(*(one.events.append(STREAM, "order.changed", n) for n in range(first, first + 500)))
        assert (await anext(events)).data is not None
        assert held <= 1100, "a reader that is far behind holds one page of events"
        for _ in range(1999):
            await anext(events)
        assert held == 2001
        await events.aclose()


MEMORY = """
import asyncio, sys
from penstock import App

STREAMS, EVENTS = 1000, 50

async def main(url):
    async with App(url, handlers=[]) as app:
        for n in range(0, STREAMS, 10):
            streams = [f"nq:entity:e{n + more}" for more in range(10)]
            await asyncio.gather(*(app.events.append(one, "changed", i) for i in range(EVENTS) for one in streams))
        for n in range(STREAMS):
            assert await app.events.state("entity", f"e{n}", lambda sum, event: sum + event.data, 0) == sum(range(EVENTS))
        snapshots = app._snapshots.size[0]
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    print(snapshots, peak // 1024)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.spec("003-14.5")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_keeps_the_state_of_1000_streams_is_small(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEMORY, f"sqlite:///{tmp_path}/store.db"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    snapshots, megabytes = map(int, done.stdout.split())
    assert snapshots == 1000, "the state of each stream is kept, so that the next look folds only new events"
    assert megabytes < 100
