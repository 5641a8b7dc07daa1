"""`penstock dlq list|show|redrive|discard`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from ..app import App
from ..app.dead_letters import Redriven
from ..core.errors import UnknownQueue
from ..core.ids import dead_letter_id
from ..core.near_match import did_you_mean
from ..jobs.dead_letters import DeadLetter
from .confirm import NOT_DONE, Yes, confirmed
from .errors import UsageMistake, warn
from .options import USUAL_PLACE, Common
from .output import FAILED, OK
from .parse import read_input, read_limit
from .secrets import Reveal, Veil
from .session import acting_app
from .tables import done, show_list, show_object

dlq = Commands(name="dlq", help="Dead letters: what finally failed, kept until it is sent again or discarded.")
_SHOWN = ("id", "queue", "name", "run", "attempts", "failedAt", "error")


@dlq.command(name="list")
@dlq.default
def list_letters(
    queue: str | None = None,
    /,
    *,
    after: Annotated[str | None, Parameter(help="Only letters after the one of this id.")] = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 50,
    reveal: Reveal = False,
    common: Common = USUAL_PLACE,
) -> int:
    """List the dead letters of a queue, oldest first; without a queue, the queues that have any.

    Parameters
    ----------
    queue
        The queue's name, with or without '-dlq'.
    """
    if queue is None:
        rows = [{"queue": name, "letters": count} for name, count in asyncio.run(_queues(common)).items()]
        show_list(rows, ("queue", "letters"), json=common.json, none="No dead letters.")
        return 0
    veil = Veil(common, reveal)
    letters = asyncio.run(_list(common, queue, after, read_limit(limit)))
    rows = [letter_object(id, letter, veil) for id, letter in letters]
    show_list(rows, _SHOWN, json=common.json, none=f"No dead letters of queue {queue}.")
    return 0


@dlq.command
def show(id: str, /, *, reveal: Reveal = False, common: Common = USUAL_PLACE) -> int:
    """Show a dead letter with its payload and its error.

    Parameters
    ----------
    id
        The letter's id, or that of the job that died.
    """
    letter = asyncio.run(_show(common, id))
    stack = letter.error.get("stack") or ""
    veil = Veil(common, reveal)
    shown = letter_object(dead_letter_id(letter.original_job_id), letter, veil)
    show_object(shown | ({"stack": stack} if common.json else {}), json=common.json)
    if stack and not common.json:
        print(stack.rstrip())
    return 0


@dlq.command
def redrive(
    id: str | None = None,
    /,
    *,
    all: Annotated[str | None, Parameter(help="All letters of this queue.")] = None,
    error: Annotated[str | None, Parameter(help="With --all: only those with this text in their error.")] = None,
    payload: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Another payload: JSON, @FILE.")] = None,
    limit: Annotated[int | None, Parameter(help="With --all: at most so many.")] = None,
    common: Common = USUAL_PLACE,
) -> int:
    """Send dead letters again: one, or those of a queue.

    Parameters
    ----------
    id
        The letter's id, or that of the job that died.
    """
    if (id is None) == (all is None):
        raise UsageMistake("say which: either the ID of a letter, or --all QUEUE")
    if id is not None and (error is not None or limit is not None):
        raise UsageMistake("--error and --limit go with --all QUEUE")
    data = None if payload is None else [read_input(payload, "--payload")]
    if id is not None:
        return told(asyncio.run(_redrive_one(common, id, data)), common.json)
    return told(asyncio.run(_redrive_all(common, all or "", error, data, limit)), common.json)


@dlq.command
def discard(id: str, /, *, yes: Yes = False, common: Common = USUAL_PLACE) -> int:
    """Delete a dead letter for good.

    Parameters
    ----------
    id
        The letter's id, or that of the job that died.
    """
    if not confirmed(f"Delete dead letter {id} for good?", yes):
        return NOT_DONE
    asyncio.run(_discard(common, id))
    done(f"Dead letter {id} is gone.", {"id": id, "discarded": True}, json=common.json)
    return 0


def letter_object(id: str, letter: DeadLetter, veil: Veil) -> dict[str, Any]:
    """The object `dlq --json` prints."""
    found = {
        "id": id,
        "queue": letter.queue,
        "name": letter.original_job_name,
        "job": letter.original_job_id,
        "run": letter.run,
        "flow": letter.flow,
        "step": letter.step,
        "attempts": letter.attempts_made,
        "failedAt": letter.failed_at,
        "error": letter.error.get("message"),
        "code": letter.error.get("code"),
        "payload": letter.original_data,
    }
    return veil.over(found, "payload")


def told(sent: Redriven, json: bool) -> int:
    """Says what was done; 1 when something was to be sent and none of it was."""
    for id, why in sent.refused.items():
        warn(f"not sent: {id}: {why}")
    count, refused = len(sent.sent), len(sent.refused)
    text = f"Sent {count} dead letter{'s' * (count != 1)} again"
    text += f", {refused} not." if refused else "." if count else ": there was none to send."
    done("\n".join([*(f"{id} -> {job}" for id, job in sent.sent.items()), text]), msgspec.to_builtins(sent), json=json)
    return FAILED if refused else OK


async def _queues(common: Common) -> dict[str, int]:
    async with acting_app(common) as app:
        return await app.dead_letters.queues()


async def _check_queue(app: App, queue: str) -> None:
    """A queue nobody has heard of is a mistake, not one without letters."""
    known = {row.name for row in await app.queues.list()} | {handler.dlq for handler in app.registry.handlers()}
    if queue not in known and f"{queue}-dlq" not in known and queue.removesuffix("-dlq") not in known:
        names = sorted(known)
        hint = did_you_mean(queue, names) or f"known are {', '.join(names) or 'none'}"
        raise UnknownQueue(f"there is no queue {queue!r}: {hint}")


async def _list(common: Common, queue: str, after: str | None, limit: int) -> list[tuple[str, DeadLetter]]:
    async with acting_app(common) as app:
        await _check_queue(app, queue)
        return await app.dead_letters.list(queue, after=after, limit=limit)


async def _show(common: Common, id: str) -> DeadLetter:
    async with acting_app(common) as app:
        return await app.dead_letters.get(id)


async def _redrive_one(common: Common, id: str, data: list[Any] | None) -> Redriven:
    if data == [None]:
        raise UsageMistake("--payload null: a letter is sent with null only by --all")
    async with acting_app(common) as app:
        return await app.dead_letters.redrive(id, input=data[0] if data else None)


async def _redrive_all(
    common: Common, queue: str, error: str | None, data: list[Any] | None, limit: int | None
) -> Redriven:
    def picked(letter: DeadLetter) -> bool:
        return error is None or error in f"{letter.error.get('name')}: {letter.error.get('message')}"

    async with acting_app(common) as app:
        await _check_queue(app, queue)
        change = None if data is None else lambda _before: data[0]
        return await app.dead_letters.redrive_all(queue, where=picked, change=change, limit=limit)


async def _discard(common: Common, id: str) -> None:
    async with acting_app(common) as app:
        await app.dead_letters.discard(id)
