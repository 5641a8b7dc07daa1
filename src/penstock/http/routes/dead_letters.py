"""`/api/_dlq`: dead letters and their error groups; redrive and discard them."""

from __future__ import annotations

from typing import Any

import msgspec

from ...app.app import App
from ...app.arguments import UNSET
from ...app.dead_letters import ErrorGroup
from ...app.redrive import RedriveResult
from ...commit.preview import Preview
from ...core.errors import CountChanged
from ...jobs.dead_letters import DeadLetter
from ..endpoints import Body, DryRunQuery, Limit, Query, Routes
from .jobs import Done

routes = Routes("dead letters")


class LetterQuery(Query):
    """Which dead letters to list."""

    group: str | None = None  # only those of this error group
    after: str | None = None
    limit: Limit = 50


class GroupQuery(Query):
    """Which error groups to list."""

    queue: str | None = None  # the queue whose jobs failed
    limit: Limit = 50


class CountQuery(Query):
    """Which dead letters to count."""

    queue: str | None = None
    group: str | None = None


class Count(msgspec.Struct):
    """A number of dead letters."""

    count: int


class LetterItem(msgspec.Struct):
    """A dead letter with its id."""

    id: str
    letter: DeadLetter


class LetterPage(msgspec.Struct):
    """A page of dead letters. `next` is the `after` of the next page, or null."""

    items: list[LetterItem]
    next: str | None = None


class RedriveBody(Body):
    """How to redrive."""

    input: Any = msgspec.UNSET  # another input instead of the recorded one


class Redriven(msgspec.Struct, omit_defaults=True):
    """What was redriven, or what would be written."""

    sent: dict[str, str] = {}  # dead letter -> its new job
    refused: dict[str, str] = {}  # dead letter -> reason
    preview: Preview | None = None


class ConfirmBody(Body):
    """Without `confirm`, the letters are only counted. Pass the count, or true to take as many as there are."""

    confirm: int | bool = False


class RedriveAllBody(ConfirmBody):
    """How many dead letters to redrive."""

    limit: int | None = None
    preview: Preview | None = None  # of a dry run: refuse letters whose run has moved on since, and those that are new


class RedriveGroupBody(ConfirmBody):
    """How to redrive a group."""

    input: Any = msgspec.UNSET  # another input instead of the recorded ones
    preview: Preview | None = None  # of a dry run: refuse letters whose run has moved on since, and those that are new


class BulkQuery(Query):
    """Whether the command only shows what it would write."""

    dry_run: bool = False


class LetterBulk(msgspec.Struct):
    """How many dead letters there are, and what was done with them once that was confirmed."""

    matched: int
    sent: dict[str, str] = {}  # dead letter -> its new job
    refused: dict[str, str] = {}  # dead letter -> reason
    removed: int = 0
    preview: Preview | msgspec.UnsetType = msgspec.UNSET  # of a dry run


@routes.get("/api/_dlq")
async def list_dead_letter_queues(app: App) -> dict[str, int]:
    """Return the dead-letter queues that are not empty, with their counts."""
    return await app.dead_letters.queues()


@routes.get("/api/_dlq/count")
async def count_dead_letters(app: App, query: CountQuery) -> Count:
    """Count the dead letters of a queue, of an error group, or all."""
    return Count(await app.dead_letters.count(query.queue, group=query.group))


@routes.get("/api/_dlq/groups")
async def list_error_groups(app: App, query: GroupQuery) -> list[ErrorGroup]:
    """List the error groups of dead letters, the largest first: those that failed in the same way."""
    return list(await app.dead_letters.groups(query.queue, limit=query.limit))


@routes.get("/api/_dlq/groups/{group}")
async def get_error_group(app: App, group: str) -> ErrorGroup:
    """Return an error group."""
    return await app.dead_letters.group(group)


@routes.get("/api/_dlq/groups/{group}/sample")
async def get_error_group_sample(app: App, group: str) -> LetterItem:
    """Return the newest dead letter of an error group."""
    id = (await app.dead_letters.group(group)).sample
    return LetterItem(id, await app.dead_letters.get(id))


@routes.post("/api/_dlq/groups/{group}/redrive")
async def redrive_error_group(app: App, group: str, query: BulkQuery, body: RedriveGroupBody) -> LetterBulk:
    """Count the dead letters of an error group and, once that is confirmed, put them back to work."""
    matched = await app.dead_letters.count(group=group)
    if not query.dry_run and not check_confirm(matched, body.confirm):
        return LetterBulk(matched)
    done = await app.dead_letters.redrive_group(
        group, input=_new_input(body.input), dry_run=query.dry_run, version=body.preview
    )
    return _bulk(matched, done)


@routes.post("/api/_dlq/groups/{group}/discard")
async def discard_error_group(app: App, group: str, body: ConfirmBody) -> LetterBulk:
    """Count the dead letters of an error group and, once that is confirmed, delete them for good."""
    matched = await app.dead_letters.count(group=group)
    if not check_confirm(matched, body.confirm):
        return LetterBulk(matched)
    return LetterBulk(matched, removed=await app.dead_letters.discard_group(group))


@routes.get("/api/_dlq/{queue}/letters")
async def list_dead_letters(app: App, queue: str, query: LetterQuery) -> LetterPage:
    """List the dead letters of a queue, oldest first."""
    found = await app.dead_letters.list(queue, group=query.group, after=query.after, limit=query.limit)
    items = [LetterItem(id, letter) for id, letter in found]
    return LetterPage(items, items[-1].id if len(items) == query.limit else None)


@routes.post("/api/_dlq/{queue}/redrive")
async def redrive_queue(app: App, queue: str, query: BulkQuery, body: RedriveAllBody) -> LetterBulk:
    """Count the dead letters of a queue and, once that is confirmed, put them back to work."""
    matched = await app.dead_letters.count(queue)
    if not query.dry_run and not check_confirm(matched, body.confirm):
        return LetterBulk(matched)
    done = await app.dead_letters.redrive_all(queue, limit=body.limit, dry_run=query.dry_run, version=body.preview)
    return _bulk(matched, done)


@routes.get("/api/_dlq/letters/{id}")
async def get_dead_letter(app: App, id: str) -> DeadLetter:
    """Return a dead letter, by its id or by the id of the job that failed."""
    return await app.dead_letters.get(id)


@routes.post("/api/_dlq/letters/{id}/redrive")
async def redrive_dead_letter(app: App, id: str, query: DryRunQuery, body: RedriveBody) -> Redriven:
    """Put a dead letter back to work, with its recorded input or another one."""
    done = await app.dead_letters.redrive(
        id, input=_new_input(body.input), dry_run=query.dry_run, version=query.version
    )
    return show_redriven(done)


@routes.delete("/api/_dlq/letters/{id}")
async def discard_dead_letter(app: App, id: str) -> Done:
    """Delete a dead letter for good."""
    return Done(await app.dead_letters.discard(id))


def check_confirm(matched: int, confirm: int | bool) -> bool:
    """Return whether a bulk action is confirmed. Raise CountChanged if another count was confirmed."""
    if isinstance(confirm, bool):
        return confirm
    if confirm != matched:
        now = f"there is {matched} dead letter" if matched == 1 else f"there are {matched} dead letters"
        raise CountChanged(f"{now} now, not {confirm}; nothing was done. Count again")
    return True


def show_redriven(done: RedriveResult | Preview) -> Redriven:
    """Return what a redrive did, or would do."""
    return Redriven(preview=done) if isinstance(done, Preview) else Redriven(done.sent, done.refused)


def _bulk(matched: int, done: RedriveResult | Preview) -> LetterBulk:
    if isinstance(done, Preview):
        return LetterBulk(matched, preview=done)
    return LetterBulk(matched, done.sent, done.refused)


def _new_input(value: Any) -> Any:
    return UNSET if value is msgspec.UNSET else value
