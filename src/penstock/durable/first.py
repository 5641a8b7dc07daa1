"""`ctx.first`: finds which of several calls is done first. Functions run concurrently with the waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .calls import CallOutcome, DurableCall, RunCall, WaitCall
from .journal import JournalCall

if TYPE_CHECKING:
    from .call_recorder import CallRecorder

RunFunction = Callable[[], Coroutine[Any, Any, CallOutcome]]


class FirstCall:
    """One `ctx.first` whose winner is not recorded yet."""

    def __init__(self, recorder: CallRecorder, calls: Mapping[str, DurableCall[Any]], call: JournalCall) -> None:
        self._recorder = recorder
        self._calls = calls
        self._call = call
        self._waits = {key: one for key, one in calls.items() if isinstance(one, WaitCall)}
        self._runs = {key: one for key, one in calls.items() if isinstance(one, RunCall)}

    async def find_winner(self) -> str:
        """Return the key of the call that is done first, record it and cancel the other waits."""
        recorder = self._recorder
        while True:
            await recorder.start_calls(list(self._waits.values()))
            won = self._first_done()
            if won is not None:
                break
            if self._runs:
                return await self._run_functions()
            await recorder.park(list(self._calls.values()))
        recorder.record(self._call, won)
        recorder.journal.is_urgent = True  # after a crash, the handler must not act on another winner
        for wait in self._losing_waits(won):
            wait.cancel()
        return won

    def _first_done(self) -> str | None:
        """Return the call that was done first; of several at the same time, the one listed first."""
        done = {key: call for key, call in self._calls.items() if call.is_done()}
        times = {key: call.resolved_at if isinstance(call, WaitCall) else 0 for key, call in done.items()}
        return min(times, key=lambda key: times[key], default=None)

    async def _run_functions(self) -> str:
        """Run functions until one ends or the first wait is due.

        The value and the winner are one commit. The store refuses it, and the handler runs again, if an event or a
        trigger came before."""
        recorder, waits = self._recorder, list(self._waits.values())
        await recorder.register_waits(waits)
        due = min((wait.due for wait in waits if wait.due is not None), default=None)
        ended = await recorder.run_until(due, self._runs)
        if due is not None and due <= min((outcome.at for outcome in ended.values()), default=due):
            await recorder.start_calls(waits)
        times = {key: outcome.at for key, outcome in ended.items()}
        times |= {key: wait.resolved_at for key, wait in self._waits.items() if wait.is_done()}
        won = min((key for key in self._calls if key in times), key=lambda key: times[key])
        if won in ended:
            self._runs[won].accept(ended[won])
        recorder.record(self._call, won)
        for wait in self._losing_waits(won):
            wait.cancel_if_pending()
        await recorder.flush()
        return won

    def _losing_waits(self, won: str) -> list[WaitCall[Any]]:
        return [wait for key, wait in self._waits.items() if key != won]


async def run_until_first(functions: Mapping[str, RunFunction], timeout_s: float | None) -> dict[str, CallOutcome]:
    """Return the outcomes of the functions that ended first, usually one; none after the timeout. Stop the others."""
    tasks = {name: asyncio.create_task(run()) for name, run in functions.items()}
    try:
        done, _ = await asyncio.wait(tasks.values(), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancel_tasks(tasks.values())
    return {name: task.result() for name, task in tasks.items() if task in done}


async def _cancel_tasks(tasks: Iterable[asyncio.Task[CallOutcome]]) -> None:
    """Cancel the tasks and wait for them: they may have something to clean up. A thread cannot be cancelled."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # asyncio warns about exceptions that were never retrieved
