"""The host's main loop: one task at a time, on the main thread, so that a signal can stop any handler."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import Any

import msgspec

from ..core.errors import AttemptCancelled, Suspension
from ..core.payload import lift_limits_here, pack
from ..core.tracebacks import format_stack, format_task
from ..handlers.nodes import NodeHandler
from ..ports import frames
from ..ports.runner import Task
from .calls import Attempt
from .context import HostChannel, HostContext, HostSyncContext
from .errors import to_error_frame
from .handlers import HandlerFinder
from .limits import limit_cpu
from .trace_parent import join_parent
from .wire import Wire, end_group, read_rss_mb

BLOCKED_AFTER_S = 0.3  # between a cancellation and the interrupt of a handler that blocks the event loop


class Host:
    """Runs the tasks that arrive on a wire."""

    def __init__(self, wire: Wire, finder: HandlerFinder, cpu_s: int = 0, *, lifts_limits: bool = False) -> None:
        self._lifts_limits = lifts_limits
        self._wire = wire
        self._cpu_s = cpu_s
        self._finder = finder
        self._runner: asyncio.Runner | None = None
        self._attempt: Attempt | None = None
        self._is_running = False  # user code: a signal may stop it
        wire.on_execute = self._execute
        wire.on_stop = self._stop
        wire.describe_stack = self._describe_stack

    def run(self) -> None:
        """Take tasks until the worker closes the wire."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for the worker, which then stops its children
        if self._lifts_limits:
            lift_limits_here()
        self._wire.start()
        while True:
            self._wire.send(frames.Ready(read_rss_mb()))
            request = self._wire.tasks.get()
            if request is None:
                return
            end = self._run(msgspec.json.decode(request.task, type=Task))
            if end is not None:
                self._send_end(end)

    def _run(self, task: Task) -> frames.HandlerFrame | None:
        """Run a handler and return its end; None if the worker has stopped it and wants none."""
        limit_cpu(self._cpu_s)
        is_async = task.handler.is_async
        if is_async and self._runner is None:
            self._runner = asyncio.Runner()
        loop = self._runner.get_loop() if is_async and self._runner is not None else None
        attempt = self._attempt = Attempt(self._wire, loop)
        end: frames.HandlerFrame | None
        try:
            end = self._call(task, attempt)
        except (AttemptCancelled, Suspension) as stop:
            attempt.stop = attempt.stop or stop
            end = None
        except BaseException as problem:
            end = frames.Failed(to_error_frame(problem))
        finally:
            self._is_running = False
            self._attempt = None
            self._wire.stop_calls(attempt.stop or AttemptCancelled("the handler has ended"))
            self._wire.raised.clear()
        return end if attempt.stop is None else None

    def _call(self, task: Task, attempt: Attempt) -> frames.HandlerFrame:
        handler = self._finder.find(task.handler)
        if task.node is not None and isinstance(handler, NodeHandler):
            handler = handler.bind(task.node.config, task.node.followers, skipped=task.node.skipped)
        value = handler.check_input(msgspec.json.decode(task.input))
        channel = HostChannel(task, attempt, self._finder.find_queue)
        ctx = HostContext.make(task, channel)
        leave_span = join_parent(task.traceparent) if task.traceparent is not None else None
        try:
            if attempt.loop is None:
                self._start(attempt)
                result = handler.call(value, HostSyncContext(ctx))
            else:
                assert self._runner is not None
                result = self._runner.run(self._call_async(handler.call, value, ctx, attempt))
            self._is_running = False
            return frames.Done(msgspec.Raw(pack(result, f"the result of {handler.name!r}")))
        finally:
            channel.is_over = True
            if leave_span is not None:
                leave_span()

    def _start(self, attempt: Attempt) -> None:
        self._is_running = True
        if attempt.stop is not None:
            raise attempt.stop

    async def _call_async(self, call: Any, value: Any, ctx: HostContext, attempt: Attempt) -> Any:
        attempt.main = asyncio.current_task()
        self._start(attempt)
        try:
            return await call(value, ctx)
        except asyncio.CancelledError:
            if attempt.stop is None:
                raise RuntimeError(
                    "the handler let a CancelledError of its own escape; catch it where that task is awaited"
                ) from None
            raise attempt.stop from None
        finally:
            await attempt.end_tasks()

    def _send_end(self, end: frames.HandlerFrame) -> None:
        try:
            self._wire.send(end)
        except Exception as problem:
            self._wire.send(frames.Failed(to_error_frame(problem)))

    # What the worker asks for, on the thread that reads its frames

    def _execute(self, frame: frames.Execute) -> None:
        if self._lifts_limits:
            lift_limits_here()  # this is another thread than the one of `run`
        if (attempt := self._attempt) is not None:
            attempt.execute(frame)

    def _stop(self, stop: BaseException) -> None:
        attempt = self._attempt
        if attempt is None or attempt.stop is not None:
            return  # once: a second exception would break off the handler's `finally`
        attempt.stop = stop
        if attempt.loop is not None:
            attempt.cancel_soon()
            if isinstance(stop, AttemptCancelled):
                timer = threading.Timer(BLOCKED_AFTER_S, self._interrupt_blocked, (attempt,))
                timer.daemon = True
                timer.start()
        elif isinstance(stop, Suspension):
            self._wire.stop_calls(stop)
        elif self._is_running:
            _interrupt_main_thread()

    def _interrupt_blocked(self, attempt: Attempt) -> None:
        """Stop an `async def` handler that blocks its event loop, as if it were a `def`."""
        if self._attempt is attempt and self._is_running and not attempt.has_seen_stop:
            _interrupt_main_thread()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Stop the handler where it is, even in a sleep or a system call; without one, end the process."""
        if not self._is_running:
            if self._attempt is None:
                end_group()
            return  # it has just ended
        stop = self._attempt.stop if self._attempt is not None else None
        raise stop if isinstance(stop, AttemptCancelled) else AttemptCancelled("terminated")

    def _describe_stack(self) -> str:
        """Return where the handler is now, innermost frame last."""
        attempt = self._attempt
        if attempt is None:
            return ""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        is_async = attempt.loop is not None and attempt.main is not None
        if is_async and (awaited := "".join(map(format_task, asyncio.all_tasks(attempt.loop)))):
            return awaited
        return format_stack(traceback.extract_stack(frame)) if frame is not None else ""


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGTERM)
