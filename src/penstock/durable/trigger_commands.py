"""Opening gates from outside: triggers that are fired, events that are delivered to whoever waits for them."""

from __future__ import annotations

import hmac
import os
from typing import Any

import msgspec

from ..commit.committer import Intent
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
from ..core.signatures import verify
from ..ports.store import WaitRow
from ..ports.unit import Committed, Memo, NewWait, Unit
from .journal import encode
from .triggers import hash_token, new_secret, token_memo
from .wait_records import TRIGGER, WaitBody, WaitResult, decode_body, resolve_wait, trigger_event


class TriggerCommands:
    """One-time ways into a run. Firing is one commit: the trigger's stream, the run's stream, the step that waits."""

    def __init__(self, runtime: Runtime) -> None:
        self._store = runtime.store
        self._committer = runtime.committer
        self._bodies = runtime.bodies
        self._clock = runtime.clock
        self._unit_id = runtime.new_unit_id

    async def fire(self, token: str, payload: Any, signature: Signature | None = None) -> str:
        """Fires a trigger and gives the id of the run that goes on."""
        row, body = await self._find(token)
        self._check_state(row)
        self._check_signature(body, payload, signature)
        return await self.open(row, body, payload)

    async def token(self, id: str) -> str:
        """A new token for an open trigger, beside those there are; all of them work until the first is used."""
        row = await self._store.wait_row(id)
        if row is None or row.kind != TRIGGER:
            raise UnknownTrigger(f"there is no trigger {id!r}: `penstock waits` lists those that are open")
        self._check_state(row)
        secret, body = new_secret(), decode_body(row.body)
        body.tokens.append(hash_token(secret))
        memo = Memo(row.scope, token_memo(body.key, secret), encode(hash_token(secret)))
        gate = NewWait(row.id, row.run, row.scope, TRIGGER, encode(body), row.due, row.job)
        # The step may open the gate again with the tokens it knows of; the memo lets it know of this one.
        unit = Unit(self._unit_id(), memos=[memo], waits=[gate])
        if not isinstance(await self._committer.submit(Intent(lambda _v, _r: unit)), Committed):
            raise TriggerUsed(f"trigger {row.id} was fired at the same moment")
        return f"{row.id}.{secret}"

    async def open(self, row: WaitRow, body: WaitBody, payload: Any) -> str:
        """Fires a trigger that is known, whoever asks for it."""
        data = pack(payload, "the payload of a trigger")
        if body.schema is not None:
            make_validator(body.schema, f"the payload of trigger {body.name!r}")(unpack(data))
        result = WaitResult(self._clock.now_ms(), msgspec.Raw(data))
        unit = resolve_wait(row, body, result, self._bodies, self._unit_id(), _REASONS[body.type or "api"])
        fired = trigger_event(
            self._bodies, "trigger.fired", row.id, row.run, body, {"type": body.type, "payload": msgspec.Raw(data)}
        )
        unit.events.insert(0, fired)
        receipt = await self._committer.submit(Intent(lambda _v, _r: unit))
        if not isinstance(receipt, Committed):
            now = await self._store.wait_row(row.id)
            self._check_state(now if now is not None else row)
            raise TriggerUsed(f"trigger {row.id} was fired by another call at the same moment")
        return row.run

    async def _find(self, token: str) -> tuple[WaitRow, WaitBody]:
        if not isinstance(token, str):
            raise BadArgument(f"token={token!r}: give the token of a trigger, or its URL, as a text")
        id, _, secret = token.rpartition("/")[2].partition(".")
        row = await self._store.wait_row(id) if secret else None
        if row is not None and row.kind == TRIGGER:
            body = decode_body(row.body)
            hashed = hash_token(secret)
            # Every one is looked at, so that the time it takes tells nothing.
            if any([hmac.compare_digest(hashed, known) for known in body.tokens]):  # noqa: C419
                return row, body
        raise UnknownTrigger(
            "no trigger has this token: check that it was copied whole, and that the URL is the store's"
        )

    def _check_state(self, row: WaitRow) -> None:
        problems: dict[str, TriggerError] = {
            "resolved": TriggerUsed(f"trigger {row.id} has been fired before: a token works once"),
            "expired": TriggerExpired(f"trigger {row.id} has expired: its step has gone on without it"),
            "cancelled": TriggerCancelled(f"trigger {row.id} is cancelled: its step or its run is over"),
        }
        if row.state in problems:
            raise problems[row.state]
        if row.due is not None and row.due <= self._clock.now_ms():
            raise problems["expired"]

    def _check_signature(self, body: WaitBody, payload: Any, signature: Signature | None) -> None:
        if body.signed is None:
            return
        secret = os.environ.get(body.signed)
        if not secret:
            raise TriggerError(
                f"trigger {body.name!r} is signed with the secret in {body.signed}, which this process does not have: "
                "set that environment variable where triggers are fired"
            )
        if signature is None:
            raise BadSignature(f"trigger {body.name!r} takes signed calls only: send id, timestamp and signature")
        sent = signature.body if signature.body is not None else pack(payload)
        verify(secret, signature.id, signature.timestamp, sent, signature.value, self._clock.now_ms() // 1000)


class Signature(msgspec.Struct, frozen=True):
    """What a caller sends along to prove who it is, in the form of Standard Webhooks."""

    id: str
    timestamp: int  # seconds
    value: str  # `v1,<base64>`, several separated by spaces
    body: bytes | None = None  # what was signed, as it came; else the payload's own JSON


_REASONS = {"webhook": "Webhook received", "user": "User action received", "api": "API call received"}
