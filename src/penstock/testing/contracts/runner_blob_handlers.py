"""The `async def` handlers of the third part of the runner contract: blobs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from penstock import Context, flow

FIXED = {"type": "fixed", "delayMs": 10, "jitter": False}
TWICE = {"attempts": 2, "backoff": FIXED}


def note(input: Any, line: str) -> None:
    with Path(input["trace"]).open("a") as file:
        file.write(f"{line}\n")


def show(blob: Any) -> list[Any]:
    return [blob.key, blob.size, blob.content_type, blob.sha256]


@flow("blobs", emits=[])
async def blobs(text: str, ctx: Context) -> Any:
    put = await ctx.blob.put("runner/a.csv", text)
    content = (await ctx.blob.get("runner/a.csv")).decode()
    info = await ctx.blob.info("runner/a.csv")
    deleted = [await ctx.blob.delete("runner/a.csv") for _ in range(2)]
    return [show(put), content, show(info), deleted]


async def letters() -> AsyncIterator[bytes]:
    for letter in (b"a", b"b", b"c"):
        yield letter * 600_000


@flow("blob-streams", emits=[])
async def blob_streams(input: Any, ctx: Context) -> Any:
    put = await ctx.blob.put("runner/large", letters())
    async for _ in ctx.blob.stream("runner/large"):
        break
    digest, parts = hashlib.sha256(), 0
    async for part in ctx.blob.stream("runner/large"):
        digest.update(part)
        parts += 1
    return [put.size, digest.hexdigest(), parts]


def broken() -> Iterator[bytes]:
    yield b"x" * 600_000
    raise ValueError("no rows")


@flow("blob-errors", emits=[])
async def blob_errors(kind: str, ctx: Context) -> Any:
    try:
        match kind:
            case "missing":
                await ctx.blob.get("none")
            case "key":
                await ctx.blob.put("../x", b"1")
            case "expires":
                await ctx.blob.url("a", expires="8d")
            case "chunks":
                await ctx.blob.put("a", broken())
    except Exception as problem:
        return [type(problem).__name__, getattr(problem, "code", None)]


@flow("blob-url", emits=[])
async def blob_url(input: Any, ctx: Context) -> Any:
    return await ctx.blob.url("runner/a.csv", expires="1h", method="PUT")


@flow("blob-in-call", emits=[], retry=TWICE)
async def blob_in_call(input: Any, ctx: Context) -> Any:
    async def store() -> str:
        note(input, "put")
        return (await ctx.blob.put("runner/a.txt", b"%d" % ctx.attempt)).key

    key = await ctx.run("store", store)
    if ctx.attempt == 1:
        raise LookupError("once more")
    return key


@flow("blob-branches", emits=[])
async def blob_branches(input: Any, ctx: Context) -> Any:
    async def wait() -> str:
        return (await ctx.wait.event("runner.go")).kind

    async def store() -> str:
        await ctx.blob.put("runner/branch", b"x" * 700_000)
        found = await ctx.state.get("none", "none")
        await ctx.run("put", lambda: note(input, "put"))
        return f"found {found}"

    return await asyncio.gather(wait(), store())


HANDLERS: list[Callable[..., Any]] = [blobs, blob_streams, blob_errors, blob_url, blob_in_call, blob_branches]
