"""Baseline without an engine: BullMQ's scripts, sent in batches on one socket, and XADD.

A step here records nothing: it adds the next job and finishes the current one, and that call fetches another.
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
BODY = b'{"kind":"order.seen","data":' + PAYLOAD + b"}"  # as long as the body that Penstock writes
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


class Connection:
    """One socket. Commands are sent together; replies come back in order."""

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
        values = (pack([BASE, f"j{id}", "noop", now]), PAYLOAD, pack({"attempts": 1}))
        return self.script("addStandardJob-9", [BASE + name for name in names], *values)

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


def steps(connection: Connection, n: int, batch: int) -> Iterator[float]:
    """Run n steps. Yield the CPU time of this process for each batch."""
    ids = count()
    connection.send([connection.add(next(ids)) for _ in range(batch)])
    held = [reply[1].decode() for reply in connection.send([connection.take() for _ in range(batch)])]
    for _ in range(max(1, n // batch)):
        since = time.process_time()
        commands = [command for job in held for command in (connection.add(next(ids)), connection.finish(job))]
        held = [reply[1].decode() for reply in connection.send(commands)[1::2]]
        yield time.process_time() - since


def flows3(case: Case) -> Metrics:
    connection = Connection(case.url)
    total = case.n * 3
    before, since = cpu_us(case.url), time.monotonic()
    cpu = list(steps(connection, total, BATCH))
    span, done = time.monotonic() - since, len(cpu) * BATCH
    return {
        "per_s": done / 3 / span,
        "steps_per_s": done / span,
        "cpu_us": sum(cpu) / done * 1e6,
        "server_us": (cpu_us(case.url) - before) / done,
    }


def jobs(case: Case) -> Metrics:
    """Add all jobs, then take and finish them `level` at a time."""
    connection = Connection(case.url)
    before = cpu_us(case.url)
    total, level = max(case.n, 2 * case.level), case.level
    for start in range(0, total, BATCH):
        connection.send([connection.add(id) for id in range(start, min(total, start + BATCH))])
    since, done = time.monotonic(), 0
    held = [reply[1].decode() for reply in connection.send([connection.take() for _ in range(level)])]
    while held:
        done += len(held)
        replies = connection.send([connection.finish(job) for job in held])
        held = [reply[1].decode() for reply in replies if isinstance(reply, list) and reply[1]]
    return {"per_s": done / (time.monotonic() - since), "server_us": (cpu_us(case.url) - before) / done}


def spec(case: Case) -> Metrics:
    """Measure the bytes of an event written with XADD only, in streams of 100."""
    before = bytes_used(case.url)
    with connect(case.url) as redis:
        for stream in range(20):
            for _ in range(100):
                redis.xadd(f"size{stream}", {"b": BODY})
    return {"event_bytes": (bytes_used(case.url) - before) / 2000, "body_bytes": len(BODY)}


main(about, {"jobs": jobs, "flows3": flows3, "spec": spec})
