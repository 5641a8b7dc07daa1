"""Calls the user's code for one event of an entity, as the transition function asks for it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..context.context import Context
from ..context.sync_context import SyncContext
from ..core.errors import DefinitionError, Permanent, Rejected, UnknownEntity
from ..core.payload import NULL, pack_inline, unpack
from ..core.schemas import make_validator
from ..core.tracebacks import describe_error
from ..handlers.entities import Call, EntityDefinition
from .decide import Handled
from .record import EntityRecord, TakenMail
from .saved_updates import restore_update, save_update
from .services import CopiesEntities, RemembersKeys
from .transit import (
    AskCondition,
    CallFallback,
    Kept,
    Moved,
    Question,
    RefusedEvent,
    RunActions,
    StatusChanged,
    refuse_final,
    transit,
)
from .units import job_id

MAX_REASON_CHARS = 2_000


class Execution:
    """One event of one entity, in one attempt."""

    def __init__(
        self, definition: EntityDefinition, id: str, record: EntityRecord, mail: TakenMail, ctx: Context, payload: Any
    ) -> None:
        self._definition = definition
        self._record = record
        self._event = mail.event
        self._key = job_id(id, mail.n)
        self._batch_key = job_id(id, record.single_until) if mail.n < record.single_until else None
        self._ctx = ctx
        self._payload = payload
        self._count = mail.count
        self._storage = _make_storage(definition, record)
        self._entity: Any = None
        self._before: Any = None  # the entity as it was loaded, until something may have changed it
        self._problems: list[str] = []

    async def run(self) -> Handled:
        """Load the entity, follow its transitions, and save it."""
        status = self._record.status
        if status in self._definition.machine.finals:  # the storage is not asked: the event changes nothing
            return self._refuse(refuse_final(status))
        if (after := await self._find_applied()) is not None:
            return restore_update(self._ctx) or Handled("transitioned", (status, after), recovered=True)
        self._entity, status = await self._storage.load(status)
        self._before = self._storage.loaded
        machine = self._definition.machine
        if status not in machine.states:
            known = ", ".join(machine.states)
            raise DefinitionError(
                f"entity {self._record.urn!r} is in state {status!r}; {self._definition.name} has {known}"
            )
        steps = transit(machine, status, self._event)
        try:
            question = next(steps)
            while True:
                question = steps.send(await self._answer(question))
        except StopIteration as end:
            return await self._finish(end.value)

    async def _find_applied(self) -> str | None:
        """Return the status that an earlier attempt has saved: of this event, or of several with it that failed."""
        after: str | None = await self._storage.find_applied(self._key)
        if after is None and self._batch_key is not None:
            after = await self._storage.find_applied(self._batch_key)
        return after

    def _refuse(self, ending: RefusedEvent) -> Handled:
        self._check_batch(ending.reason)
        return Handled("refused", reason=ending.reason, code=ending.code)

    def _check_batch(self, reason: str | None) -> None:
        """Fail several events that cannot be handled together: each of them is then handled by itself."""
        if self._count > 1 and reason is not None:
            raise Permanent(f"{self._count} events together: {reason}")

    async def _finish(self, ending: Moved | Kept | RefusedEvent) -> Handled:
        if isinstance(ending, Moved):
            self._check_batch(ending.rejected)
        if isinstance(ending, RefusedEvent):
            return self._refuse(ending)
        path = ending.path if isinstance(ending, Moved) else ()
        kind, problems = "transitioned" if path else "kept", tuple(self._problems)
        reason = ending.rejected if isinstance(ending, Moved) else None
        handled = Handled(kind, path, reason, problems=problems)
        if self._storage.remembers_keys:
            await save_update(self._ctx, handled)
        data = await self._storage.save(self._entity, path[-1] if path else None, self._key)
        if data is None:
            return handled
        return msgspec.structs.replace(handled, has_data=True, data=msgspec.Raw(data))

    async def _answer(self, question: Question) -> bool | str | None:
        match question:
            case AskCondition(transition=transition):
                calls = self._definition.conditions[self._definition.machine.transitions.index(transition)]
                return await self._hold(calls)
            case RunActions(transition=transition, is_first=is_first):
                hooks = [hook.call for hook in self._definition.hooks_of(self._event)] if is_first else []
                actions = self._definition.actions[self._definition.machine.transitions.index(transition)]
                return await self._act([*hooks, *actions])
            case StatusChanged(before=before, after=after):
                return await self._notify(before, after)
            case CallFallback():
                assert self._definition.fallback is not None
                return await self._act([self._definition.fallback], fallback=True)

    async def _hold(self, calls: Sequence[Call]) -> bool:
        for call in calls:
            if not await self._call(call, (self._entity, self._payload)):
                return False
        return True

    async def _act(self, calls: Sequence[Call], *, fallback: bool = False) -> str | None:
        """Call actions one after the other. Return why one of them rejected the event; the entity is then as before."""
        if not calls:
            return None
        # The first actions find the entity as it was loaded.
        before, self._before = self._before, None
        if before is None:
            before = self._storage.copy(self._entity)
        for call in calls:
            values = (self._entity, self._event, self._payload) if fallback else (self._entity, self._payload)
            try:
                result = await self._call(call, values)
            except Rejected as problem:
                self._entity = await self._storage.restore(before)
                return _reason(problem)
            if result is not None:
                self._entity = result
        return None

    async def _notify(self, before: str, after: str) -> str | None:
        for hook in self._definition.status_hooks:
            if not hook.matches(before, after):
                continue
            try:
                result = await self._call(hook.call, (self._entity, self._payload))
            except Exception as problem:
                if hook.fail_on_error and not isinstance(problem, Rejected):
                    raise
                text = f"{hook.call.name}: {describe_error(type(problem).__name__, str(problem))}"
                if hook.fail_on_error:
                    return _reason(problem)
                self._problems.append(text.encode("utf-8", "replace").decode()[:500])
                continue
            if result is not None:
                self._entity = result
        return None

    async def _call(self, call: Call, values: Sequence[Any]) -> Any:
        """Call a function of the user's: `async def` on the event loop, `def` in a thread."""
        if call.is_async:
            return await call(values, self._ctx)
        ctx = SyncContext(self._ctx, asyncio.get_running_loop()) if call.takes_ctx else None
        return await asyncio.to_thread(_call_bound, call, values, ctx)


def _reason(problem: Exception) -> str:
    text = str(problem) or "rejected"
    return text.encode("utf-8", "replace").decode()[:MAX_REASON_CHARS]


def _call_bound(call: Call, values: Sequence[Any], ctx: SyncContext | None) -> Any:
    if ctx is not None:
        ctx.bind_thread()
    return call(values, ctx)


class _RecordStorage:
    """The data is in the entity's own record: it is written by the commit that records the event."""

    remembers_keys = False

    def __init__(self, definition: EntityDefinition, record: EntityRecord) -> None:
        self._definition = definition
        self._record = record
        self.loaded = bytes(record.data)

    async def find_applied(self, key: str) -> str | None:  # noqa: ARG002
        return None

    async def load(self, status: str) -> tuple[Any, str]:
        return self._make(self.loaded), status

    def _make(self, data: bytes) -> Any:
        model = self._definition.model
        if model is None:
            return {} if data == NULL else unpack(data)
        if data == NULL:
            return model()
        return make_validator(model, f"the data of {self._record.urn!r}", unknown_fields="ignore")(unpack(data))

    def copy(self, entity: Any) -> bytes:
        return self._pack(entity)

    async def restore(self, before: bytes) -> Any:
        return self._make(before)

    async def save(self, entity: Any, status: str | None, key: str) -> bytes | None:  # noqa: ARG002
        return self._pack(entity)

    def _pack(self, entity: Any) -> bytes:
        return pack_inline(entity, f"the data of {self._record.urn!r}")


class _ServiceStorage:
    """The data is in storage of the user's. It is written first; then Penstock commits."""

    loaded = None  # it has no form that can be kept beside the entity

    def __init__(self, definition: EntityDefinition, record: EntityRecord) -> None:
        self._definition = definition
        self._service = definition.service
        self._record_status = record.status
        self._urn = record.urn
        self.remembers_keys = isinstance(self._service, RemembersKeys)

    async def find_applied(self, key: str) -> str | None:
        """Return the status that an earlier attempt has saved for this event."""
        service: Any = self._service
        if not isinstance(service, RemembersKeys) or not await _ask(service.applied, self._urn, key):
            return None
        entity = await _ask(self._service.load, self._urn)
        return self._status(entity) if entity is not None else None

    async def load(self, status: str) -> tuple[Any, str]:
        entity = await _ask(self._service.load, self._urn)
        if entity is not None:
            return entity, self._status(entity) or status
        if status != self._definition.machine.initial:
            raise UnknownEntity(f"the service of {self._definition.name!r} has no entity {self._urn!r}")
        return await _ask(self._service.new, self._urn), status

    def _status(self, entity: Any) -> str:
        return self._service.status(entity)  # type: ignore[no-any-return]

    def copy(self, entity: Any) -> Any:
        return self._service.copy(entity) if isinstance(self._service, CopiesEntities) else None

    async def restore(self, before: Any) -> Any:
        """Return the entity as it was before the transition; without a copy, as it was before the event."""
        if before is not None:
            return before
        entity = await _ask(self._service.load, self._urn)
        return entity if entity is not None else await _ask(self._service.new, self._urn)

    async def save(self, entity: Any, status: str | None, key: str) -> bytes | None:
        await _ask(self._service.update, entity, status or self._status(entity) or self._record_status, key)
        return None


def _make_storage(definition: EntityDefinition, record: EntityRecord) -> Any:
    if definition.service is None:
        return _RecordStorage(definition, record)
    return _ServiceStorage(definition, record)


async def load_entity(definition: EntityDefinition, record: EntityRecord) -> Any:
    """Return the data of an entity."""
    entity, _ = await _make_storage(definition, record).load(record.status)
    return entity


async def _ask(fn: Callable[..., Any], *values: Any) -> Any:
    """Call a method of a service: `async def` on the event loop, `def` in a thread."""
    if inspect.iscoroutinefunction(fn):
        return await fn(*values)
    result = await asyncio.to_thread(fn, *values)
    return await result if inspect.isawaitable(result) else result
