"""A conversation that grows with each turn, and its transcript in the blob store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock import Context, SyncContext, flow, step

TURNS = 20
Message = dict[str, str]


def ask_model(messages: list[Message]) -> Message:
    """Stand in for a model: the answers are long."""
    role = "assistant" if len(messages) % 2 else "user"
    return {"role": role, "content": f"{role} says {len(messages)}: " + "all work and no play makes a dull day. " * 250}


@flow("chat", emits=["turn"])
async def chat(question: str, ctx: Context) -> None:
    ctx.emit("turn", [{"role": "user", "content": question}])


@step(flow="chat", on="turn", mode="each", emits=["turn", "ended"])
async def answer(messages: list[Message], ctx: Context) -> None:
    reply = await ctx.run("model", lambda: ask_model(messages))
    ctx.emit("turn" if len(messages) < TURNS - 1 else "ended", [*messages, reply])


def lines(messages: list[Message]) -> Iterator[bytes]:
    for message in messages:
        yield f"{message['role']}: {message['content']}\n".encode()


@step(flow="chat", on="ended", emits=[], runner="process")
def archive(messages: list[Message], ctx: SyncContext) -> dict[str, Any]:
    blob = ctx.blob.put(f"transcripts/{ctx.run_id}.txt", lines(messages))
    return {"key": blob.key, "type": blob.content_type, "size": blob.size}
