"""No engine at all: BullMQ's own scripts, sent in batches on one socket, and XADD alone.

A step here is what is left when nothing is recorded: the next job is added, the job in hand is finished, and that call
fetches another one.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from importlib import resources
from importlib.metadata import version
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import hiredis
import msgspec
from entry import Case, Metrics, main
from redis_info import bytes_used, connect, cpu_us

BASE = "bull:noop:"
PAYLOAD = b'{"orderId":4711,"customer":"c-1042","items":[{"sku":"a-1","quantity":2}]}'
BODY = b'{"kind":"order.seen","data":' + PAYLOAD + b"}"  # as long as ours
BATCH = 100
pack = msgspec.msgpack.encode
HELD = {"token": "t", "lockDuration": 30_000}
DONE = pack({**HELD, "keepJobs": {"count": -1}, "attempts": 1, "maxMetricsSize": ""})


def about() -> dict[str, str]:
    return {
        "name": "bare BullMQ scripts",
        "version": version("bullmq"),
        "settings": f"no engine, no events: addStandardJob and moveToFinished with its fetch, {BATCH} at a time",
    }


class Line:
    """One socket; commands go out together and their replies come back in order."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._socket = socket.create_connection((where.hostname, where.port or 6379))
        self._reader = hiredis.Reader()
        self._loaded = {name: self._load(name) for name in ("addStandardJob-9", "moveToActive-11", "moveToFinished-14")}

    def _load(self, name: str) -> bytes:
        text = resources.files("bullmq").joinpath("commands", f"{name}.lua").read_text("utf-8")
        return bytes(self.send([("SCRIPT", "LOAD", text)])[0])

    def script(self, name: str, keys: list[str], *values: Any) -> tuple[Any, ...]:
        return ("EVALSHA", self._loaded[name], len(keys), *keys, *values)

    def send(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        self._socket.sendall(b"".join(hiredis.pack_command(command) for command in commands))
        replies: list[Any] = []
        while len(replies) < len(commands):
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._socket.recv(1 << 20))
            elif isinstance(reply, hiredis.HiredisError):
                raise SystemExit(f"Redis refused: {reply}")
            else:
                replies.append(reply)
        return replies

    def add(self, id: int) -> tuple[Any, ...]:
        now = int(time.time() * 1000)
        names = ("wait", "paused", "meta", "id", "completed", "delayed", "active", "events", "marker")
        given = (pack([BASE, f"j{id}", "noop", now]), PAYLOAD, pack({"attempts": 1}))
        return self.script("addStandardJob-9", [BASE + name for name in names], *given)

    def take(self) -> tuple[Any, ...]:
        names = (
            "wait",
            "active",
            "prioritized",
            "events",
            "stalled",
            "limiter",
            "delayed",
            "paused",
            "meta",
            "pc",
            "marker",
        )
        keys = [BASE + name for name in names]
        return self.script("moveToActive-11", keys, BASE, int(time.time() * 1000), pack(HELD))

    def finish(self, job: str) -> tuple[Any, ...]:
        names = ("wait", "active", "prioritized", "events", "stalled", "limiter", "delayed", "paused", "meta", "pc")
        more = ("completed", job, "metrics:completed", "marker")
        keys = [BASE + name for name in (*names, *more)]
        now = int(time.time() * 1000)
        return self.script("moveToFinished-14", keys, job, now, "returnvalue", "1", "completed", "1", BASE, DONE, "")


def steps(line: Line, n: int, batch: int) -> Iterator[float]:
    """Works n steps off; gives the processor time of each batch on our side."""
    ids = count()
    line.send([line.add(next(ids)) for _ in range(batch)])
    held = [reply[1].decode() for reply in line.send([line.take() for _ in range(batch)])]
    for _ in range(max(1, n // batch)):
        since = time.process_time()
        commands = [command for job in held for command in (line.add(next(ids)), line.finish(job))]
        held = [reply[1].decode() for reply in line.send(commands)[1::2]]
        yield time.process_time() - since


def flows3(case: Case) -> Metrics:
    line = Line(case.url)
    total = case.n * 3
    before, since = cpu_us(case.url), time.monotonic()
    cpu = list(steps(line, total, BATCH))
    span, done = time.monotonic() - since, len(cpu) * BATCH
    return {
        "per_s": done / 3 / span,
        "steps_per_s": done / span,
        "cpu_us": sum(cpu) / done * 1e6,
        "server_us": (cpu_us(case.url) - before) / done,
    }


def jobs(case: Case) -> Metrics:
    """As many at a time as the level says; all are there before the first is taken."""
    line = Line(case.url)
    before = cpu_us(case.url)
    total, level = max(case.n, 2 * case.level), case.level
    for start in range(0, total, BATCH):
        line.send([line.add(id) for id in range(start, min(total, start + BATCH))])
    since, done = time.monotonic(), 0
    held = [reply[1].decode() for reply in line.send([line.take() for _ in range(level)])]
    while held:
        done += len(held)
        replies = line.send([line.finish(job) for job in held])
        held = [reply[1].decode() for reply in replies if isinstance(reply, list) and reply[1]]
    return {"per_s": done / (time.monotonic() - since), "server_us": (cpu_us(case.url) - before) / done}


def spec(case: Case) -> Metrics:
    """Bytes of an event by XADD alone, in streams of a hundred."""
    before = bytes_used(case.url)
    with connect(case.url) as redis:
        for stream in range(20):
            for _ in range(100):
                redis.xadd(f"size{stream}", {"b": BODY})
    return {"event_bytes": (bytes_used(case.url) - before) / 2000, "body_bytes": len(BODY)}


main(about, {"jobs": jobs, "flows3": flows3, "spec": spec})
