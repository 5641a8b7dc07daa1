"""`penstock dlq list|show|redrive|discard`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from ...app import App
from ...app.dead_letters import RedriveResult
from ...core.errors import UnknownQueue
from ...core.ids import dead_letter_id
from ...core.near_match import did_you_mean
from ...jobs.dead_letters import DeadLetter
from ..errors import EXIT_FAILED, EXIT_OK, UsageError, warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import Reveal, SecretFilter, Yes, confirm, print_text
from ..parse import read_input, read_limit
from ..session import build_admin_app
from ..tables import pluralize, print_object, print_result, print_rows

dlq = Commands(name="dlq", help="Dead letters: jobs and steps that finally failed, kept until redriven or discarded.")
_COLUMNS = ("id", "queue", "name", "run", "attempts", "failedAt", "error")


@dlq.command(name="list")
@dlq.default
def list_dead_letters(
    queue: str | None = None,
    /,
    *,
    after: Annotated[str | None, Parameter(help="Only dead letters after the one with this id.")] = None,
    limit: Annotated[int, Parameter(help="Maximum number of rows.")] = 50,
    reveal: Reveal = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """List the dead letters of a queue, oldest first; without a queue, count them by queue.

    Parameters
    ----------
    queue
        The queue's name, with or without '-dlq'.
    """
    if queue is None:
        counts = asyncio.run(_count_by_queue(common))
        rows = [{"queue": name, "count": count} for name, count in counts.items()]
        print_rows(rows, ("queue", "count"), json=common.json, empty="No dead letters.")
        return 0
    secrets = SecretFilter(common, reveal)
    letters = asyncio.run(_list(common, queue, after, read_limit(limit)))
    rows = [dead_letter_to_dict(id, letter, secrets) for id, letter in letters]
    print_rows(rows, _COLUMNS, json=common.json, empty=f"No dead letters in queue {queue}.")
    return 0


@dlq.command
def show(id: str, /, *, reveal: Reveal = False, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Show a dead letter with its input and its error.

    Parameters
    ----------
    id
        The id of the dead letter or of its job.
    """
    letter = asyncio.run(_show(common, id))
    stack = letter.error.get("stack") or ""
    secrets = SecretFilter(common, reveal)
    found = dead_letter_to_dict(dead_letter_id(letter.original_job_id), letter, secrets)
    more = {"stack": stack, "frames": letter.error.get("frames") or []} if common.json else {}
    print_object(found | more, json=common.json)
    if stack and not common.json:
        print_text(stack.rstrip())
    return 0


@dlq.command
def redrive(
    id: str | None = None,
    /,
    *,
    all: Annotated[str | None, Parameter(help="Redrive all dead letters of this queue.")] = None,
    error: Annotated[str | None, Parameter(help="With --all: only those whose error contains this text.")] = None,
    input: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Another input: JSON, @FILE or -.")] = None,
    limit: Annotated[int | None, Parameter(help="With --all: maximum number to redrive.")] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Redrive a dead letter, or all dead letters of a queue: their jobs are enqueued again.

    Parameters
    ----------
    id
        The id of the dead letter or of its job.
    """
    if (id is None) == (all is None):
        raise UsageError("pass either an ID or --all QUEUE")
    if id is not None and (error is not None or limit is not None):
        raise UsageError("--error and --limit can only be used with --all QUEUE")
    inputs = None if input is None else [read_input(input)]
    if id is not None:
        return print_redriven(asyncio.run(_redrive_one(common, id, inputs)), common.json)
    return print_redriven(asyncio.run(_redrive_all(common, all or "", error, inputs, limit)), common.json)


@dlq.command
def discard(id: str, /, *, yes: Yes = False, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Delete a dead letter permanently.

    Parameters
    ----------
    id
        The id of the dead letter or of its job.
    """
    if not confirm(f"Delete dead letter {id} permanently?", yes):
        return EXIT_FAILED
    asyncio.run(_discard(common, id))
    print_result(f"Dead letter {id} is discarded.", {"id": id, "discarded": True}, json=common.json)
    return 0


def dead_letter_to_dict(id: str, letter: DeadLetter, secrets: SecretFilter) -> dict[str, Any]:
    """Return what `dlq --json` prints."""
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
        "file": letter.error.get("file"),
        "line": letter.error.get("line"),
        "input": letter.original_data,
    }
    return secrets.redact_fields(found, "input")


def print_redriven(result: RedriveResult, json: bool, verb: str = "Redrove", noun: str = "dead letter") -> int:
    """Print what was sent again and what was refused; return 1 if anything was refused."""
    for id, why in result.refused.items():
        warn(f"refused {id}: {why}")
    refused = f", {len(result.refused)} refused" if result.refused else ""
    lines = [f"{id} -> {job}" for id, job in result.sent.items()]
    lines.append(f"{verb} {pluralize(len(result.sent), noun)}{refused}.")
    print_result("\n".join(lines), msgspec.to_builtins(result), json=json)
    return EXIT_FAILED if result.refused else EXIT_OK


async def _count_by_queue(common: CommonOptions) -> dict[str, int]:
    async with build_admin_app(common) as app:
        return await app.dead_letters.queues()


async def _check_queue(app: App, queue: str) -> None:
    """Raise for an unknown queue, which is not the same as one without dead letters."""
    known = {row.name for row in await app.queues.list()} | {handler.dlq for handler in app.registry.handlers()}
    if queue not in known and f"{queue}-dlq" not in known and queue.removesuffix("-dlq") not in known:
        names = sorted(known)
        hint = did_you_mean(queue, names) or f"known queues: {', '.join(names) or 'none'}"
        raise UnknownQueue(f"no queue named {queue!r}; {hint}")


async def _list(common: CommonOptions, queue: str, after: str | None, limit: int) -> list[tuple[str, DeadLetter]]:
    async with build_admin_app(common) as app:
        await _check_queue(app, queue)
        return await app.dead_letters.list(queue, after=after, limit=limit)


async def _show(common: CommonOptions, id: str) -> DeadLetter:
    async with build_admin_app(common) as app:
        return await app.dead_letters.get(id)


async def _redrive_one(common: CommonOptions, id: str, inputs: list[Any] | None) -> RedriveResult:
    if inputs == [None]:
        raise UsageError(
            "--input null cannot be combined with an ID; to replace the input of dead letters with null when you "
            "redrive them, use --all QUEUE"
        )
    async with build_admin_app(common) as app:
        return await app.dead_letters.redrive(id, input=inputs[0] if inputs else None)


async def _redrive_all(
    common: CommonOptions, queue: str, error: str | None, inputs: list[Any] | None, limit: int | None
) -> RedriveResult:
    def matches(letter: DeadLetter) -> bool:
        return error is None or error in f"{letter.error.get('name')}: {letter.error.get('message')}"

    async with build_admin_app(common) as app:
        await _check_queue(app, queue)
        change = None if inputs is None else lambda _before: inputs[0]
        return await app.dead_letters.redrive_all(queue, where=matches, change=change, limit=limit)


async def _discard(common: CommonOptions, id: str) -> None:
    async with build_admin_app(common) as app:
        await app.dead_letters.discard(id)
