"""`ctx.wait.trigger`: waits that a caller resolves from outside with a one-time token; stores hold only its hash."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Coroutine
from typing import Any

from ..core.payload import unpack
from ..core.task_ready import TaskReady
from ..ports.unit import NewWait
from .call_recorder import CallRecorder
from .calls import WaitCall
from .journal import FIRED, RESULT, JournalCall, encode
from .wait_records import (
    TRIGGER,
    WaitBody,
    WaitResult,
    WaitSession,
    decode_result,
    expire_wait,
    read_end,
    timeout_fields,
    wait_id,
)

_ID = re.compile(r"t-[0-9a-f]{32}")


class Trigger:
    """A one-time way to resume this step from outside: `id`, `url`, and `wait()` for the data sent to it."""

    def __init__(
        self, calls: CallRecorder, session: WaitSession, call: JournalCall, body: WaitBody, timeout_ms: int | None
    ) -> None:
        self.name = str(body.name)
        self.id = wait_id(TRIGGER, session.journal.scope, call.key)
        self._calls = calls
        self._session = session
        self._journal = session.journal
        self._call = call
        self._body = body
        self._timeout_ms = timeout_ms
        self._token: str | None = None
        entry = call.entry
        self._started: dict[str, Any] | None = unpack(bytes(entry.value)) if entry is not None else None
        found = self._journal.read_memo(call.key + RESULT)
        self._result: WaitResult | None = decode_result(found) if found is not None else None

    @property
    def token(self) -> str:
        """The secret that fires the trigger. The store holds only its hash, so each replay of the handler gets a new
        token; all of them work until the first is used."""
        if self._result is not None:
            return self.id
        self._ensure_token()
        assert self._token is not None
        return self._token

    @property
    def url(self) -> str:
        """The URL that `penstock serve` or your application answers: the setting `public_url` and a path. Only the path
        if `public_url` is not set."""
        return self._session.trigger_url(self.token)

    def wait(self) -> TriggerWait:
        """Suspend until the trigger is fired and return the data sent with it. Raises AwaitTimeout after `timeout`."""
        return TriggerWait(self._calls, self, self._calls.next_call_by_order(f"{self.name}?", FIRED))

    async def register(self) -> None:
        """Commit the wait now: the handler is about to send the URL to someone."""
        if self._started is not None:
            if self._result is None:
                self._calls.add_token_issuer(self._ensure_token)
            return
        self._calls.begin(self._call)
        now = self._calls.now_ms
        due = now + self._timeout_ms if self._timeout_ms is not None else None
        self._started = {"at": now, "due": due, "id": self.id}
        self._calls.record(self._call, self._started)
        self._token = self._issue_token()
        data = {"type": self._body.type, "name": self.name, **timeout_fields(self._timeout_ms, self._due)}
        flags = {"schema": self._body.schema is not None, "signed": self._body.signed is not None}
        data.update((name, True) for name, is_set in flags.items() if is_set)
        self._session.add_trigger_event("trigger.registered", self.id, data)
        await self._calls.flush()

    def record_result(self, result: WaitResult) -> None:
        """Record how the wait ended with the next commit."""
        self._result = result
        self._journal.add_memo(self._call.key + RESULT, result)

    @property
    def _due(self) -> int | None:
        return self._started["due"] if self._started is not None else None

    def _ensure_token(self) -> None:
        if self._token is None:
            self._token = self._issue_token()

    def _issue_token(self) -> str:
        secret = new_secret()
        self._journal.add_memo(token_memo(self._call.key, secret), hash_token(secret))
        self._journal.writes.waits.append(self._new_wait())
        self._journal.is_urgent = True
        return f"{self.id}.{secret}"

    def _token_hashes(self) -> list[str]:
        found = self._journal.list_memos(token_memo(self._call.key))
        return [unpack(value) for value in found.values()]

    def _new_wait(self) -> NewWait:
        assert self._started is not None
        self._body.tokens = self._token_hashes()
        self._body.at = self._started["at"]
        return NewWait(
            self.id, self._session.run, self._journal.scope, TRIGGER, encode(self._body), self._due, self._session.job
        )

    async def _expire_if_due(self) -> None:
        if self._result is None and self._due is not None and self._due <= self._calls.now_ms:
            assert self._started is not None
            await expire_wait(self._session, self.record_result, self._new_wait(), self._started["at"])

    def _suspend(self) -> None:
        self._journal.writes.waits.append(self._new_wait())
        data = {"wait": self._call.key, "triggerId": self.id, "triggerType": self._body.type, "name": self.name}
        if self._body.payload is not None:
            data["payload"] = self._body.payload
        self._session.add_step_event(
            "step.await.trigger", {**data, **timeout_fields(self._timeout_ms, self._due)}, triggerId=self.id
        )


class TriggerWait(WaitCall[Any]):
    """`t.wait()`: resolved when the token is used. It may be awaited more than once."""

    def __init__(self, calls: CallRecorder, trigger: Trigger, call: JournalCall) -> None:
        super().__init__(calls, f"the trigger {trigger.name!r}")
        self._trigger = trigger
        self._call = call

    async def start(self) -> None:
        await self._trigger._expire_if_due()

    def is_done(self) -> bool:
        return self._trigger._result is not None

    @property
    def due(self) -> int | None:
        return self._trigger._due

    @property
    def resolved_at(self) -> int:
        assert self._trigger._result is not None
        return self._trigger._result.at

    def result(self) -> Any:
        found = self._trigger._result
        assert found is not None
        return unpack(read_end(found, self.name, self._trigger._started))

    def suspend(self) -> None:
        if self._call.entry is None:
            self._calls.begin(self._call)
            self._calls.record(self._call, None)  # where the handler suspended: replay skips the effects before it
        self._trigger._suspend()

    def cancel(self) -> None:
        """Leave the trigger pending: the handler may wait for it again."""

    def cancel_if_pending(self) -> None:
        if not self.is_done():
            self._calls.journal.writes.waits.append(self._trigger._new_wait())  # refused if it was fired


class PendingTrigger(TaskReady[Trigger]):
    """`ctx.wait.trigger(…)` before it is awaited."""

    def __init__(self, calls: CallRecorder, trigger: Trigger) -> None:
        self._calls = calls
        self._trigger = trigger

    def _open(self) -> Coroutine[Any, Any, Trigger]:
        return self.register()

    async def register(self) -> Trigger:
        """Commit the trigger's wait and return the trigger."""
        await self._calls.work(self._trigger.register())
        return self._trigger


def new_secret() -> str:
    """Return a new random secret for a token."""
    return secrets.token_urlsafe(32)


def trigger_url(public_url: str, token: str) -> str:
    """Return the URL of a trigger; only its path if no public URL is set."""
    return f"{public_url.rstrip('/')}/api/triggers/{token}"


def token_memo(key: str, secret: str = "") -> str:
    """Return the name of the memo that holds a token's hash; without a secret, the prefix of all of a trigger's."""
    return f"~token:{key}:{hash_token(secret)[:16] if secret else ''}"


def is_trigger_id(id: Any) -> bool:
    """Return whether the id has the form of a trigger's: anything else is no key for a store to look up."""
    return isinstance(id, str) and _ID.fullmatch(id) is not None


def hash_token(secret: str) -> str:
    """Return the hash the store holds. A token has 256 random bits, so an unsalted hash cannot be reversed."""
    return hashlib.sha256(secret.encode()).hexdigest()
