"""`app.runs` and `app.jobs` of a `TestApp`: waiting skips time, and a failure shows the lines that raised it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..app.jobs import Jobs
from ..app.runs import Runs
from ..app.views import RunSummary, run_summary
from ..core.durations import Duration
from ..core.errors import RunFailed
from ..core.outage_retry import OutageRetry
from ..ports.store import RunRow
from ..ports.unit import JobState

if TYPE_CHECKING:
    from .auto_clock import AutoClock
    from .test_app import TestApp

ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


class ClockedRuns(Runs):
    """`app.runs` of a TestApp."""

    def __init__(self, app: TestApp, clock: AutoClock) -> None:
        super().__init__(app)
        self._skip_until = clock.skip_until
        self._settle = clock.settle

    async def wait(self, id: str, *, timeout: Duration | None = None) -> RunSummary:
        """Skip time until a run has ended, in whatever way.

        Args:
            id: The run's id.
            timeout: Raise WaitTimeout after this much test time.
        """
        return run_summary(await self._skip_to_end(id, timeout))

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Skip time until a run has ended and return its result. Raise RunFailed or RunCancelled if it has none.

        Args:
            id: The run's id.
            timeout: Raise WaitTimeout after this much test time.
        """
        return await self._result(await self._skip_to_end(id, timeout))

    async def describe_failure(self, id: str) -> str:
        """Return why a run failed: the step, the error and the last lines of your code; "" if it did not fail."""
        try:
            await self._result(await self._reader.row(id))
        except RunFailed as problem:
            return str(problem)
        except Exception:
            return ""
        return ""

    async def _skip_to_end(self, id: str, timeout: Duration | None) -> RunRow:
        async def has_ended() -> bool:
            return (await self._reader.row(id)).closed

        if await self._store.run(id) is None:
            await self._settle()  # a run that a handler started is there a moment after its attempt
        await self._skip_until(has_ended, f"run {id}", timeout)
        return await self._reader.row(id)

    async def _result(self, row: RunRow) -> Any:
        try:
            return await self._reader.result(row)
        except RunFailed as problem:
            raise with_notes(problem) from None


class ClockedJobs(Jobs):
    """`app.jobs` of a TestApp."""

    def __init__(self, app: TestApp, clock: AutoClock) -> None:
        super().__init__(app)
        self._skip_until = clock.skip_until

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Skip time until a job has ended and return its result. Raise RunFailed if it failed or was cancelled.

        Args:
            id: The job's id.
            timeout: Raise WaitTimeout after this much test time.
        """
        queue = (await self._row(id)).queue
        return await self.skip_to_result(id, queue, timeout)

    async def skip_to_result(self, id: str, queue: str, timeout: Duration | None = None) -> Any:
        """Skip time until a job of a queue has ended and return its result. Retention may remove it when it ends."""

        async def has_ended() -> bool:
            row = await self._store.job(id)
            return row is None or row.state in ENDED

        await self._skip_until(has_ended, f"job {id}", timeout)
        try:
            return await self._result(id, queue, OutageRetry(f"the end of job {id!r}"))
        except RunFailed as problem:
            raise with_notes(problem) from None


def with_notes(problem: RunFailed) -> RunFailed:
    """Return the error with its notes in its message, where every test report shows them."""
    return RunFailed("\n".join([str(problem), *getattr(problem, "__notes__", ())]))
