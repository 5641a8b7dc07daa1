"""A store whose large values are in the blob store. It wraps another one and has all of its abilities."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, TypeVar, cast

import msgspec

from ...core.errors import BlobUnavailable, StoreUnavailable
from ...core.events import Event
from ...core.references import MARK, find_references, read_reference
from ...ports.blobs import ObjectStore
from ...ports.store import ChildRow, FeedItem, JobRow, RunRow, Store
from ...ports.unit import (
    UNSTORED,
    UPLOADING,
    Claim,
    ClaimBatch,
    ClaimRequest,
    CommitReply,
    Committed,
    Conflict,
    Receipt,
    Refused,
    Unit,
)
from .parts import Plan
from .units import FENCES, find_large_values, has_large_values, replace_values
from .values import Values

R = TypeVar("R", bound=msgspec.Struct)
MAX_TRIES = 5
NEVER = 2**62
UPLOAD_WAIT_S = 0.25
_Upload = tuple[Plan, asyncio.Task[dict[str, str]]]  # what is stored, and the names of the objects


def offload(store: Store, objects: ObjectStore, threshold: int) -> Store:
    """Return a store that keeps values of more than `threshold` bytes in a blob store; with 0, it only reads those that
    are there."""
    inner = type(store)
    names = {name for name in dir(store) if not name.startswith("_") and name not in vars(_Offloading)}
    passed = {name: _pass(name, getattr(inner, name, None)) for name in names}
    # A class of its own: what a store can do is looked up in its class.
    made = type("Offloading", (_Offloading,), passed)
    return cast(Store, made(store, objects, threshold))


def _pass(name: str, member: Any) -> Any:
    """Return a member that calls the one of the inner store."""
    if not inspect.isfunction(member):
        return property(lambda self: getattr(self._inner, name))
    return lambda self, *args, **options: getattr(self._inner, name)(*args, **options)


class _Offloading:
    """What differs from the inner store: `commit` uploads before it writes, and reads fill references in."""

    def __init__(self, inner: Store, objects: ObjectStore, threshold: int) -> None:
        self._inner = inner
        self._objects = objects
        self._threshold = threshold or NEVER
        self._opened: Values | None = None
        self._uploads: dict[str, _Upload] = {}  # of units that are committed later

    @property
    def _values(self) -> Values:
        if self._opened is None:
            self._opened = Values(self._objects, self._inner, self._inner.clock)
        return self._opened

    @property
    def lifts_limits(self) -> bool:
        return self._threshold < NEVER

    async def close(self) -> None:
        for _, upload in self._uploads.values():
            upload.cancel()
        await self._inner.close()

    # Writing

    async def commit(self, units: Sequence[Unit], request: ClaimRequest | None = None) -> CommitReply:
        prepared: list[Unit | Refused] = list(units)
        large = [n for n, unit in enumerate(units) if has_large_values(unit, self._threshold)]
        if large:
            for n, one in zip(large, await asyncio.gather(*(self._prepare(units[n]) for n in large)), strict=True):
                prepared[n] = one
        ready = [one for one in prepared if isinstance(one, Unit)]
        if ready or request is None:
            reply = await self._inner.commit(ready, request)
        else:
            reply = CommitReply([], await self._inner.claim(request), self._inner.clock.now_ms())
        if len(ready) == len(units) and all(isinstance(one, Committed) for one in reply.receipts):
            return reply
        answers = iter(reply.receipts)
        receipts: list[Receipt] = []
        for unit, one in zip(units, prepared, strict=True):
            receipt = await self._answer(unit, next(answers)) if isinstance(one, Unit) else one
            receipts.append(receipt)
        return msgspec.structs.replace(reply, receipts=receipts)

    async def put_schedule(self, row: Any, was: Any, unit: Unit | None = None, published: Any = None) -> bool:
        prepared = await self._prepare(unit) if unit is not None else None
        if isinstance(prepared, Refused):
            raise BlobUnavailable(prepared.key)
        return await self._inner.put_schedule(row, was, prepared, published)

    async def _prepare(self, unit: Unit) -> Unit | Refused:
        """Upload the large values of a unit and return it with references. If that fails, only this unit is refused."""
        if not has_large_values(unit, self._threshold):
            return unit
        found, seen = find_large_values(unit, self._threshold), self._values.seen
        started = self._uploads.pop(unit.id, None)
        plan, upload = started if started is not None else self._start_upload(seen.plan(found))
        # The other units of this commit do not wait long: the unit is committed again when its values are there.
        if not (await asyncio.wait((upload,), timeout=UPLOAD_WAIT_S))[0]:
            self._uploads[unit.id] = plan, upload
            return Refused(UPLOADING, "the large values of this unit are not uploaded yet")
        try:
            names = await upload
        except StoreUnavailable as problem:
            return Refused(UNSTORED, str(problem))
        if any(one.digest not in plan.digests for one in found):  # it was built again, with other values
            return await self._prepare(unit)
        seen.add(plan.seen)
        objects: dict[str, set[str]] = {}
        for one in found:
            for digest in plan.digests[one.digest]:
                objects.setdefault(names[digest], set()).update(one.owners)
        return replace_values(unit, self._threshold, plan.name(names), objects, self._inner.clock.now_ms())

    def _start_upload(self, plan: Plan) -> _Upload:
        return plan, asyncio.create_task(self._values.upload(plan.objects))

    async def _answer(self, unit: Unit, receipt: Receipt) -> Receipt:
        """Return the receipt of a unit. One that was refused by a fence is committed again, with another name."""
        for _ in range(MAX_TRIES):
            if isinstance(receipt, Conflict) and receipt.record is not None:
                return msgspec.structs.replace(receipt, record=await self._fill(receipt.record))
            if not (isinstance(receipt, Refused) and receipt.why == "state" and receipt.key.startswith(FENCES)):
                return receipt
            self._values.forget([receipt.key.removeprefix(FENCES)])
            prepared = await self._prepare(unit)
            if not isinstance(prepared, Unit):
                return prepared
            receipt = (await self._inner.commit([prepared])).receipts[0]
        return Refused(UNSTORED, "the values of this unit are being deleted again and again")

    # Reading

    async def load_claim(self, claim: Claim) -> Claim:
        """Return a claim with its values. Raise BlobUnavailable if one cannot be read."""
        if not (MARK in claim.payload or MARK in (claim.record or b"") or any(MARK in v for v in claim.memos.values())):
            return claim
        record = await self._fill(claim.record) if claim.record is not None else None
        memos = {name: await self._fill(value) for name, value in claim.memos.items()}
        loaded = msgspec.structs.replace(claim, payload=await self._fill(claim.payload), record=record, memos=memos)
        if missing := [*find_references(loaded.payload), *(n for v in memos.values() for n in find_references(v))]:
            raise BlobUnavailable(
                f"job {claim.job!r} needs the value {missing[0][:12]}…, which the blob store does not have; check that "
                "blob_url is the same in all processes"
            )
        return loaded

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        return await self._inner.claim(request)

    async def run(self, id: str) -> RunRow | None:
        row = await self._inner.run(id)
        return row if row is None else await self._fill_row(row, "record")

    async def runs(self, **options: Any) -> list[RunRow]:
        return [await self._fill_row(row, "record") for row in await self._inner.runs(**options)]

    async def job(self, id: str) -> JobRow | None:
        row = await self._inner.job(id)
        return row if row is None else await self._fill_row(row, "payload", "result")

    async def jobs(self, *args: Any, **options: Any) -> list[JobRow]:
        rows = await self._inner.jobs(*args, **options)
        return [await self._fill_row(row, "payload", "result") for row in rows]

    async def children(self, id: str) -> list[ChildRow]:
        return [await self._fill_row(row, "value") for row in await self._inner.children(id)]

    async def memos(self, scope: str) -> dict[str, bytes]:
        return {name: await self._fill(value) for name, value in (await self._inner.memos(scope)).items()}

    async def read(self, stream: str, **options: Any) -> list[Event]:
        return await self._fill_events(await self._inner.read(stream, **options))

    async def tail(self, stream: str, *, after: str | None = None) -> AsyncIterator[Event]:
        async for event in self._inner.tail(stream, after=after):
            yield (await self._fill_events([event]))[0]

    async def feed(self, after: str | None, limit: int = 500) -> list[FeedItem]:
        return await self._fill_items(await self._inner.feed(after, limit))

    async def events_by_kind(self, kind: str, **options: Any) -> list[FeedItem]:
        return await self._fill_items(await self._inner.events_by_kind(kind, **options))

    async def _fill(self, data: bytes) -> bytes:
        return await self._values.fill(data)

    async def _fill_row(self, row: R, *fields: str) -> R:
        changed: dict[str, Any] = {}
        for field in fields:
            value = getattr(row, field)
            if value is not None and (filled := await self._fill(value)) is not value:
                changed[field] = filled
        return msgspec.structs.replace(row, **changed) if changed else row

    async def _fill_items(self, items: list[FeedItem]) -> list[FeedItem]:
        events = await self._fill_events([item.event for item in items])
        pairs = zip(items, events, strict=True)
        return [msgspec.structs.replace(item, event=event) for item, event in pairs]

    async def _fill_events(self, events: Iterable[Event]) -> list[Event]:
        events = list(events)
        names = {name for event in events for name in read_reference(event.data)}
        if not names:
            return events
        values = await self._values.read(names)
        return [_fill_event(event, values) for event in events]


def _fill_event(event: Event, values: dict[str, bytes]) -> Event:
    names = read_reference(event.data)
    if not names or any(name not in values for name in names):
        return event
    return msgspec.structs.replace(event, data=msgspec.json.decode(b"".join(values[name] for name in names)))
