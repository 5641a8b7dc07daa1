"""Commands on triggers from outside: fire one, issue another token."""

from __future__ import annotations

import hmac
from typing import Any

import msgspec

from ..commit.command_sink import CommandSink
from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.errors import (
    BadArgument,
    BadSignature,
    TriggerCancelled,
    TriggerError,
    TriggerExpired,
    TriggerUsed,
    UnknownTrigger,
)
from ..core.payload import pack, unpack
from ..core.schemas import make_validator
from ..core.signatures import Signature
from ..core.text import shorten
from ..ports.store import WaitRow
from ..ports.unit import Committed, Memo, NewWait, Refused, StateWrite, Unit
from .journal import encode
from .trigger_signatures import read_signed_call, sign_call
from .trigger_waits import hash_token, is_trigger_id, new_secret, token_memo
from .wait_records import (
    RESOLVED_MANUALLY,
    TRIGGER,
    CallOrigin,
    Manual,
    WaitBody,
    WaitResult,
    build_trigger_event,
    read_body,
    resolve_wait,
)

APP = CallOrigin()


class TriggerCommands:
    """Fires triggers. One commit writes the trigger's stream, the run's stream and the wake-up of the waiting step."""

    def __init__(self, runtime: Runtime, sink: CommandSink | None = None) -> None:
        self._store = runtime.store
        self._sink = sink or runtime.committer
        self._bodies = runtime.bodies
        self._clock = runtime.clock
        self._unit_id = runtime.new_unit_id
        self._produce = runtime.produce

    async def fire(self, token: str, data: Any, signature: Signature | None = None, caller: CallOrigin = APP) -> str:
        """Fire a trigger and return the id of the run that resumes."""
        row, body = await self._find(token)
        self._check_state(row)
        if body.signed is not None and signature is None:
            raise BadSignature(
                f"trigger {body.name!r} accepts only signed calls; pass signature=Signature.from_headers(headers, "
                f"body), or run `penstock fire --sign` where {body.signed} is set"
            )
        return await self.resolve(row, body, data, signature, caller)

    async def sign(self, token: str, data: Any) -> Signature:
        """Sign a call of a trigger with the secret that this process has."""
        row, body = await self._find(token)
        return sign_call(row.id, body, data, self._clock.now_ms())

    async def issue_token(self, id: str) -> str:
        """Return a new token for a pending trigger. Its other tokens stay valid until the first one is used."""
        row = await self._store.wait_row(id) if is_trigger_id(id) else None
        if row is None or row.kind != TRIGGER:
            raise UnknownTrigger(f"no trigger with id {id[:60]!r}; run `penstock waits` to see the pending triggers")
        self._check_state(row)
        secret, body = new_secret(), read_body(row)
        body.tokens.append(hash_token(secret))
        memo = Memo(row.scope, token_memo(body.key, secret), encode(hash_token(secret)))
        wait = NewWait(row.id, row.run, row.scope, TRIGGER, encode(body), row.due, row.job)
        # The step may register the wait again with the tokens in its memos; this memo adds the new one to them.
        unit = Unit(self._unit_id(), memos=[memo], waits=[wait])
        if not isinstance(await self._sink.submit(CommitRequest(lambda _v, _r: unit)), Committed):
            raise TriggerUsed(f"trigger {row.id} was just fired by another call")
        return f"{row.id}.{secret}"

    async def resolve(
        self,
        row: WaitRow,
        body: WaitBody,
        data: Any,
        signature: Signature | None = None,
        caller: CallOrigin = APP,
        manual: Manual | None = None,
    ) -> str:
        """Fire a trigger without a token, and return the id of the run that resumes. Verify the signature, if any."""
        used: list[StateWrite] = []
        if signature is not None:
            data, write = read_signed_call(row.id, body, data, signature, self._clock.now_ms())
            used.append(write)
        with self._produce("fire", body.name or "trigger") as span:
            span.set("penstock.run", row.run)
            unit = self._build_unit(row, body, data, caller, manual)
            unit.state = used
            receipt = await self._sink.submit(CommitRequest(lambda _v, _r: unit))
        if not isinstance(receipt, Committed):
            now = await self._store.wait_row(row.id)
            self._check_state(now if now is not None else row)
            if signature is not None and isinstance(receipt, Refused) and receipt.why == "state":
                raise BadSignature(
                    f"a call with the signed id {signature.id!r} was already accepted; sign every call with an id of "
                    "its own"
                )
            raise TriggerUsed(f"trigger {row.id} was just fired by another call")
        return row.run

    def _build_unit(self, row: WaitRow, body: WaitBody, data: Any, caller: CallOrigin, manual: Manual | None) -> Unit:
        packed = pack(data, "the data of a trigger")
        if body.schema is not None:
            make_validator(body.schema, f"the data of trigger {body.name!r}")(unpack(packed))
        result = WaitResult(self._clock.now_ms(), msgspec.Raw(packed), manual=manual, caller=caller)
        reason = "Trigger fired" if manual is None else RESOLVED_MANUALLY
        unit = resolve_wait(row, body, result, self._bodies, self._unit_id(), reason)
        event_data: dict[str, Any] = {"type": body.type, "payload": msgspec.Raw(packed), "source": caller.source}
        event_data |= {"ip": caller.ip} if caller.ip is not None else {}
        event_data |= {"manual": manual} if manual is not None else {}
        fired = build_trigger_event(self._bodies, "trigger.fired", row.id, row.run, body, event_data)
        unit.events.insert(0, fired)
        return unit

    async def _find(self, token: str) -> tuple[WaitRow, WaitBody]:
        if not isinstance(token, str):
            raise BadArgument(f"token must be the token of a trigger or its URL, got {shorten(token)}")
        id, _, secret = token.rpartition("/")[2].partition(".")
        row = await self._store.wait_row(id) if is_trigger_id(id) else None
        if row is not None and row.kind == TRIGGER and secret.isascii():
            body = read_body(row)
            hashed = hash_token(secret)
            # Compare with every token, so that the time it takes reveals nothing.
            if any([hmac.compare_digest(hashed, known) for known in body.tokens]):  # noqa: C419
                return row, body
        if row is not None and not secret:
            raise UnknownTrigger(
                f"{id!r} is the id of a trigger, not its token; `penstock waits token {id}` creates a token for it"
            )
        raise UnknownTrigger(
            "no trigger has this token; check that it was copied in full, and that this is the right store"
        )

    def _check_state(self, row: WaitRow) -> None:
        problems: dict[str, TriggerError] = {
            "resolved": TriggerUsed(f"trigger {row.id} was already fired; a trigger can be fired once"),
            "expired": TriggerExpired(f"trigger {row.id} has expired; the step continued without it"),
            "cancelled": TriggerCancelled(f"trigger {row.id} was cancelled; the step or the run has ended"),
        }
        if row.state in problems:
            raise problems[row.state]
        if row.due is not None and row.due <= self._clock.now_ms():
            raise problems["expired"]
