"""`app.dead_letters`: what finally failed, kept until it is redriven or discarded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.arguments import check_arguments, check_count
from ..core.errors import RunError, UnknownFlow, UnknownJob, UnknownRun, UnreadableJob, UnreadableRecord
from ..core.ids import dead_letter_id
from ..core.payload import pack
from ..flows.run_commands import FlowCommands
from ..jobs.dead_letters import DeadLetter, read_dead_letter
from ..jobs.engine import JobOptions, new_job
from ..ports.store import JobRow
from ..ports.unit import Committed, JobState, Unit
from .arguments import check_function

GONE = "another call has already taken this dead letter"


class RedriveResult(msgspec.Struct):
    """What a redrive did, for each dead letter."""

    sent: dict[str, str] = {}  # dead letter -> its new job
    refused: dict[str, str] = {}  # dead letter -> reason


@check_arguments
class DeadLetters:
    """Jobs and steps that finally failed, kept in `<queue>-dlq` (or the queue their handler names) until redriven."""

    def __init__(self, runtime: Runtime, commands: FlowCommands) -> None:
        self._registry = runtime.registry
        self._store = runtime.store
        self._commands = commands
        self._committer = runtime.committer
        self._bodies = runtime.bodies
        self._unit_id = runtime.new_unit_id

    async def queues(self) -> dict[str, int]:
        """Return the dead-letter queues that are not empty, with their counts."""
        named = {handler.dlq for handler in self._registry().handlers()}
        rows = [row for row in await self._store.queues() if row.name.endswith("-dlq") or row.name in named]
        return {row.name: row.counts["waiting"] for row in rows if row.counts["waiting"]}

    async def list(self, queue: str, *, after: str | None = None, limit: int = 50) -> list[tuple[str, DeadLetter]]:
        """Return a page of dead letters with their ids, oldest first.

        Args:
            queue: The queue whose jobs failed, with or without `-dlq`.
            after: Id of the last dead letter of the page before.
            limit: Maximum number of dead letters.
        """
        last = _letter_id(after) if after is not None else None
        rows = await self._store.jobs(self._dlq(queue), JobState.WAITING, after=last, limit=limit)
        return [(row.id, read_dead_letter(row)) for row in rows]

    async def get(self, id: str) -> DeadLetter:
        """Return a dead letter, by its id or by the id of the job that failed.

        Args:
            id: Id of the dead letter, or of the job that failed.
        """
        letter = read_dead_letter(await self._row(id))
        if letter.unreadable is not None and not letter.original_job_id:
            raise UnreadableJob(letter.unreadable)
        return letter

    async def redrive(self, id: str, *, input: Any = None) -> RedriveResult:
        """Put one dead letter back to work.

        Args:
            id: Id of the dead letter, or of the job that failed.
            input: Another input instead of the recorded one.
        """
        done = RedriveResult()
        await self._redrive(await self._row(id), done, None if input is None else pack(input))
        return done

    async def retry_step(self, failed: JobRow) -> RedriveResult:
        """Redrive a failed step that has no dead letter."""
        done = RedriveResult()
        try:
            sent = await self._commands.retry_step(failed)
        except (RunError, UnknownRun, UnreadableRecord) as problem:
            done.refused[failed.id] = str(problem)
            return done
        if sent is None:
            done.refused[failed.id] = GONE
        else:
            done.sent[failed.id] = sent
        return done

    async def redrive_all(
        self,
        queue: str,
        *,
        where: Callable[[DeadLetter], bool] | None = None,
        change: Callable[[Any], Any] | None = None,
        limit: int | None = None,
    ) -> RedriveResult:
        """Redrive the dead letters of a queue.

        Args:
            queue: The queue whose jobs failed.
            where: Redrive only those for which this function returns true. Letters without a readable input have None.
            change: Function that returns the new input for a recorded one.
            limit: Maximum number to redrive.
        """
        if limit is not None:
            check_count(limit)
        for function, what in ((where, "where"), (change, "change")):
            if function is not None:
                check_function(function, what, "of a dead letter")
        done = RedriveResult()
        for id in await self._select(queue, where):
            if limit is not None and len(done.sent) >= limit:
                break
            row = await self._store.job(id)
            if row is None:
                done.refused[id] = GONE
                continue
            await self._redrive(row, done, None if change is None else _change_input(read_dead_letter(row), change))
        return done

    async def discard(self, id: str) -> bool:
        """Delete a dead letter for good.

        Args:
            id: Id of the dead letter, or of the job that failed.
        """
        row = await self._row(id)
        return await self._store.remove(row.id)

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
                f"no dead letter with id {id!r}; run `penstock dlq` to see the queues that have dead letters"
            )
        return row

    async def _redrive(self, row: JobRow, done: RedriveResult, payload: bytes | None) -> None:
        letter = read_dead_letter(row)
        if letter.unreadable is not None and (payload is None or not letter.original_job_id):
            done.refused[row.id] = f"{letter.unreadable}; redrive it with another input, or discard it"
            return
        data = payload if payload is not None else pack(letter.original_data)
        sent: str | None
        try:
            if letter.run is not None and await self._commands.is_compensated(letter.run):
                sent = await self._start_again(row, letter.run, data == pack(letter.original_data))
            elif letter.run is not None:
                sent = await self._commands.redrive(row, letter, data)
            else:
                sent = await self._resend(row, letter, data)
        except (RunError, UnknownRun, UnknownFlow, UnreadableRecord) as problem:
            done.refused[row.id] = str(problem)
            return
        if sent is None:
            done.refused[row.id] = GONE
        else:
            done.sent[row.id] = sent

    async def _start_again(self, row: JobRow, run: str, is_unchanged: bool) -> str:
        """Start a compensated run again as a new run: the steps before the failed one are undone.

        A crash before the dead letter is removed leaves it; redriving it again then starts nothing.
        """
        if not is_unchanged:
            raise RunError(
                f"run {run!r} is compensated, so its step cannot continue with another input; "
                f"`penstock runs replay {run} --input …` starts the run again"
            )
        sent = await self._commands.start_compensated_again(run)
        await self._store.remove(row.id)
        return sent

    async def _resend(self, row: JobRow, letter: DeadLetter, payload: bytes) -> str | None:
        before = msgspec.convert(letter.options, JobOptions)
        if (before.parent is not None or before.has_children) and payload == pack(letter.original_data):
            return await self._retry_in_place(row, letter)
        await self._check_id_is_free(letter.original_job_id, before)
        options = msgspec.structs.replace(before, redriven=before.redriven + 1)
        scope = letter.original_job_id.partition(".redrive-")[0]  # it keeps its memos and its idempotency key
        id = f"{scope}.redrive-{options.redriven}"
        job = new_job(
            id=id,
            scope=scope,
            queue=letter.queue,
            name=letter.original_job_name,
            payload=payload,
            bodies=self._bodies,
            options=options,
        )
        if before.parent is not None:
            parent = msgspec.structs.replace(before.parent, replaces=letter.original_job_id)
            job = msgspec.structs.replace(job, parent=parent)
        unit = Unit(self._unit_id(), jobs=[job], removes=[row.id])
        receipt = await self._committer.submit(CommitRequest(lambda _v, _r: unit))
        return id if isinstance(receipt, Committed) else None

    async def _check_id_is_free(self, id: str, before: JobOptions) -> None:
        """Raise if another job knows this one by its id: with a new input it becomes a new job."""
        if before.has_children:
            raise RunError(
                f"job {id!r} cannot be changed on redrive because its child jobs refer to it. Redrive it without "
                "changes, or enqueue the whole tree again"
            )
        parent = await self._store.job(before.parent.id) if before.parent is not None else None
        if parent is not None and parent.state is JobState.FAILED:
            raise RunError(
                f"job {id!r} cannot be changed on redrive because its parent {parent.id!r}, which it failed, "
                "refers to it. Redrive both without changes, or enqueue the whole tree again with another input"
            )

    async def _retry_in_place(self, row: JobRow, letter: DeadLetter) -> str | None:
        """Retry a job of a tree under its own id, by which its parent and its children know it.

        The dead letter goes first: the job may leave another one at once. `app.jobs.retry` works without it.
        """
        job = await self._store.job(letter.original_job_id)
        if job is None or job.state is not JobState.FAILED:
            raise RunError(
                f"job {letter.original_job_id!r} was removed or has not failed, so it cannot be retried; enqueue the "
                "whole tree again"
            )
        unit = Unit(self._unit_id(), removes=[row.id])
        receipt = await self._committer.submit(CommitRequest(lambda _v, _r: unit))
        if not isinstance(receipt, Committed) or not await self._store.retry(job.id):
            return None
        return job.id

    def _dlq(self, queue: str) -> str:
        """Return the dead-letter queue of a queue; one that is a dead-letter queue itself is returned as it is."""
        handlers = self._registry().handlers()
        if queue.endswith("-dlq") or any(handler.dlq == queue for handler in handlers):
            return queue
        return next((handler.dlq for handler in handlers if handler.queue_name == queue), f"{queue}-dlq")


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
