"""Facets of a `TestApp`: waiting skips time, and a failure shows the lines that raised it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..app.entities import EmittedEvent, Entities, EntitySummary
from ..app.jobs import Jobs
from ..app.runs import Runs
from ..app.views import RunSummary, run_summary
from ..core.durations import Duration
from ..core.errors import NotRouted, RunFailed
from ..core.outage_retry import OutageRetry
from ..entities.commands import delayed_key
from ..entities.record import decode as decode_entity
from ..entities.reducer import TransitionView
from ..entities.urns import to_id
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
            try:
                return (await self._reader.row(id)).closed
            except NotRouted:
                return False

        if await self._store.run(id) is None:
            await self._settle()  # a run that a handler started is there a moment after its attempt
        await self._skip_until(has_ended, f"run {id}", timeout)
        return await self._reader.row(id)

    async def _result(self, row: RunRow) -> Any:
        try:
            return await self._reader.result(row)
        except RunFailed as problem:
            raise with_notes(problem) from None


class ClockedEntities(Entities):
    """`app.entities` of a TestApp."""

    def __init__(self, app: TestApp, clock: AutoClock) -> None:
        super().__init__(app)
        self._skip_until = clock.skip_until

    async def result(self, emission: EmittedEvent, *, timeout: Duration | None = None) -> TransitionView:
        """Skip time until an event has been handled, and return what it did.

        Args:
            emission: What `emit` returned.
            timeout: Raise WaitTimeout after this much test time.
        """

        async def has_ended() -> bool:
            n = emission.n
            if n is None:
                key = emission.key or delayed_key(emission.job or "")
                found = await self._find_received(self._stream(emission.id), key)
                n = found[0] if found is not None else None
            row = await self._store.run(emission.id)
            return n is not None and row is not None and decode_entity(row.record).handled >= n

        if emission.refused is None:
            await self._skip_until(has_ended, f"event {emission.event} of {emission.urn}", timeout)
        return await super().result(emission)

    async def wait_for(
        self, urn: str, status: str | Sequence[str], *, timeout: Duration | None = None
    ) -> EntitySummary:
        """Skip time until an entity is in a state, or in one of several.

        Args:
            urn: The entity's urn.
            status: The state, or several of them.
            timeout: Raise WaitTimeout after this much test time.
        """
        wanted = (status,) if isinstance(status, str) else tuple(status)

        async def has_arrived() -> bool:
            row = await self._store.run(to_id(urn))
            return row is not None and (row.closed or row.status in wanted)

        await self._skip_until(has_arrived, f"entity {urn}", timeout)
        return await super().wait_for(urn, status)


class ClockedJobs(Jobs):
    """`app.jobs` of a TestApp."""

    def __init__(self, app: TestApp, clock: AutoClock) -> None:
        super().__init__(app)
        self._skip_until = clock.skip_until
        self._settle = clock.settle

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Skip time until a job has ended and return its result. Raise RunFailed if it failed or was cancelled.

        Args:
            id: The job's id.
            timeout: Raise WaitTimeout after this much test time.
        """
        row = await self._row(await self._skip_to_route(id))
        return await self.skip_to_result(row.id, row.queue, timeout)

    async def _skip_to_route(self, id: str) -> str:
        """Skip time until a worker has evaluated the key of a job, and return the job's own id."""

        async def is_routed() -> bool:
            try:
                await self._find(id)
            except NotRouted:
                return False
            return True

        if await self._store.job(id) is None:
            await self._settle()
            await self._skip_until(is_routed, f"job {id}", None)
        return await self._own_id(id)

    async def skip_to_result(self, id: str, queue: str, timeout: Duration | None = None) -> Any:
        """Skip time until a job of a queue has ended and return its result. Retention may remove it when it ends."""
        id = await self._skip_to_route(id)

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
