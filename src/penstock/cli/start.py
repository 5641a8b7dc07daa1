"""`penstock start FLOW`."""

from __future__ import annotations

import asyncio
import sys

from .given import read_delay, read_input, read_tags
from .mistakes import warn
from .options import PLAIN_START, USUAL_PLACE, Common, Starting
from .report import print_json
from .session import working_app


def start(flow: str, /, *, starting: Starting = PLAIN_START, common: Common = USUAL_PLACE) -> int:
    """Start a run for a worker to take; prints its id.

    Parameters
    ----------
    flow
        The flow's name.
    """
    id = asyncio.run(_start(flow, starting, common))
    if common.json:
        print_json({"id": id})
    else:
        print(id)
    if sys.stderr.isatty() and sys.stdout.isatty():
        warn(f"Started. `penstock worker` works on it, `penstock events {id} --follow` shows it.")
    return 0


async def _start(flow: str, starting: Starting, common: Common) -> str:
    input = read_input(starting.input)
    tags, delay = read_tags(starting.tag), read_delay(starting.delay)
    async with working_app(common) as app:
        return await app.start(
            flow, input, idempotency_key=starting.key, delay=delay, priority=starting.priority, tags=tags or None
        )
