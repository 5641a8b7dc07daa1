"""Triggers: one-time ways to resume a step from outside. Only the hash of a token is stored."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Generator
from typing import Any

from ..core.payload import unpack
from ..ports.unit import NewWait
from .call_recorder import CallRecorder
from .calls import WaitCall
from .journal import FIRED, RESULT, JournalCall, encode
from .wait_records import TRIGGER, WaitBody, WaitResult, decode_result, wait_id
from .wait_session import WaitSession, expire, late, timeout_of


class TriggerWait(WaitCall[Any]):
    """`t.wait()`: opened by whoever has the token. It may be awaited again and again."""

    def __init__(self, calls: CallRecorder, trigger: Trigger, call: JournalCall) -> None:
        super().__init__(calls, f"the trigger {trigger.name!r}")
        self._trigger = trigger
        self._call = call

    async def begin(self) -> None:
        await self._trigger._look()

    def done(self) -> bool:
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
        if found.timeout:
            raise late(self.name, self._trigger._opened)
        return unpack(bytes(found.value))

    def hold(self) -> None:
        if self._call.entry is None:
            self._calls.keep(self._call, None)  # where the handler slept: what it said before is not said again
        self._trigger._hold()

    def let_go(self) -> None:
        """It stays open: it may be waited for again."""

    def forgo(self) -> None:
        if not self.done():
            self._calls.journal.kept.waits.append(self._trigger._gate())  # refuses the unit if it was fired


class Trigger:
    """A one-time way to resume this step from outside: `id`, `url`, and `wait()` for what is sent to it."""

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
        self._timeout = timeout_ms
        self._token: str | None = None
        self._opened: dict[str, Any] | None = None
        self._result: WaitResult | None = None
        self._read()

    def _read(self) -> None:
        entry = self._call.entry
        self._opened = unpack(bytes(entry.value)) if entry is not None else None
        found = self._journal.recall(self._call.key + RESULT)
        self._result = decode_result(found) if found is not None else None

    @property
    def _due(self) -> int | None:
        return self._opened["due"] if self._opened is not None else None

    @property
    def token(self) -> str:
        """What fires the trigger. Only its hash is stored, so a re-run of the handler is given another one; all of them
        work, until the first is used."""
        if self._result is not None:
            return self.id
        if self._token is None:
            self._token = self._mint()
        return self._token

    @property
    def url(self) -> str:
        """Where to POST to, made of the setting `public_url`."""
        return self._session.url(self.token)

    def wait(self) -> TriggerWait:
        """Sleeps until the trigger is fired and gives what was sent with it; raises AwaitTimeout when it is late."""
        return TriggerWait(self._calls, self, self._calls.call_anywhere(f"{self.name}?", FIRED))

    async def register(self) -> None:
        """Opens the gate at once: the handler is about to tell its address to someone."""
        if self._opened is not None:
            return
        now = self._calls.now_ms
        self._opened = {"at": now, "due": now + self._timeout if self._timeout is not None else None}
        self._calls.keep(self._call, self._opened)
        self._token = self._mint()
        said = {"type": self._body.type, "name": self.name, **timeout_of(self._timeout)}
        self._session.add_trigger_event("trigger.registered", self.id, said)
        await self._calls.flush()

    def _mint(self) -> str:
        secret = new_secret()
        self._journal.memo(token_memo(self._call.key, secret), hash_token(secret))
        self._journal.kept.waits.append(self._gate())
        self._journal.urgent = True
        return f"{self.id}.{secret}"

    def _hashes(self) -> list[str]:
        found = self._journal.recalled(token_memo(self._call.key))
        return [unpack(value) for value in found.values()]

    def _gate(self) -> NewWait:
        assert self._opened is not None
        self._body.tokens = self._hashes()
        self._body.at = self._opened["at"]
        return NewWait(
            self.id, self._session.run, self._journal.scope, TRIGGER, encode(self._body), self._due, self._session.job
        )

    async def _look(self) -> None:
        if self._result is None and self._due is not None and self._due <= self._calls.now_ms:
            assert self._opened is not None
            await expire(self._session, self, self._gate(), self._opened["at"])

    def settle(self, result: WaitResult) -> None:
        self._result = result
        self._journal.memo(self._call.key + RESULT, result)

    def _hold(self) -> None:
        self._journal.kept.waits.append(self._gate())
        said = {"wait": self._call.key, "triggerId": self.id, "triggerType": self._body.type, "name": self.name}
        self._session.say("step.await.trigger", {**said, **timeout_of(self._timeout)}, self.id)


class PendingTrigger:
    """`ctx.wait.trigger(…)` before it is awaited."""

    def __init__(self, calls: CallRecorder, trigger: Trigger) -> None:
        self._calls = calls
        self._trigger = trigger

    def __await__(self) -> Generator[Any, None, Trigger]:
        return self.registered().__await__()

    async def registered(self) -> Trigger:
        with self._calls.exclusive(f"the trigger {self._trigger.name!r}"):
            await self._trigger.register()
        return self._trigger


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def token_memo(key: str, secret: str = "") -> str:
    """The memo that keeps a token's hash, or what the names of all of a trigger's begin with."""
    return f"~token:{key}:{hash_token(secret)[:16] if secret else ''}"


def hash_token(secret: str) -> str:
    """What is stored of a token: it has 256 random bits, so a plain hash cannot be turned round."""
    return hashlib.sha256(secret.encode()).hexdigest()
