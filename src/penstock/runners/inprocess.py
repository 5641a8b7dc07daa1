"""Runs handlers in this process: `async def` on the event loop, `def` on a pool thread."""

from __future__ import annotations

import asyncio
import logging
import math
import traceback
from collections.abc import Coroutine
from typing import Any

from ..core.errors import AttemptCancelled
from ..core.tracebacks import format_stack
from ..ports.runner import Channel, HandlerState, Task, time_out
from .threads import ThreadCall, ThreadPool

log = logging.getLogger("penstock.worker")
BLOCKED_LOOP_HINT = (
    "make the handler `def`, so that it runs on a thread, or call the blocking code with `await asyncio.to_thread(…)`"
)


class InProcessRunner:
    """Calls `channel.invoke()`: the task is not serialised."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPool(threads)
        self._loop = asyncio.get_running_loop()  # looking it up costs every attempt a system call

    def run(self, task: Task, channel: Channel) -> Coroutine[Any, Any, Any]:
        if task.handler.is_async:
            return self._run_on_loop(channel, task.timeout_s, task.handler.name)
        return self._run_on_thread(channel, task.timeout_s)

    async def close(self) -> None:
        self._pool.close()

    async def _run_on_loop(self, channel: Channel, timeout: float | None, name: str) -> Any:
        task = asyncio.current_task(self._loop)
        assert task is not None
        reason: str | None = None
        is_over = False

        def interrupt(why: str) -> None:
            nonlocal reason
            if reason is None and not is_over:
                reason = why
                task.cancel()

        channel.on_interrupt(interrupt, task)
        try:
            if timeout is None:
                return await channel.invoke()
            async with asyncio.timeout(timeout) as limit:
                result = await channel.invoke()
            if self._loop.time() > (limit.when() or math.inf):
                _warn_about_late_end(name, timeout)
            return result
        except TimeoutError as late:
            if timeout is not None and limit.expired():
                # Its cause is the cancellation, whose traceback ends where the handler was.
                raise time_out(timeout).with_traceback(getattr(late.__cause__, "__traceback__", None)) from None
            raise
        except asyncio.CancelledError:
            if reason is None:
                if task.cancelling():
                    raise
                raise _escaped_cancellation() from None
            # Our own interrupt: the attempt ends here, the task that runs it goes on.
            task.uncancel()
            raise AttemptCancelled(reason) from None
        finally:
            is_over = True

    async def _run_on_thread(self, channel: Channel, timeout: float | None) -> Any:
        call = ThreadCall(channel.invoke, self._loop)
        interrupted: asyncio.Future[str] = self._loop.create_future()

        def interrupt(why: str) -> None:
            call.interrupt(why)
            if not interrupted.done():
                interrupted.set_result(why)

        async def inspect() -> HandlerState:
            return HandlerState(format_stack(traceback.extract_tb(call.current_traceback())))

        channel.on_interrupt(interrupt)
        channel.on_inspect(inspect)
        self._pool.submit(call)
        # An interrupt frees the slot at once; the thread itself ends at its next Python instruction.
        if timeout is None:
            await asyncio.wait((call.done, interrupted), return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.wait((call.done, interrupted), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if call.done.done():
            interrupted.cancel()
            try:
                return call.done.result()
            except asyncio.CancelledError:
                raise _escaped_cancellation() from None
        call.done.add_done_callback(_ignore_result)
        if interrupted.done():
            raise AttemptCancelled(interrupted.result())
        assert timeout is not None
        problem = time_out(timeout).with_traceback(call.current_traceback())
        call.interrupt("timeout")
        raise problem


def _ignore_result(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of an abandoned call; otherwise asyncio logs it."""
    if not future.cancelled():
        future.exception()


def _escaped_cancellation() -> RuntimeError:
    """Build the error for a cancellation that nobody requested: of a task that the handler cancelled and awaited."""
    return RuntimeError("the handler let a CancelledError of its own escape; catch it where that task is awaited")


def _warn_about_late_end(name: str, timeout: float) -> None:
    """Warn about a handler that ended after its timeout: the event loop was blocked, so nothing could stop it."""
    log.warning(
        "%s ran longer than its timeout of %g s and could not be stopped, because it blocked the event loop; %s",
        name,
        timeout,
        BLOCKED_LOOP_HINT,
    )
