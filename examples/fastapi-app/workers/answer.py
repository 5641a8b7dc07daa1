"""A long answer, word by word, as a language model writes it."""

from __future__ import annotations

import asyncio
import os

from penstock import Context, flow

TEXT = (
    "A penstock is the pipe that leads water from a reservoir to a turbine. "
    "The water waits behind the gate for a second or a year, and then it runs. "
    "Whatever happens to the power plant, no drop of it is counted twice."
)
PAUSE_S = float(os.environ.get("ANSWER_PAUSE_S", "0.15"))


@flow("answer")
async def answer(question: str, ctx: Context) -> str:
    """Stream the answer to a question. Every word is an event of the run as soon as it exists."""
    words = [f"You asked: {question} ", *(f"{word} " for word in TEXT.split())]
    for word in words:
        ctx.partial(word)
        await asyncio.sleep(PAUSE_S)
    return "".join(words)
