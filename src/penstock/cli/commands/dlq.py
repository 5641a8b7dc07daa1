"""`penstock dlq list|groups|show|redrive|discard`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from ...app import App
from ...app.arguments import UNSET
from ...app.dead_letters import ErrorGroup
from ...app.redrive import RedriveResult
from ...core.errors import UnknownQueue
from ...core.ids import dead_letter_id
from ...core.near_match import did_you_mean
from ...core.text import pluralize
from ...jobs.dead_letters import DeadLetter
from ..errors import EXIT_FAILED, EXIT_OK, UsageError, warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import Reveal, SecretFilter, Yes, confirm, print_text
from ..parse import read_input, read_limit
from ..preview import DryRun, IfVersion, print_dry_run
from ..session import build_admin_app
from ..tables import print_object, print_result, print_rows

dlq = Commands(name="dlq", help="Dead letters: jobs and steps that finally failed, kept until redriven or discarded.")
_GROUP_COLUMNS = ("group", "queue", "count", "firstAt", "lastAt", "error", "message", "frame", "sample")
_COLUMNS = ("id", "queue", "name", "run", "attempts", "failedAt", "error")


@dlq.command(name="list")
@dlq.default
def list_dead_letters(
    queue: str | None = None,
    /,
    *,
    group: Annotated[str | None, Parameter(help="Only those of this error group: see 'dlq groups'.")] = None,
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
        if group is not None:
            raise UsageError("--group needs a QUEUE")
        counts = asyncio.run(_count_by_queue(common))
        rows = [{"queue": name, "count": count} for name, count in counts.items()]
        print_rows(rows, ("queue", "count"), json=common.json, empty="No dead letters.")
        return 0
    secrets = SecretFilter(common, reveal)
    letters = asyncio.run(_list(common, queue, group, after, read_limit(limit)))
    rows = [dead_letter_to_dict(id, letter, secrets) for id, letter in letters]
    print_rows(rows, _COLUMNS, json=common.json, empty=f"No dead letters in queue {queue}.")
    return 0


@dlq.command
def groups(
    queue: str | None = None,
    /,
    *,
    limit: Annotated[int, Parameter(help="Maximum number of rows.")] = 50,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Group dead letters that failed in the same way, the largest group first.

    A group is made of the error's class and code, its message without numbers and ids, and the function that raised it.

    Parameters
    ----------
    queue
        The queue's name, with or without '-dlq'. Default: all queues.
    """
    found = asyncio.run(_groups(common, queue, read_limit(limit)))
    rows = [_group_to_dict(one) for one in found]
    print_rows(rows, _GROUP_COLUMNS, json=common.json, empty="No dead letters.")
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
    group: Annotated[str | None, Parameter(help="Redrive the dead letters of this error group.")] = None,
    error: Annotated[str | None, Parameter(help="With --all: only those whose error contains this text.")] = None,
    input: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Another input: JSON, @FILE or -.")] = None,
    limit: Annotated[int | None, Parameter(help="With --all: maximum number to redrive.")] = None,
    dry_run: DryRun = False,
    if_version: IfVersion = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Redrive a dead letter, an error group, or all dead letters of a queue: their jobs are enqueued again.

    Parameters
    ----------
    id
        The id of the dead letter or of its job.
    """
    if sum(one is not None for one in (id, all, group)) != 1:
        raise UsageError("pass either an ID, --group GROUP or --all QUEUE")
    if all is None and (error is not None or limit is not None):
        raise UsageError("--error and --limit can only be used with --all QUEUE")
    inputs = None if input is None else [read_input(input)]
    if if_version is not None and id is None:
        raise UsageError("--if-version can only be used with an ID: it is the version of one run")

    async def act(app: App) -> Any:
        options: dict[str, Any] = {"dry_run": dry_run}
        if all is not None:
            return await _redrive_all(app, all, error, inputs, {**options, "limit": limit})
        if group is not None:
            return await app.dead_letters.redrive_group(group, input=_read_other(inputs), **options)
        return await app.dead_letters.redrive(id or "", input=_read_other(inputs), version=if_version, **options)

    return print_dry_run(common, act) if dry_run else print_redriven(asyncio.run(_call(common, act)), common.json)


@dlq.command
def discard(
    id: str | None = None,
    /,
    *,
    group: Annotated[str | None, Parameter(help="Delete the dead letters of this error group.")] = None,
    yes: Yes = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Delete a dead letter, or those of an error group, permanently.

    Parameters
    ----------
    id
        The id of the dead letter or of its job.
    """
    if (id is None) == (group is None):
        raise UsageError("pass either an ID or --group GROUP")
    what = f"dead letter {id}" if id is not None else f"all dead letters of group {group}"
    if not confirm(f"Delete {what} permanently?", yes):
        return EXIT_FAILED
    count = asyncio.run(_discard(common, id, group))
    if id is not None:
        print_result(f"Dead letter {id} is discarded.", {"id": id, "discarded": True}, json=common.json)
    else:
        message = f"{pluralize(count, 'dead letter')} of group {group} discarded."
        print_result(message, {"group": group, "discarded": count}, json=common.json)
    return 0


def _group_to_dict(group: ErrorGroup) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(group)
    return {"group": found.pop("id"), **found}


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
        "group": letter.group,
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


async def _groups(common: CommonOptions, queue: str | None, limit: int) -> Sequence[ErrorGroup]:
    async with build_admin_app(common) as app:
        if queue is not None:
            await _check_queue(app, queue)
        return await app.dead_letters.groups(queue, limit=limit)


async def _list(
    common: CommonOptions, queue: str, group: str | None, after: str | None, limit: int
) -> list[tuple[str, DeadLetter]]:
    async with build_admin_app(common) as app:
        await _check_queue(app, queue)
        return await app.dead_letters.list(queue, group=group, after=after, limit=limit)


async def _show(common: CommonOptions, id: str) -> DeadLetter:
    async with build_admin_app(common) as app:
        return await app.dead_letters.get(id)


def _read_other(inputs: list[Any] | None) -> Any:
    return UNSET if inputs is None else inputs[0]


async def _call(common: CommonOptions, act: Callable[[App], Awaitable[RedriveResult]]) -> RedriveResult:
    async with build_admin_app(common) as app:
        return await act(app)


async def _redrive_all(
    app: App, queue: str, error: str | None, inputs: list[Any] | None, options: dict[str, Any]
) -> Any:
    def matches(letter: DeadLetter) -> bool:
        return error is None or error in f"{letter.error.get('name')}: {letter.error.get('message')}"

    await _check_queue(app, queue)
    change = None if inputs is None else lambda _before: inputs[0]
    where = None if error is None else matches
    return await app.dead_letters.redrive_all(queue, where=where, change=change, **options)


async def _discard(common: CommonOptions, id: str | None, group: str | None) -> int:
    async with build_admin_app(common) as app:
        if id is not None:
            return await app.dead_letters.discard(id)
        return await app.dead_letters.discard_group(group or "")
