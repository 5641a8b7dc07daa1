"""Handlers in this process: `async def` on the event loop, `def` on a pool thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ..core.errors import AttemptCancelled, AttemptTimeout
from ..ports.runner import Interrupt
from .threads import Call, ThreadPool


class InProcessRunner:
    """Runs handlers where the worker is."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPool(threads)
        self._loop = asyncio.get_running_loop()  # asking for it again costs every attempt a system call

    def run(
        self,
        call: Callable[[], Any],
        *,
        is_async: bool,
        timeout: float | None,
        interruptible: Callable[[Interrupt], None],
    ) -> Coroutine[Any, Any, Any]:
        run = self._on_loop if is_async else self._on_thread
        return run(call, timeout, interruptible)

    async def close(self) -> None:
        self._pool.close()

    async def _on_loop(
        self, call: Callable[[], Any], timeout: float | None, interruptible: Callable[[Interrupt], None]
    ) -> Any:
        task = asyncio.current_task(self._loop)
        assert task is not None
        reason: str | None = None
        over = False

        def interrupt(why: str) -> None:
            nonlocal reason
            if reason is None and not over:
                reason = why
                task.cancel()

        interruptible(interrupt)
        try:
            if timeout is None:
                return await call()
            async with asyncio.timeout(timeout) as limit:
                return await call()
        except TimeoutError:
            if timeout is not None and limit.expired():
                raise _late(timeout) from None
            raise
        except asyncio.CancelledError:
            if reason is None:
                if task.cancelling():
                    raise
                raise _let_go() from None
            # Our own interrupt: the attempt ends here, the task that runs it goes on.
            task.uncancel()
            raise AttemptCancelled(reason) from None
        finally:
            over = True

    async def _on_thread(
        self, call: Callable[[], Any], timeout: float | None, interruptible: Callable[[Interrupt], None]
    ) -> Any:
        work = Call(call, self._loop)
        stopped: asyncio.Future[str] = self._loop.create_future()

        def interrupt(why: str) -> None:
            work.interrupt(why)
            if not stopped.done():
                stopped.set_result(why)

        interruptible(interrupt)
        self._pool.submit(work)
        if timeout is None:
            # The slot is given up at once on interrupt; the thread itself ends at its next Python instruction.
            await asyncio.wait((work.done, stopped), return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.wait((work.done, stopped), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if work.done.done():
            stopped.cancel()
            try:
                return work.done.result()
            except asyncio.CancelledError:
                raise _let_go() from None
        work.done.add_done_callback(_heard)
        if stopped.done():
            raise AttemptCancelled(stopped.result())
        work.interrupt("timeout")
        assert timeout is not None
        raise _late(timeout)


def _heard(future: asyncio.Future[Any]) -> None:
    """An abandoned call's outcome is nobody's business, but asyncio complains of exceptions nobody looked at."""
    if not future.cancelled():
        future.exception()


def _let_go() -> RuntimeError:
    """A cancellation nobody asked this attempt for: of a task the handler cancelled and then awaited."""
    return RuntimeError("the handler let a CancelledError of its own escape: catch it where that task is awaited")


def _late(timeout: float) -> AttemptTimeout:
    return AttemptTimeout(
        f"the attempt ran longer than its timeout of {timeout:g} s and was cancelled: raise it, or split the step"
    )
