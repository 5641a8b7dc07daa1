"""Runs handlers in a pool of child processes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from ...core.errors import AttemptCancelled
from ...ports.runner import Channel, Task
from .child import Child
from .options import ProcessOptions
from .pool import Pool


class ProcessRunner:
    """The runner of handlers with `runner="process"`."""

    def __init__(self, options: ProcessOptions) -> None:
        self._options = options
        self.pool = Pool(options)

    async def run(self, task: Task, channel: Channel) -> Any:
        # The journal stays in the worker: a child needs no memos.
        timeout = self._options.timeout_s if task.timeout_s is None else task.timeout_s
        task = msgspec.structs.replace(task, memos={}, timeout_s=timeout)
        child = self.pool.take_idle() or await self._acquire(channel)
        try:
            return await child.run(task, channel)
        finally:
            self.pool.release(child)

    async def _acquire(self, channel: Channel) -> Child:
        """Wait for a child; an interrupt ends the wait."""
        acquiring = asyncio.ensure_future(self.pool.acquire())
        reasons: list[str] = []

        def interrupt(reason: str) -> None:
            reasons.append(reason)
            acquiring.cancel()

        channel.on_interrupt(interrupt)
        try:
            child = await acquiring
        except asyncio.CancelledError:
            if not reasons:
                acquiring.cancel()
                raise
            raise AttemptCancelled(reasons[0]) from None
        if reasons:
            self.pool.release(child)
            raise AttemptCancelled(reasons[0])
        return child

    def reload(self) -> None:
        """Let children load the code again before their next task."""
        self.pool.mark_stale()

    async def close(self) -> None:
        await self.pool.close()
