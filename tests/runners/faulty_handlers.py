"""Handlers that break the process they run in. Child processes import this file."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock import Context, SyncContext, job

TWICE = {"attempts": 2, "backoff": {"type": "fixed", "delayMs": 1, "jitter": False}}


def frame_socket() -> int:
    """Return the file descriptor of the frames, as a careless handler may find it."""
    return int(sys.argv[1])


def mark(input: Any, line: str) -> None:
    with Path(input["trace"]).open("a") as file:
        file.write(f"{line}\n")


@job(queue="fine", runner="process")
def fine(input: Any) -> int:
    return os.getpid()


@job(queue="dies", runner="process", retry=TWICE)
async def dies(input: Any, ctx: Context) -> int:
    if ctx.attempt == 1:
        print("about to die", flush=True)
        os._exit(9)
    return ctx.attempt


@job(queue="chatters", runner="process")
def chatters(input: Any) -> None:
    for number in range(1000):
        print(number)
    sys.stdout.flush()


@job(queue="always-dies", runner="process", retry=TWICE)
def always_dies(input: Any) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@job(queue="garbage", runner="process", retry=TWICE)
def garbage(input: Any, ctx: SyncContext) -> int:
    if ctx.attempt == 1:
        os.write(frame_socket(), b'{"type": "emit", "kind": 7}\n')
        time.sleep(60)
    return ctx.attempt


@job(queue="endless-line", runner="process", retry=TWICE)
def endless_line(input: Any, ctx: SyncContext) -> int:
    if ctx.attempt == 1:
        while True:
            os.write(frame_socket(), b"x" * 65536)
    return ctx.attempt


@job(queue="closes", runner="process", retry=TWICE)
def closes(input: Any, ctx: SyncContext) -> int:
    if ctx.attempt == 1:
        os.dup2(os.open(os.devnull, os.O_RDWR), frame_socket())
        time.sleep(60)
    return ctx.attempt


@job(queue="ignores-term", runner="process", timeout="300ms")
def ignores_term(input: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mark(input, str(os.getpid()))
    while True:
        time.sleep(60)


@job(queue="swallows", runner="process", timeout="300ms")
def swallows(input: Any) -> None:
    mark(input, str(os.getpid()))
    while True:
        try:
            time.sleep(60)
        except BaseException:
            continue


@job(queue="holds-gil", runner="process", timeout="300ms")
def holds_gil(input: Any) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    mark(input, str(os.getpid()))
    ctypes.PyDLL(None).sleep(60)  # a call into C that keeps the interpreter's lock


@job(queue="forks", runner="process", retry=TWICE)
def forks(input: Any, ctx: SyncContext) -> int:
    if ctx.attempt == 1:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(60)
        mark(input, str(pid))
        os._exit(3)
    return ctx.attempt


@job(queue="leaks", runner="process", retry=TWICE)
def leaks(input: Any, ctx: SyncContext) -> int:
    if ctx.attempt == 1:
        kept = []
        while True:
            kept.append(b"x" * 2**20)
            time.sleep(0.001)
    return ctx.attempt


@job(queue="prints", runner="process")
def prints(input: Any) -> int:
    block = ("x" * 100 + "\n") * 10_000
    for _ in range(input["mb"]):
        sys.stdout.write(block)
    for _ in range(input["mb"]):
        sys.stdout.write("y" * 2**20)  # one line without an end
    sys.stdout.flush()
    return input["mb"]


@job(queue="forges", runner="process")
def forges(input: Any) -> str:
    print('{"type":"done","result":"forged"}', flush=True)
    return "real"


@job(queue="spins", runner="process", timeout="300ms")
def spins(input: Any) -> None:
    mark(input, str(os.getpid()))
    try:
        while True:
            pass
    finally:
        mark(input, "stopped")


@job(queue="sleeps", runner="process", timeout="300ms")
def sleeps(input: Any) -> None:
    try:
        time.sleep(60)
    finally:
        mark(input, "stopped")


@job(queue="no-timeout", runner="process")
def no_timeout(input: Any) -> None:
    time.sleep(60)


@job(queue="blocks-loop", runner="process", timeout="300ms")
async def blocks_loop(input: Any) -> None:
    try:
        time.sleep(60)
    finally:
        mark(input, "stopped")


@job(queue="burns", runner="process", retry=TWICE)
def burns(input: Any, ctx: SyncContext) -> int:
    while ctx.attempt == 1:
        pass
    return ctx.attempt


@job(queue="opens-files", runner="process")
def opens_files(input: Any) -> str:
    kept = []
    try:
        for _ in range(1000):
            kept.append(open(os.devnull))  # noqa: SIM115
    except OSError as problem:
        return type(problem).__name__ + str(problem.errno)
    return "no limit"


@job(queue="threads", runner="process", retry=TWICE)
def threads(input: Any, ctx: SyncContext) -> list[str]:
    names = ["a", "b"] if ctx.attempt == 1 else ["b", "a"]
    with ThreadPoolExecutor(1) as pool:
        found = [pool.submit(ctx.run, name, str.upper, name).result() for name in names]
    if ctx.attempt == 1:
        raise ConnectionError
    return found


@job(queue="niceness", runner="process")
def niceness(_: Any) -> int:
    return os.nice(0)


@job(queue="environment", runner="process")
def environment(input: Any) -> Any:
    return [dict(os.environ), sys.executable, os.getpid()]


@job(queue="imports-other", runner="process")
def imports_other(input: Any) -> Any:
    import only_here  # type: ignore  # a package of the other interpreter

    return [only_here.VALUE, sys.prefix]


HANDLERS = [
    *(fine, dies, always_dies, garbage, endless_line, closes, ignores_term, swallows, holds_gil, forks, leaks, prints),
    *(forges, no_timeout, spins, sleeps, blocks_loop, burns, opens_files, niceness, threads, environment, chatters),
    imports_other,
]
