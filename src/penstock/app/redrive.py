"""Puts dead letters and failed steps back to work: in their run, in their tree, or as a new job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..commit.command_sink import DirectSink
from ..commit.committer import CommitRequest
from ..commit.preview import Preview, is_dry_run, note
from ..commit.runtime import Runtime
from ..core.errors import RunError, RunMoved, UnknownEntity, UnknownFlow, UnknownRun, UnreadableRecord
from ..core.payload import pack
from ..flows.run_commands import FlowCommands
from ..jobs.dead_letters import DeadLetter, read_dead_letter
from ..jobs.engine import JobOptions, new_job
from ..ports.store import JobRow
from ..ports.unit import Committed, JobState, Unit

if TYPE_CHECKING:
    from ..entities.commands import EntityCommands

GONE = "another call has already taken this dead letter"
UNSEEN = "it was not part of the dry run; repeat that, or redrive it without a preview"


class RedriveResult(msgspec.Struct):
    """What a redrive did, for each dead letter."""

    sent: dict[str, str] = {}  # dead letter -> its new job
    refused: dict[str, str] = {}  # dead letter -> reason


class Redriver:
    """Puts work that has failed for good back into its queue.

    A step continues its run; a compensated run starts again as a new one. A job with a new input becomes a new job.
    """

    def __init__(self, runtime: Runtime, commands: FlowCommands, entities: Callable[[], EntityCommands]) -> None:
        self._entities = entities
        self._store = runtime.store
        self._commands = commands
        self._sink = DirectSink(runtime.committer)
        self._bodies = runtime.bodies
        self._unit_id = runtime.new_unit_id

    async def redrive_each(
        self,
        ids: Sequence[str],
        new_input: Callable[[JobRow], bytes | None],
        limit: int | None,
        preview: Preview | None,
    ) -> RedriveResult:
        done = RedriveResult()
        shown = frozenset(preview.removed_jobs) if preview is not None else None
        for id in ids:
            if limit is not None and len(done.sent) >= limit:
                break
            row = await self._store.job(id)
            if row is None or (shown is not None and id not in shown):
                done.refused[id] = GONE if row is None else UNSEEN
                continue
            try:
                await self.redrive(row, done, new_input(row))
            except RunMoved as problem:  # of this letter; the others are redriven
                done.refused[id] = str(problem)
        return done

    async def retry_step(self, failed: JobRow) -> RedriveResult:
        """Redrive a failed step that has no dead letter."""
        done = RedriveResult()
        try:
            sent = await self._commands.retry_step(failed)
        except RunMoved:
            raise
        except (RunError, UnknownRun, UnreadableRecord) as problem:
            done.refused[failed.id] = str(problem)
            return done
        if sent is None:
            done.refused[failed.id] = GONE
        else:
            done.sent[failed.id] = sent
        return done

    async def redrive(self, row: JobRow, done: RedriveResult, payload: bytes | None) -> None:
        """Redrive one dead letter, with another input if there is a payload, and note in `done` what came of it."""
        letter = read_dead_letter(row)
        if letter.unreadable is not None and (payload is None or not letter.original_job_id):
            done.refused[row.id] = f"{letter.unreadable}; redrive it with another input, or discard it"
            return
        data = payload if payload is not None else pack(letter.original_data)
        sent: str | None
        try:
            if letter.run is not None and await self._entities().exists(letter.run):
                sent = await self._entities().redrive(row.id, letter.run, letter.step or "", data)
            elif letter.run is not None and await self._commands.is_compensated(letter.run):
                sent = await self._start_again(row, letter.run, data == pack(letter.original_data))
            elif letter.run is not None:
                sent = await self._commands.redrive(row, letter, data)
            else:
                sent = await self._resend(row, letter, data)
        except RunMoved:
            raise
        except (RunError, UnknownRun, UnknownFlow, UnknownEntity, UnreadableRecord) as problem:
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
        if is_dry_run():
            note(Unit("", removes=[row.id]))
        else:
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
            priority=options.priority,
            rate_key=options.rate_key,
        )
        if before.parent is not None:
            parent = msgspec.structs.replace(before.parent, replaces=letter.original_job_id)
            job = msgspec.structs.replace(job, parent=parent)
        unit = Unit(self._unit_id(), jobs=[job], removes=[row.id])
        receipt = await self._sink.submit(CommitRequest(lambda _v, _r: unit))
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
                f"job {id!r} cannot be redriven with a new input, because its parent {parent.id!r} failed with it. "
                "Redrive both without changes, or enqueue the whole tree again"
            )

    async def _retry_in_place(self, row: JobRow, letter: DeadLetter) -> str | None:
        """Retry a job of a tree under its own id, by which its parent and its children know it.

        The dead letter goes first: the job may leave another one at once. `app.jobs.retry` works without it.
        """
        job = await self._store.job(letter.original_job_id)
        if job is None or job.state is not JobState.FAILED:
            found = "no longer exists" if job is None else f"is {job.state.value}, not failed"
            raise RunError(
                f"job {letter.original_job_id!r} {found}, so it cannot be retried; enqueue the whole tree again"
            )
        unit = Unit(self._unit_id(), removes=[row.id])
        receipt = await self._sink.submit(CommitRequest(lambda _v, _r: unit))
        if is_dry_run():
            note(Unit("", wakes=[job.id]))
            return job.id
        if not isinstance(receipt, Committed) or not await self._store.retry(job.id):
            return None
        return job.id
