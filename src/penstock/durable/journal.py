"""The journal of a handler's durable calls: what was recorded of earlier attempts, what this one adds to it.

Each call is known by its name and how often that name was used before (`charge#1`, `charge#2` in a loop). Calls may be
added and removed between deploys; those that remain keep their kind and their order, or the re-run is told so.
"""

from __future__ import annotations

import bisect
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from ..core.errors import DuplicateName, HistoryLimit, NonDeterminism, ReplayError
from ..core.payload import pack
from ..ports.unit import Memo, NewEvent, NewJob, WaitChange

MAX_CALLS = 10_000
MAX_BYTES = 10 * 1024 * 1024
RESULT = "!"  # what became of a wait is recorded beside what was waited for
EFFECTS = "~effects#"
FIRED = "fired"
SLEEPS = ("time", "event", FIRED)  # kinds of calls that a handler sleeps on
_NAME = re.compile(r"[A-Za-z0-9_./ -]{1,100}")
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class JournalEntry(msgspec.Struct, omit_defaults=True):
    """A recorded call."""

    kind: str
    ord: float
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: str | None = None
    code: str | None = None  # of a place where the handler slept: the code that slept there


class EffectCounts(msgspec.Struct, omit_defaults=True):
    """How much of what a handler says was recorded when it went to sleep: a re-run does not say it again."""

    emits: int = 0
    sets: int = 0
    kinds: list[str] = []  # of the emits, all of them


class PendingWrites(msgspec.Struct):
    """What is to be written with the next commit, whichever that is."""

    memos: list[Memo] = []
    waits: list[WaitChange] = []
    events: list[NewEvent] = []
    jobs: list[NewJob] = []

    def __bool__(self) -> bool:
        return bool(self.memos or self.waits or self.events or self.jobs)


class JournalCall(msgspec.Struct, frozen=True):
    """One durable call: where it stands in the journal, and what is recorded of it."""

    key: str
    kind: str
    ord: float
    entry: JournalEntry | None


_entry = msgspec.json.Decoder(JournalEntry).decode
_said = msgspec.json.Decoder(EffectCounts).decode
encode = msgspec.json.Encoder().encode


class Journal:
    """The durable calls of one attempt. `about` says whose they are, for errors; `code` which code makes them."""

    def __init__(self, memos: dict[str, bytes], scope: str, about: str, code: Callable[[], str] = lambda: "") -> None:
        self.scope = scope
        self.about = about
        self.problem: ReplayError | None = None  # the first rule broken: it counts though the handler caught it
        self._code = code
        self._passed: set[str] = set()
        self._before = "its beginning"
        self.kept = PendingWrites()
        self.urgent = False  # what is kept must be durable before anything is done with it
        self.recorded = EffectCounts()
        self._memos = memos
        self.entries: dict[str, JournalEntry] = {}
        self._size = 0
        self._counts: dict[str, int] = {}
        self._sites: dict[str, tuple[str, int]] = {}
        self._last = 0.0  # the order of the last call made
        self._read(memos)
        self._ords = sorted(entry.ord for entry in self.entries.values())

    def _read(self, memos: dict[str, bytes]) -> None:
        for name, value in memos.items():
            self._size += len(value)
            if name.startswith(EFFECTS):
                said = _said(value)
                if said.emits >= self.recorded.emits and said.sets >= self.recorded.sets:
                    self.recorded = said
            elif "#" in name and not name.startswith(("patch:", "~")) and not name.endswith(RESULT):
                self.entries[name] = _entry(value)

    @property
    def replaying(self) -> bool:
        """Whether the handler is still on the way to where an earlier attempt had come."""
        return bool(self._ords) and self._last < self._ords[-1]

    def call(self, name: str, kind: str) -> JournalCall:
        """The next call of a name; checks that it is the one that was recorded."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self.broken(
                NonDeterminism,
                f"{name!r} cannot name a durable call: use letters, digits and . _ / -, at most 100",
            )
        self._check_site(name)
        return self.call_anywhere(name, kind)

    def call_anywhere(self, name: str, kind: str) -> JournalCall:
        """The same for calls that are told apart by their order alone."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        key = f"{name}#{count}"
        entry = self.entries.get(key)
        self._passed.add(key)
        if entry is None:
            self._check_limit(key)
            self._before = key
            return JournalCall(key, kind, self._between(), None)
        if entry.kind != kind:
            raise self.broken(
                NonDeterminism,
                f"{key} was recorded as a {entry.kind} and is a {kind} now: give the new call a name of its own, so "
                "that runs that are under way keep what they have",
            )
        if entry.ord < self._last:
            raise self.broken(
                NonDeterminism,
                f"{key} was recorded before {self._before} and comes after it now: keep the order of durable calls, "
                "and let nothing but recorded values decide it (ctx.now, ctx.random, ctx.run)",
            )
        self._last, self._before = entry.ord, key
        return JournalCall(key, kind, entry.ord, entry)

    def keep(self, call: JournalCall, value: Any = None, *, error: str | None = None) -> JournalEntry:
        """Records a call's value with the next commit."""
        raw = msgspec.Raw(pack(value, f"{self.about}: the value of {call.key}"))
        code = self._code() if call.kind in SLEEPS else ""
        entry = JournalEntry(call.kind, call.ord, raw, error, code or None)
        self.memo(call.key, entry)
        self.entries[call.key] = entry
        return entry

    def memo(self, name: str, value: Any) -> None:
        """Records anything under a name with the next commit; a name that is recorded keeps its value."""
        data = encode(value)
        self._size += len(data)
        self._memos[name] = data
        self.kept.memos.append(Memo(self.scope, name, data))

    def recall(self, name: str) -> bytes | None:
        return self._memos.get(name)

    def recalled(self, prefix: str) -> dict[str, bytes]:
        return {name: value for name, value in self._memos.items() if name.startswith(prefix)}

    def say(self, emits: int, sets: int, kinds: list[str]) -> None:
        """Records how much has been said, if it is more than was."""
        if (emits, sets) != (self.recorded.emits, self.recorded.sets):
            self.memo(f"{EFFECTS}{emits}-{sets}", EffectCounts(emits, sets, kinds))

    def check_emit(self, index: int, kind: str) -> bool:
        """Whether the emit of this index was recorded by an earlier attempt."""
        if index >= self.recorded.emits:
            return False
        before = self.recorded.kinds[index]
        if before != kind:
            raise self.broken(
                NonDeterminism,
                f"emit {index + 1} was recorded as {before!r} and is {kind!r} now: emit in one order, and let nothing "
                "but recorded values decide it (ctx.now, ctx.random, ctx.run)",
            )
        return True

    def check_passed(self) -> None:
        """Raises if this very code has slept at a place that it did not come to now. A deploy may remove places."""
        for key, entry in self.entries.items():
            if entry.code is not None and key not in self._passed and entry.code == self._code():
                raise self.broken(
                    NonDeterminism,
                    f"{key} was recorded, a wait ({entry.kind}) the step slept on, and the same code has come to "
                    f"{self._before} now without it: let nothing but recorded values decide which way it goes "
                    "(ctx.now, ctx.random, ctx.run)",
                )

    def broken(self, kind: type[ReplayError], what: str) -> ReplayError:
        """The error for a rule that was broken."""
        problem = kind(f"{self.about}: {what}")
        self.problem = self.problem or problem
        return problem

    def take(self) -> PendingWrites:
        """What is to be written now; the next commit begins anew."""
        kept, self.kept = self.kept, PendingWrites()
        self.urgent = False
        return kept

    def _between(self) -> float:
        """The place of a new call: after the last one made, before the next one recorded."""
        index = bisect.bisect_right(self._ords, self._last)
        if index < len(self._ords):
            self._last = (self._last + self._ords[index]) / 2
        else:
            self._last = float(int(self._last) + 1)
        return self._last

    def _check_limit(self, key: str) -> None:
        calls = len(self.entries)
        if calls >= MAX_CALLS or self._size > MAX_BYTES:
            raise self.broken(
                HistoryLimit,
                f"{key} would be call {calls + 1:,} of one step, with {self._size:,} bytes recorded (limits "
                f"{MAX_CALLS:,} and {MAX_BYTES:,}): split the work into steps, or start a run for each part",
            )

    def _check_site(self, name: str) -> None:
        """One name belongs to one place in the code; only a loop goes past it twice."""
        site = _site()
        known = self._sites.setdefault(name, site)
        if known != site:
            raise self.broken(
                DuplicateName,
                f"the name {name!r} stands at {known[0]}:{known[1]} and at {site[0]}:{site[1]}: give each durable call "
                "a name of its own (waits take name=…)",
            )


def _site() -> tuple[str, int]:
    """The place in the handler's code that makes the call."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
