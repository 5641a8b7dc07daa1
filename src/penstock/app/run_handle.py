"""`Run`: what `app.start` returns. The id of a run, with methods for that run and the type of its result."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..core.durations import Duration
from ..core.events import Event
from ..core.schemas import convert_result
from ..flows.reducer import RunView
from ..handlers.registry import find_result_type
from .arguments import UNSET
from .log_lines import LogView
from .views import RunSummary

if TYPE_CHECKING:
    from .redrive import RedriveResult
    from .runs import Runs

R = TypeVar("R")
"""The result of a run."""


class Run(str, Generic[R]):
    """The id of a run, with methods for that run.

        run = await app.start(checkout, Order(7))
        receipt = await run.result(timeout="1m")

    It is a `str`: print it, store it, compare it with ids, use it as a key of a dict, and pass it wherever an id is
    accepted. A copy or a pickle of it is the plain id. `app.runs.handle(id)` returns the handle of an id.

    `existing` is True if the idempotency key was used before: nothing was started, and this is the run of that key.
    `differs` is True if that run was started with another input.

    `R` is the type of the result, to which `result()` converts the recorded JSON: what the function of the flow
    returns, or `result=`. Pass `result=` for a flow with several steps: its result is that of its last step, or a
    mapping of several, not what its first function returns. Without `result=`, it stays JSON.
    """

    __slots__ = ("_flow", "_runs", "_type", "differs", "existing")
    _runs: Runs
    _flow: Callable[..., Any] | None
    _type: Any
    existing: bool
    differs: bool

    def __new__(
        cls,
        id: str,
        runs: Any,
        result: type[R] | None = None,
        flow: Callable[..., Any] | None = None,
        *,
        existing: bool = False,
        differs: bool = False,
    ) -> Run[R]:
        handle = super().__new__(cls, id)
        handle._runs, handle._type, handle._flow = runs, UNSET if result is None else result, flow
        handle.existing, handle.differs = existing, differs
        return handle

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    @property
    def id(self) -> str:
        """The id as a plain string."""
        return str(self)

    async def get(self) -> RunView:
        """Return the run's state, folded from its events. Raise UnknownRun if there is none."""
        return await self._runs.get(self)

    async def wait(self, *, timeout: Duration | None = None) -> RunSummary:
        """Wait until the run has ended, in whatever way.

        Args:
            timeout: Raise WaitTimeout after this long.
        """
        return await self._runs.wait(self, timeout=timeout)

    async def result(self, *, timeout: Duration | None = None) -> R:
        """Wait for the run to end and return its result. Raise RunFailed or RunCancelled if it has none.

        The result is converted to its type; `app.runs.result` returns it as JSON. Raise SchemaViolation if it is of
        another shape.

        Args:
            timeout: Raise WaitTimeout after this long.
        """
        value = await self._runs.result(self, timeout=timeout)
        if self._type is UNSET:
            self._type = None if self._flow is None else find_result_type(self._runs._app.registry, self._flow)
        return cast(R, convert_result(value, self._type, f"the result of run {str(self)!r}"))

    async def cancel(self, reason: str = "cancelled by request") -> bool:
        """Cancel the run for good. Return False if it had ended.

        Args:
            reason: Recorded with the event.
        """
        return await self._runs.cancel(self, reason)

    async def pause(self, reason: str = "paused by request") -> bool:
        """Pause the run: running steps end, no further step starts. Return False if it was paused or had ended.

        Args:
            reason: Recorded with the event.
        """
        return await self._runs.pause(self, reason)

    async def resume(self, reason: str = "resumed by request") -> bool:
        """Resume the paused run. Return False if it was not paused.

        Args:
            reason: Recorded with the event.
        """
        return await self._runs.resume(self, reason)

    async def retry(self) -> RedriveResult:
        """Redrive the failed steps of the failed run."""
        return await self._runs.retry(self)

    async def logs(
        self,
        *,
        step: str | None = None,
        attempt: int | None = None,
        level: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[LogView]:
        """Return log lines of the run, oldest first, with their fields.

        Args:
            step: Only lines of this step.
            attempt: Only lines of this attempt.
            level: Only lines of this level and above: debug, info, warning or error.
            after: Id of the last line of the page before.
            limit: Maximum number of lines.
        """
        return await self._runs.logs(self, step=step, attempt=attempt, level=level, after=after, limit=limit)

    async def why(self) -> Sequence[str]:
        """Explain in sentences what the run waits for, one for each open step."""
        return await self._runs.why(self)

    def follow(self, *, after: str | None = None) -> AsyncIterator[Event]:
        """Iterate over the run's events, then follow it live.

        Args:
            after: Id of the last event seen.
        """
        return self._runs.follow(self, after=after)
