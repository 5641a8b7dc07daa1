"""`app.queues.children`: the children of a job with what they returned, or why they failed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from ..commit.committer import Intent
from ..commit.runtime import Runtime
from ..core.errors import RunError, UnknownJob, UnknownQueue, UnknownRun
from ..core.events import Event
from ..core.ids import dead_letter_id
from ..core.near_match import did_you_mean
from ..core.payload import pack, unpack
from ..flows.commands import Commands, read_letter
from ..jobs.dead_letters import DeadLetter
from ..jobs.engine import JobOptions, new_job
from ..ports.store import ChildRow, ChildState, JobRow, QueueRow, SharedQueues, Store
from ..ports.unit import DELIVERIES, Committed, JobState, Unit
from ..stores.child_keys import reason
from .arguments import a_name, count, one_of
from .events import once_known


class Child(msgspec.Struct, frozen=True):
    """A child of a job, as its parent sees it."""

    key: str  # `bull:<queue>:<id>`
    queue: str
    id: str
    state: ChildState
    value: Any = None  # what it returned, once it is processed
    reason: str | None = None  # why it failed, if it is ignored or failed


async def children_of(store: Store, id: str) -> list[Child]:
    """The children of a job in the order of their keys."""
    return [await _child(store, row) for row in await store.children(id)]


async def _child(store: Store, row: ChildRow) -> Child:
    value = unpack(row.value) if row.value is not None else None
    why = row.reason
    if row.state is ChildState.FAILED and why is None:
        # Not every store keeps it beside the parent: it is in the child itself, as long as that is kept.
        job = await store.job(row.id)
        why = reason(job.error) if job is not None and job.error is not None else None
    return Child(row.key, row.queue, row.id, row.state, value, why)


class Queues:
    """Queue administration."""

    def __init__(self, runtime: Runtime) -> None:
        self._store = runtime.store
        self._streams = runtime.bodies
        self._registry = runtime.registry

    async def list(self, *, internal: bool = False) -> list[QueueRow]:
        """Every queue with its counts by state, those this process knows included if nothing was ever in them.

        With `internal`, also the one on which events are delivered to whoever waits for them."""
        rows = {row.name: row for row in await self._store.queues() if internal or row.name != DELIVERIES}
        for name in self._registry().queues():
            rows.setdefault(name, QueueRow(name, False, {state.value: 0 for state in JobState}))
        return [rows[name] for name in sorted(rows)]

    async def counts(self, queue: str) -> dict[str, int]:
        return (await self._get(queue)).counts

    async def jobs(
        self, queue: str, state: JobState | str = JobState.WAITING, *, after: str | None = None, limit: int = 50
    ) -> Sequence[JobRow]:
        """A page of jobs in a state; `after` is the id of the last one of the page before."""
        state = JobState(one_of(state, [one.value for one in JobState], "state"))
        return await self._store.jobs(queue, state, after=after, limit=count(limit))

    async def job(self, id: str) -> JobRow:
        row = await self._store.job(id)
        if row is None:
            raise UnknownJob(f"there is no job {id!r}: it may have been removed, or be in another store")
        return row

    async def children(self, id: str) -> Sequence[Child]:
        """The children of a job, each with what it returned or why it failed; none if it was not added as a parent."""
        await self.job(id)
        return await children_of(self._store, id)

    async def dependencies(self, id: str) -> dict[str, int]:
        """How many children of a job are processed, unprocessed, ignored (failed, and it goes on) and failed."""
        await self.job(id)
        rows = await self._store.children(id)
        return {state.value: sum(row.state is state for row in rows) for state in ChildState}

    async def pause(self, queue: str) -> None:
        """Hands out nothing more of a queue; what is running ends."""
        await self._get(queue)
        await self._store.pause(queue)

    async def resume(self, queue: str) -> None:
        await self._get(queue)
        await self._store.resume(queue)

    async def promote(self, id: str) -> bool:
        """Makes a delayed job due now. False if it is not delayed."""
        if await self._store.promote(id):
            return True
        await self.job(id)  # an id that nothing has is a mistake, not an answer
        return False

    async def retry(self, id: str) -> bool:
        """Puts a failed or cancelled plain job back into its queue, and takes its dead letter away. False if it is
        neither."""
        row = await self.job(id)
        if row.state is JobState.FAILED and row.run is None:
            await self._store.remove(dead_letter_id(id))  # first: it may leave another one at once
        return await self._store.retry(id)

    async def remove(self, id: str) -> bool:
        """Deletes a plain job that no worker holds; a step's job belongs to its run, which can be cancelled."""
        row = await self.job(id)
        if row.run is not None and row.state in (JobState.WAITING, JobState.DELAYED, JobState.SUSPENDED):
            raise RunError(f"job {id!r} belongs to run {row.run!r}: cancel the run instead")
        return await self._store.remove(id)

    async def drain(self, queue: str, *, delayed: bool = False) -> int:
        """Deletes the plain jobs that wait in a queue."""
        await self._get(queue)
        return await self._store.drain(queue, delayed=delayed)

    def events(self, queue: str, *, after: str | None = None, shared: bool = False) -> AsyncIterator[Event]:
        """The job events of a queue, then live.

        With `shared`, those of jobs that other programs work on too, as the queue itself tells of them: `after` is then
        an id of such an event. Where no other program can, it is the same.
        """
        if shared and isinstance(self._store, SharedQueues):
            return self._store.job_events(queue, after=after)
        stream = self._streams.queue(queue)

        async def check() -> None:
            if not await self._store.read(stream, limit=1):  # a queue may be gone whose events are there
                await self._get(queue)

        return once_known(check, self._store.tail(stream, after=after))

    async def _get(self, queue: str) -> QueueRow:
        for row in await self.list(internal=True):
            if row.name == queue:
                return row
        names = [row.name for row in await self.list()]
        hint = did_you_mean(queue, names) or f"known are {', '.join(names) or 'none'}"
        raise UnknownQueue(f"there is no queue {queue!r}: {hint}")


GONE = "someone else took it first"


class Redriven(msgspec.Struct):
    """What a redrive did, letter by letter."""

    sent: dict[str, str] = {}  # letter -> the job it became
    refused: dict[str, str] = {}  # letter -> why not


class DeadLetters:
    """What finally failed, kept in `<queue>-dlq`, or where its definition says, until it is sent again or discarded."""

    def __init__(self, runtime: Runtime, commands: Commands) -> None:
        self._registry = runtime.registry
        self._store = runtime.store
        self._commands = commands
        self._committer = runtime.committer
        self._bodies = runtime.bodies
        self._unit_id = runtime.new_unit_id

    async def queues(self) -> dict[str, int]:
        """Dead-letter queues that hold something, and how much."""
        named = {handler.dlq for handler in self._registry().handlers()}
        rows = [row for row in await self._store.queues() if row.name.endswith("-dlq") or row.name in named]
        return {row.name: row.counts["waiting"] for row in rows if row.counts["waiting"]}

    async def list(self, queue: str, *, after: str | None = None, limit: int = 50) -> list[tuple[str, DeadLetter]]:
        """A page of letters of a queue (with or without `-dlq`), oldest first, each with its id."""
        last = _letter_id(after) if after is not None else None
        rows = await self._store.jobs(self._dlq(queue), JobState.WAITING, after=last, limit=count(limit))
        return [(row.id, read_letter(row)) for row in rows]

    async def show(self, id: str) -> DeadLetter:
        return read_letter(await self._row(id))

    async def redrive(self, id: str, *, payload: Any = None) -> Redriven:
        """Sends one letter again, with another payload if one is given."""
        done = Redriven()
        await self._redrive(await self._row(id), done, None if payload is None else pack(payload))
        return done

    async def retry(self, failed: JobRow) -> Redriven:
        """Sends a step again that failed for good and left no letter, or whose letter is gone."""
        done = Redriven()
        try:
            sent = await self._commands.retry_step(failed)
        except (RunError, UnknownRun) as problem:
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
    ) -> Redriven:
        """Sends the letters of a queue again: all, or those `where` picks; `change` edits each payload."""
        done = Redriven()
        for id in await self._picked(queue, where):
            if limit is not None and len(done.sent) >= limit:
                break
            row = await self._store.job(id)
            if row is None:
                done.refused[id] = GONE
                continue
            payload = None if change is None else pack(change(read_letter(row).original_data))
            await self._redrive(row, done, payload)
        return done

    async def discard(self, id: str) -> bool:
        """Deletes a letter for good."""
        row = await self._row(id)
        return await self._store.remove(row.id)

    async def _picked(self, queue: str, where: Callable[[DeadLetter], bool] | None) -> Sequence[str]:
        """Picks first and sends afterwards: pages shift while letters leave them."""
        picked: list[str] = []
        after: str | None = None
        while rows := await self._store.jobs(self._dlq(queue), JobState.WAITING, after=after, limit=500):
            after = rows[-1].id
            picked += [row.id for row in rows if where is None or where(read_letter(row))]
        return picked

    async def _row(self, id: str) -> JobRow:
        row = await self._store.job(_letter_id(id))
        if row is None:
            raise UnknownJob(f"there is no dead letter {id!r}: `penstock dlq` shows where there are any")
        return row

    async def _redrive(self, row: JobRow, done: Redriven, payload: bytes | None) -> None:
        letter = read_letter(row)
        data = payload if payload is not None else pack(letter.original_data)
        try:
            if letter.run is not None:
                sent = await self._commands.redrive(row, letter, data)
            else:
                sent = await self._resend(row, letter, data)
        except (RunError, UnknownRun) as problem:
            done.refused[row.id] = str(problem)
            return
        if sent is None:
            done.refused[row.id] = GONE
        else:
            done.sent[row.id] = sent

    async def _resend(self, row: JobRow, letter: DeadLetter, payload: bytes) -> str | None:
        before = msgspec.convert(letter.options, JobOptions)
        if (before.parent is not None or before.waits) and payload == pack(letter.original_data):
            return await self._retry_in_place(row, letter)
        await self._check_place(letter.original_job_id, before)
        options = msgspec.structs.replace(before, redriven=before.redriven + 1)
        scope = letter.original_job_id.partition(".redrive-")[0]  # it keeps its memos and its idempotency key
        id = f"{scope}.redrive-{options.redriven}"
        job = new_job(
            id=id,
            scope=scope,
            queue=letter.queue,
            name=letter.original_job_name,
            payload=payload,
            recorder=self._bodies,
            options=options,
        )
        if before.parent is not None:
            place = msgspec.structs.replace(before.parent, replaces=letter.original_job_id)
            job = msgspec.structs.replace(job, parent=place)
        unit = Unit(self._unit_id(), jobs=[job], removes=[row.id])
        receipt = await self._committer.submit(Intent(lambda _v, _r: unit))
        return id if isinstance(receipt, Committed) else None

    async def _check_place(self, id: str, before: JobOptions) -> None:
        """With another payload it becomes another job: nobody may depend on its id."""
        if before.waits:
            raise RunError(f"job {id!r} has children that know it by its id: send it as it was, or add its tree again")
        parent = await self._store.job(before.parent.id) if before.parent is not None else None
        if parent is not None and parent.state is JobState.FAILED:
            raise RunError(
                f"job {id!r} failed its parent {parent.id!r}, which knows it by its id: send both again as they were, "
                "or add their tree again with another payload"
            )

    async def _retry_in_place(self, row: JobRow, letter: DeadLetter) -> str | None:
        """A job of a tree keeps its id, by which its parent and its children know it.

        The letter goes first: the job may leave another one at once. Without either, `queues.retry` is still there."""
        job = await self._store.job(letter.original_job_id)
        if job is None or job.state is not JobState.FAILED:
            raise RunError(f"job {letter.original_job_id!r} is gone or not failed: add its tree again")
        unit = Unit(self._unit_id(), removes=[row.id])
        receipt = await self._committer.submit(Intent(lambda _v, _r: unit))
        if not isinstance(receipt, Committed) or not await self._store.retry(job.id):
            return None
        return job.id

    def _dlq(self, queue: str) -> str:
        """The dead-letter queue that is meant: the name itself if it is one, else that of the queue's handlers."""
        handlers = self._registry().handlers()
        if queue.endswith("-dlq") or any(handler.dlq == queue for handler in handlers):
            return queue
        return next((handler.dlq for handler in handlers if handler.home == queue), f"{queue}-dlq")


def _letter_id(id: str) -> str:
    """The id of a letter, given that or the id of the job that died."""
    a_name(id, "id", "the id of a dead letter, or of the job that died")
    return id if id.endswith(".dlq") else dead_letter_id(id)
