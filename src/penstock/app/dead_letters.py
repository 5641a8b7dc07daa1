"""`app.dead_letters`: what finally failed, kept until it is redriven or discarded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import msgspec

from ..commit.preview import Preview, run_bulk_planned, run_planned
from ..commit.runtime import Runtime
from ..core.argument_checks import check_arguments, check_count
from ..core.clock import to_iso
from ..core.errors import UnknownJob, UnreadableJob
from ..core.ids import dead_letter_id
from ..core.payload import pack
from ..flows.run_commands import FlowCommands
from ..jobs.dead_letters import DeadLetter, read_dead_letter
from ..jobs.error_groups import sign_error
from ..ports.monitoring import ErrorGroupRow
from ..ports.store import JobRow
from ..ports.unit import JobState
from .arguments import UNSET, check_function
from .redrive import Redriver, RedriveResult

if TYPE_CHECKING:
    from ..entities.commands import EntityCommands


class ErrorGroup(msgspec.Struct, frozen=True, rename="camel"):
    """Dead letters that failed in the same way."""

    id: str
    queue: str  # the dead-letter queue
    count: int
    error: str  # the class of the error
    code: str | None
    message: str  # numbers and ids are shown as #
    frame: str  # file and function that raised it
    first_at: str
    last_at: str
    sample: str  # id of the newest dead letter


@check_arguments
class DeadLetters:
    """Jobs and steps that finally failed, kept in `<queue>-dlq` (or the queue their handler names) until redriven."""

    def __init__(self, runtime: Runtime, commands: FlowCommands, entities: Callable[[], EntityCommands]) -> None:
        self._registry = runtime.registry
        self._store = runtime.store
        self._redriver = Redriver(runtime, commands, entities)

    async def queues(self) -> dict[str, int]:
        """Return the dead-letter queues that are not empty, with their counts."""
        named = {handler.dlq for handler in self._registry().handlers()}
        rows = [row for row in await self._store.queues() if row.name.endswith("-dlq") or row.name in named]
        return {row.name: row.counts["waiting"] for row in rows if row.counts["waiting"]}

    async def list(
        self, queue: str, *, group: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[tuple[str, DeadLetter]]:
        """Return a page of dead letters with their ids, oldest first.

        Args:
            queue: The queue whose jobs failed, with or without `-dlq`.
            group: Only those of this error group; see `groups`.
            after: Id of the last dead letter of the page before.
            limit: Maximum number of dead letters.
        """
        last = _letter_id(after) if after is not None else None
        if group is not None:
            ids = await self._store.jobs_of_error_group(self._dlq(queue), group, after=last, limit=limit)
            found = [await self._store.job(id) for id in ids]
            return [(row.id, read_dead_letter(row)) for row in found if row is not None]
        rows = await self._store.jobs(self._dlq(queue), JobState.WAITING, after=last, limit=limit)
        return [(row.id, read_dead_letter(row)) for row in rows]

    async def groups(self, queue: str | None = None, *, limit: int = 50) -> Sequence[ErrorGroup]:
        """Return the error groups of dead letters, the largest first: those that failed in the same way.

        A group is made of the error's class, its code, its message without numbers and ids, and the function that
        raised it. The store counts groups in an index; of each group that is returned, one letter is read.

        Args:
            queue: The queue whose jobs failed, with or without `-dlq`. Default: all queues.
            limit: Maximum number of groups.
        """
        check_count(limit)
        queues = [self._dlq(queue)] if queue is not None else [*await self.queues()]
        rows = [(name, row) for name in queues for row in await self._store.error_groups(name)]
        rows.sort(key=lambda found: (-found[1].count, found[1].group))
        found = []
        for name, row in rows[:limit]:
            sample = await self._store.job(row.sample)
            if sample is not None:  # else it was redriven meanwhile
                found.append(_group_view(name, row, read_dead_letter(sample)))
        return found

    async def group(self, id: str) -> ErrorGroup:
        """Return an error group. If several queues have letters of it, return the largest one.

        Args:
            id: Id of the group; see `groups`.
        """
        rows = [(name, row) for name in await self.queues() for row in await self._store.error_groups(name)]
        own = sorted((found for found in rows if found[1].group == id), key=lambda found: -found[1].count)
        for name, row in own:
            if (sample := await self._store.job(row.sample)) is not None:
                return _group_view(name, row, read_dead_letter(sample))
        raise _unknown_group(id)

    async def count(self, queue: str | None = None, *, group: str | None = None) -> int:
        """Return the number of dead letters, of a queue and an error group.

        Args:
            queue: The queue whose jobs failed, with or without `-dlq`. Default: all queues.
            group: Only those of this error group; see `groups`.
        """
        counts = await self.queues()
        names = [self._dlq(queue)] if queue is not None else [*counts]
        if group is None:
            return sum(counts.get(name, 0) for name in names)
        rows = [row for name in names for row in await self._store.error_groups(name)]
        return sum(row.count for row in rows if row.group == group)

    async def get(self, id: str) -> DeadLetter:
        """Return a dead letter, by its id or by the id of the job that failed.

        Args:
            id: Id of the dead letter, or of the job that failed.
        """
        letter = read_dead_letter(await self._row(id))
        if letter.unreadable is not None and not letter.original_job_id:
            raise UnreadableJob(letter.unreadable)
        return letter

    @overload
    async def redrive(
        self, id: str, *, input: Any = UNSET, dry_run: Literal[False] = False, version: int | Preview | None = None
    ) -> RedriveResult: ...

    @overload
    async def redrive(
        self, id: str, *, input: Any = UNSET, dry_run: Literal[True], version: int | Preview | None = None
    ) -> Preview: ...

    @overload
    async def redrive(
        self, id: str, *, input: Any = UNSET, dry_run: bool, version: int | Preview | None = None
    ) -> RedriveResult | Preview: ...

    async def redrive(
        self, id: str, *, input: Any = UNSET, dry_run: bool = False, version: int | Preview | None = None
    ) -> RedriveResult | Preview:
        """Put one dead letter back to work.

        Args:
            id: Id of the dead letter, or of the job that failed.
            input: Another input instead of the recorded one.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: The run's version, or a Preview: raise RunMoved if the run has moved on since.
        """
        row = await self._row(id)

        async def act() -> RedriveResult:
            done = RedriveResult()
            await self._redriver.redrive(row, done, None if input is UNSET else pack(input))
            return done

        return _previewed(*await run_planned(self._store, read_dead_letter(row).run, dry_run, version, act))

    @overload
    async def redrive_all(
        self,
        queue: str,
        *,
        where: Callable[[DeadLetter], bool] | None = None,
        change: Callable[[Any], Any] | None = None,
        limit: int | None = None,
        dry_run: Literal[False] = False,
        version: Preview | None = None,
    ) -> RedriveResult: ...

    @overload
    async def redrive_all(
        self,
        queue: str,
        *,
        where: Callable[[DeadLetter], bool] | None = None,
        change: Callable[[Any], Any] | None = None,
        limit: int | None = None,
        dry_run: Literal[True],
        version: Preview | None = None,
    ) -> Preview: ...

    @overload
    async def redrive_all(
        self,
        queue: str,
        *,
        where: Callable[[DeadLetter], bool] | None = None,
        change: Callable[[Any], Any] | None = None,
        limit: int | None = None,
        dry_run: bool,
        version: Preview | None = None,
    ) -> RedriveResult | Preview: ...

    async def redrive_all(
        self,
        queue: str,
        *,
        where: Callable[[DeadLetter], bool] | None = None,
        change: Callable[[Any], Any] | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        version: Preview | None = None,
    ) -> RedriveResult | Preview:
        """Redrive the dead letters of a queue.

        Args:
            queue: The queue whose jobs failed.
            where: Redrive only those for which this function returns true. Letters without a readable input have None.
            change: Function that returns the new input for a recorded one.
            limit: Maximum number to redrive.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: A Preview: refuse the dead letters whose run has moved on since, and those that are new.
        """
        if limit is not None:
            check_count(limit)
        for function, what in ((where, "where"), (change, "change")):
            if function is not None:
                check_function(function, what, "of a dead letter")

        def new_input(row: JobRow) -> bytes | None:
            return None if change is None else _change_input(read_dead_letter(row), change)

        async def act() -> RedriveResult:
            return await self._redriver.redrive_each(await self._select(queue, where), new_input, limit, version)

        return _previewed(*await run_bulk_planned(self._store, dry_run, version, act))

    async def discard(self, id: str) -> bool:
        """Delete a dead letter for good.

        Args:
            id: Id of the dead letter, or of the job that failed.
        """
        row = await self._row(id)
        return await self._store.remove(row.id)

    @overload
    async def redrive_group(
        self, group: str, *, input: Any = UNSET, dry_run: Literal[False] = False, version: Preview | None = None
    ) -> RedriveResult: ...

    @overload
    async def redrive_group(
        self, group: str, *, input: Any = UNSET, dry_run: Literal[True], version: Preview | None = None
    ) -> Preview: ...

    @overload
    async def redrive_group(
        self, group: str, *, input: Any = UNSET, dry_run: bool, version: Preview | None = None
    ) -> RedriveResult | Preview: ...

    async def redrive_group(
        self, group: str, *, input: Any = UNSET, dry_run: bool = False, version: Preview | None = None
    ) -> RedriveResult | Preview:
        """Put the dead letters of an error group back to work, those of all queues.

        Args:
            group: Id of the group; see `groups`.
            input: Another input instead of the recorded ones.
            dry_run: Write nothing, and return a Preview of what would be written.
            version: A Preview: refuse the dead letters whose run has moved on since, and those that are new.
        """
        payload = None if input is UNSET else pack(input)

        async def act() -> RedriveResult:
            return await self._redriver.redrive_each(await self._group_ids(group), lambda _row: payload, None, version)

        return _previewed(*await run_bulk_planned(self._store, dry_run, version, act))

    async def discard_group(self, group: str) -> int:
        """Delete the dead letters of an error group for good, and return how many.

        Args:
            group: Id of the group; see `groups`.
        """
        return sum([await self._store.remove(id) for id in await self._group_ids(group)])

    async def _group_ids(self, group: str) -> Sequence[str]:
        """Return the dead letters of a group: all ids first, because pages shift while letters leave them."""
        ids: Any = []
        for queue in await self.queues():
            after: str | None = None
            while page := await self._store.jobs_of_error_group(queue, group, after=after, limit=500):
                ids += page
                after = page[-1]
        if not ids:
            raise _unknown_group(group)
        return ids  # type: ignore[no-any-return]

    async def _select(self, queue: str, where: Callable[[DeadLetter], bool] | None) -> Sequence[str]:
        """Return the ids first and redrive afterwards: pages shift while dead letters leave them."""
        selected: list[str] = []
        after: str | None = None
        while rows := await self._store.jobs(self._dlq(queue), JobState.WAITING, after=after, limit=500):
            after = rows[-1].id
            selected += [row.id for row in rows if where is None or _matches(read_dead_letter(row), where)]
        return selected

    async def _row(self, id: str) -> JobRow:
        row = await self._store.job(_letter_id(id))
        if row is None:
            raise UnknownJob(
                f"no dead letter with id {id!r}; it may have been run again (redriven) or discarded. Run "
                "`penstock dlq` to see the queues that have dead letters"
            )
        return row

    def _dlq(self, queue: str) -> str:
        """Return the dead-letter queue of a queue; one that is a dead-letter queue itself is returned as it is."""
        handlers = self._registry().handlers()
        if queue.endswith("-dlq") or any(handler.dlq == queue for handler in handlers):
            return queue
        return next((handler.dlq for handler in handlers if handler.queue_name == queue), f"{queue}-dlq")


def _previewed(done: RedriveResult, preview: Preview | None) -> RedriveResult | Preview:
    return done if preview is None else msgspec.structs.replace(preview, refused=done.refused)


def _group_view(queue: str, row: ErrorGroupRow, sample: DeadLetter) -> ErrorGroup:
    error = sign_error(sample.error)
    what = error.name, error.code, error.message, error.frame
    return ErrorGroup(row.group, queue, row.count, *what, to_iso(row.first), to_iso(row.last), row.sample)


def _matches(letter: DeadLetter, where: Callable[[DeadLetter], bool]) -> bool:
    """Return whether a letter is selected. One without input is not, if the function needs the input."""
    try:
        return where(letter)
    except Exception:
        if letter.unreadable is None:
            raise
        return False


def _change_input(letter: DeadLetter, change: Callable[[Any], Any]) -> bytes | None:
    """Return the new input of a letter; None for one without input, if the function needs the input."""
    try:
        return pack(change(letter.original_data))
    except Exception:
        if letter.unreadable is None:
            raise
        return None


def _letter_id(id: str) -> str:
    """Return the id of a dead letter, from that id or from the id of the job that failed."""
    return id if id.endswith(".dlq") else dead_letter_id(id)


def _unknown_group(id: str) -> UnknownJob:
    return UnknownJob(f"no dead letters of error group {id!r}; run `penstock dlq groups` to see the groups")
