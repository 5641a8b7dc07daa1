"""`penstock entities list|show|emit|history|diagram|types`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from ...app.entities import Emission, EntitySummary, EntityType
from ...core.payload import parse_json
from ...entities.reducer import EntityView, TransitionView
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import print_json, print_text
from ..session import build_admin_app, build_code_app, build_worker_app
from ..tables import print_result, print_rows

entities = Commands(name="entities", help="List entities; show, emit, history, diagram, types.")
Limit = Annotated[int, Parameter(help="Maximum number of rows.")]
_HISTORY = ("n", "at", "event", "kind", "from", "to", "reason")


@entities.command(name="list")
@entities.default
def list_entities(
    *,
    type: Annotated[str | None, Parameter(help="Only entities of this type.")] = None,
    status: Annotated[str | None, Parameter(help="Only entities in this state.")] = None,
    before: Annotated[str | None, Parameter(help="Id of the last entity of the page before.")] = None,
    limit: Limit = 50,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """List entities, newest first."""

    async def act() -> Sequence[EntitySummary]:
        async with build_admin_app(common) as app:
            return await app.entities.list(type=type, status=status, before=before, limit=limit)

    rows = [msgspec.to_builtins(one) for one in _run(act())]
    columns = ("urn", "type", "status", "waiting", "createdAt", "updatedAt")
    print_rows(rows, columns, json=common.json, empty="No entities.")
    return 0


@entities.command
def show(
    urn: str,
    /,
    *,
    at: Annotated[str | None, Parameter(help="Id of an event: show the entity as it was then.")] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Show an entity: its status, its data and its last events.

    Parameters
    ----------
    urn
        The entity's urn, or its id.
    """

    async def act() -> EntityView:
        async with build_admin_app(common) as app:
            return await app.entities.get(urn, at=at)

    view = _run(act())
    if common.json:
        print_json(msgspec.to_builtins(view))
        return 0
    shown = {"urn": view.urn, "id": view.id, "type": view.type, "status": view.status, "waiting": len(view.waiting)}
    print_rows([shown], tuple(shown), json=False, empty="")
    print_text(msgspec.json.format(msgspec.json.encode(view.data)).decode())
    print_rows(_history(view.history[-10:][::-1]), _HISTORY, json=False, empty="")
    return 0


@entities.command
def emit(
    urn: str,
    event: str,
    /,
    *,
    payload: Annotated[str | None, Parameter(help="The payload, as JSON.")] = None,
    type: Annotated[str | None, Parameter(help="The type of a new entity.")] = None,
    key: Annotated[str | None, Parameter(help="Idempotency key.")] = None,
    delay: Annotated[str | None, Parameter(help="How long to wait before the event arrives, such as 10m.")] = None,
    wait: Annotated[bool, Parameter(help="Wait until a worker has handled it, and print what it did.")] = False,
    timeout: Annotated[str | None, Parameter(help="With --wait: how long, such as 30s.")] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Emit an event to an entity. A urn without an entity gets a new one.

    Parameters
    ----------
    urn
        The entity's urn.
    event
        The event.
    """
    value = None if payload is None else parse_json(payload, "the payload")

    async def act() -> tuple[Emission, TransitionView | None]:
        async with build_worker_app(common, may_be_remote=True) as app:
            one = await app.entities.emit(urn, event, value, type=type, key=key, delay=delay)
            return one, await app.entities.result(one, timeout=timeout) if wait else None

    one, done = _run(act())
    row: dict[str, Any] = {"urn": one.urn, "id": one.id, "event": one.event, "n": one.n, "isNew": one.is_new}
    text = f"Emitted {event} to {urn}." if one.is_new else f"The key was used before; {event} was not emitted again."
    if done is not None:
        row["result"] = msgspec.to_builtins(done)
        text = f"{text} {done.from_ or ''} → {done.to}." if done.to is not None else f"{text} {done.kind}."
    print_result(text, row, json=common.json)
    return 0


@entities.command
def history(urn: str, /, *, limit: Limit = 100, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """List what events did to an entity, newest first.

    Parameters
    ----------
    urn
        The entity's urn, or its id.
    """

    async def act() -> Sequence[TransitionView]:
        async with build_admin_app(common) as app:
            return await app.entities.history(urn, limit=limit)

    found = _run(act())
    rows = [msgspec.to_builtins(one) for one in found] if common.json else _history(found)
    print_rows(rows, _HISTORY, json=common.json, empty="No events.")
    return 0


@entities.command
def diagram(
    type: str,
    /,
    *,
    urn: Annotated[str | None, Parameter(help="Mark the state of this entity.")] = None,
    format: Annotated[Literal["mermaid", "svg", "json"], Parameter(help="The format.")] = "mermaid",
    output: Annotated[Path | None, Parameter(help="Write to this file.")] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Draw the state machine of a type.

    Parameters
    ----------
    type
        The type.
    """

    async def act() -> str | dict[str, Any]:
        async with build_admin_app(common) as app:
            return await app.entities.diagram(type, urn=urn, format="json" if common.json else format)

    drawn = _run(act())
    if isinstance(drawn, dict):
        print_json(drawn)
    elif output is not None:
        output.write_text(drawn, "utf-8")
        print_text(f"Wrote {output}.")
    else:
        print_text(drawn.rstrip("\n"))
    return 0


@entities.command
def types(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """List the types of entities in the worker files, with the number of entities in each state."""

    async def act() -> list[tuple[EntityType, dict[str, int]]]:
        async with build_code_app(common) as app:
            listed: Any = app.entities.types()
            found = await listed if asyncio.iscoroutine(listed) else listed  # over HTTP it waits for the server
            return [(one, await app.entities.counts(one.name)) for one in found]

    rows = [{**msgspec.to_builtins(one), "counts": counts} for one, counts in _run(act())]
    if common.json:
        print_json(rows)
        return 0
    shown = [
        {"type": row["name"], "queue": row["queue"], "counts": ", ".join(f"{k} {n}" for k, n in row["counts"].items())}
        for row in rows
    ]
    print_rows(shown, ("type", "queue", "counts"), json=False, empty="No entities are defined.")
    return 0


def _history(found: Sequence[TransitionView]) -> list[dict[str, Any]]:
    return [{name: row.get(name, "") for name in _HISTORY} for row in map(msgspec.to_builtins, found)]


def _run(action: Any) -> Any:
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        return asyncio.run(action)
