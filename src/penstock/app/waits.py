"""What runs wait for, as people see it."""

from __future__ import annotations

from typing import Any

import msgspec

from ..core.clock import to_iso
from ..core.errors import BadArgument
from ..durable.wait_records import EVENT, TIME, TRIGGER, decode_body
from ..ports.store import Store, WaitRow

KINDS = (TIME, EVENT, TRIGGER)


class WaitView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An open wait: which step of which run waits for what, since when and until when."""

    id: str
    run: str
    step: str | None
    kind: str  # time, event or trigger
    name: str  # of the durable call
    since: str
    until: str | None = None
    n: int = 1
    event: str | None = None
    match: Any = None
    trigger: str | None = None  # webhook, user or api
    signed: bool = False


def wait_view(row: WaitRow) -> WaitView:
    body = decode_body(row.body)
    until = to_iso(row.due) if row.due is not None else None
    return WaitView(
        row.id,
        row.run,
        body.step,
        row.kind,
        body.name or body.key.partition("#")[0],
        to_iso(body.at),
        until,
        body.n,
        row.topic,
        body.match or None,
        body.type,
        body.signed is not None,
    )


class Waiting:
    """Reads open waits."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(self, *, run: str | None, kind: str | None, after: str | None, limit: int) -> list[WaitView]:
        """A page in the order of their ids; those by which events start flows belong to no run and are left out."""
        if kind is not None and kind not in KINDS:
            raise BadArgument(f"kind={kind!r}: a run waits for a 'time', an 'event' or a 'trigger'")
        found: list[WaitRow] = []
        while len(found) < limit and (rows := await self._store.waits(run=run, kind=kind, after=after, limit=limit)):
            after = rows[-1].id
            found += [row for row in rows if row.kind in KINDS]
        return [wait_view(row) for row in found[:limit]]
