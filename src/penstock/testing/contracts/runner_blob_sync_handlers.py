"""The `def` handlers of the third part of the runner contract: blobs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock import SyncContext, flow

FIXED = {"type": "fixed", "delayMs": 10, "jitter": False}
TWICE = {"attempts": 2, "backoff": FIXED}


def note(input: Any, line: str) -> None:
    with Path(input["trace"]).open("a") as file:
        file.write(f"{line}\n")


def show(blob: Any) -> list[Any]:
    return [blob.key, blob.size, blob.content_type, blob.sha256]


@flow("blobs", emits=[])
def blobs(text: str, ctx: SyncContext) -> Any:
    put = ctx.blob.put("runner/a.csv", text)
    content = ctx.blob.get("runner/a.csv").decode()
    info = ctx.blob.info("runner/a.csv")
    deleted = [ctx.blob.delete("runner/a.csv") for _ in range(2)]
    return [show(put), content, show(info), deleted]


def letters() -> Iterator[bytes]:
    for letter in (b"a", b"b", b"c"):
        yield letter * 600_000


@flow("blob-streams", emits=[])
def blob_streams(input: Any, ctx: SyncContext) -> Any:
    put = ctx.blob.put("runner/large", letters())
    for _ in ctx.blob.stream("runner/large"):
        break
    digest, parts = hashlib.sha256(), 0
    for part in ctx.blob.stream("runner/large"):
        digest.update(part)
        parts += 1
    return [put.size, digest.hexdigest(), parts]


def broken() -> Iterator[bytes]:
    yield b"x" * 600_000
    raise ValueError("no rows")


@flow("blob-errors", emits=[])
def blob_errors(kind: str, ctx: SyncContext) -> Any:
    try:
        match kind:
            case "missing":
                ctx.blob.get("none")
            case "key":
                ctx.blob.put("../x", b"1")
            case "expires":
                ctx.blob.url("a", expires="8d")
            case "chunks":
                ctx.blob.put("a", broken())
    except Exception as problem:
        return [type(problem).__name__, getattr(problem, "code", None)]


@flow("blob-url", emits=[])
def blob_url(input: Any, ctx: SyncContext) -> Any:
    return ctx.blob.url("runner/a.csv", expires="1h", method="PUT")


@flow("blob-in-call", emits=[], retry=TWICE)
def blob_in_call(input: Any, ctx: SyncContext) -> Any:
    def store() -> str:
        note(input, "put")
        return ctx.blob.put("runner/a.txt", b"%d" % ctx.attempt).key

    key = ctx.run("store", store)
    if ctx.attempt == 1:
        raise LookupError("once more")
    return key


@flow("blob-branches", emits=[])
def blob_branches(input: Any, ctx: SyncContext) -> Any:
    def store() -> str:
        ctx.blob.put("runner/branch", b"x" * 700_000)
        found = ctx.state.get("none", "none")
        note(input, "put")
        return f"found {found}"

    event, found = ctx.all([ctx.branch.event("runner.go"), ctx.branch.run("put", store)])
    return [event.kind, found]


HANDLERS: list[Callable[..., Any]] = [blobs, blob_streams, blob_errors, blob_url, blob_in_call, blob_branches]
