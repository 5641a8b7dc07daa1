"""The journal of a handler's durable calls: what earlier attempts recorded, and what this attempt adds.

A call is identified by its name and by how often that name was used before (`charge#1`, `charge#2` in a loop). A deploy
may add and remove calls; the calls that remain must keep their kind and their order, or replay fails with an error that
names the call.
"""

from __future__ import annotations

import bisect
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from ..core.errors import DuplicateName, HistoryLimit, NonDeterminism, ReplayError, UnreadableRecord
from ..core.payload import pack
from ..core.stored import describe_problem
from ..ports.unit import Memo, NewEvent, NewJob, WaitChange

MAX_CALLS = 10_000
MAX_JOURNAL_BYTES = 10 * 1024 * 1024
RESULT = "!"  # suffix of the memo that holds a wait's result, next to the memo of the wait itself
EFFECTS = "~effects#"
FIRED = "fired"
WAIT_KINDS = ("time", "event", FIRED)  # the kinds of calls a handler suspends on
_NAME = re.compile(r"[A-Za-z0-9_./ -]{1,100}")
_PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class JournalEntry(msgspec.Struct, omit_defaults=True):
    """A recorded call."""

    kind: str
    ord: float
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: str | None = None
    code: str | None = None  # for a wait: the fingerprint of the code that suspended on it


class EffectCounts(msgspec.Struct, omit_defaults=True):
    """How many emits, state writes and launches were committed when the handler suspended: replay skips that many."""

    emits: int = 0
    sets: int = 0
    kinds: list[str] = []  # the kind of each emit
    launches: list[tuple[str, str]] = []  # what each `ctx.enqueue` and `ctx.start` started, and its id

    @property
    def total(self) -> int:
        return self.emits + self.sets + len(self.launches)


class PendingWrites(msgspec.Struct):
    """What to write with the next commit, whichever that is."""

    memos: list[Memo] = []
    waits: list[WaitChange] = []
    events: list[NewEvent] = []
    jobs: list[NewJob] = []

    def __bool__(self) -> bool:
        return bool(self.memos or self.waits or self.events or self.jobs)


class JournalCall(msgspec.Struct, frozen=True):
    """One durable call: its position in the journal, and its recorded entry if there is one."""

    key: str
    kind: str
    ord: float
    entry: JournalEntry | None


_decode_entry = msgspec.json.Decoder(JournalEntry).decode
_decode_effects = msgspec.json.Decoder(EffectCounts).decode
REPLAY_HINT = "restore it from a backup, or start the work again: `penstock runs replay RUN`"
encode = msgspec.json.Encoder().encode


class Journal:
    """The durable calls of one attempt. `about` names its owner in errors; `code` returns the handler's fingerprint."""

    def __init__(self, memos: dict[str, bytes], scope: str, about: str, code: Callable[[], str] = lambda: "") -> None:
        self.scope = scope
        self.about = about
        self.problem: ReplayError | None = None  # the first broken rule: it counts even if the handler caught it
        self.writes = PendingWrites()
        self.is_urgent = False  # the writes must be committed before the handler acts on them
        self.recorded_effects = EffectCounts()
        self.entries: dict[str, JournalEntry] = {}
        self._code = code
        self._memos = memos
        self._size = 0
        self._counts: dict[str, int] = {}
        self._sites: dict[str, tuple[str, int]] = {}
        self.remote_site: tuple[str, int] | None = None  # the line of a handler in another process
        self.reached: set[str] = set()  # the keys of the calls made
        self.previous = "its beginning"  # the key of the last call made
        self.position = 0.0  # the order of the last call made
        self._load(memos)
        self._ords = sorted(entry.ord for entry in self.entries.values())

    def _load(self, memos: dict[str, bytes]) -> None:
        for name, value in memos.items():
            self._size += len(value)
            try:
                self._load_one(name, value)
            except Exception as problem:
                reason = describe_problem(problem, value)
                raise UnreadableRecord(
                    f"{self.about}: its record {name!r} cannot be read: {reason}; {REPLAY_HINT}"
                ) from None

    def _load_one(self, name: str, value: bytes) -> None:
        if name.startswith(EFFECTS):
            effects = _decode_effects(value)
            if effects.total >= self.recorded_effects.total:  # none of them ever gets less
                self.recorded_effects = effects
        elif "#" in name and not name.startswith(("patch:", "~")) and not name.endswith(RESULT):
            self.entries[name] = _decode_entry(value)

    @property
    def is_replaying(self) -> bool:
        """Whether the handler has not yet reached the last call an earlier attempt recorded."""
        return bool(self._ords) and self.position < self._ords[-1]

    def next_call(self, name: str, kind: str) -> JournalCall:
        """Return the next call with this name, and check that it matches the recorded one."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self.make_error(
                NonDeterminism,
                f"invalid name {name!r} for a durable call; use letters, digits, spaces and . _ / -, at most 100 "
                "characters",
            )
        self._check_site(name)
        return self.next_call_by_order(name, kind)

    def next_call_by_order(self, name: str, kind: str) -> JournalCall:
        """Return the next call with this name; several places in the code may use the name."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        key = f"{name}#{count}"
        entry = self.entries.get(key)
        self.reached.add(key)
        if entry is None:
            self._check_limit(key)
            self.previous = key
            return JournalCall(key, kind, self._next_ord(), None)
        if entry.kind != kind:
            raise self.make_error(
                NonDeterminism,
                f"the durable call {key} was recorded as {_call(entry.kind)}, and the code now makes it with "
                f"{_call(kind)}. Give that call another name: runs in progress still need the record under this one",
            )
        if entry.ord < self.position:
            raise self.make_error(
                NonDeterminism,
                f"{key} was recorded before {self.previous} but now comes after it. Keep the order of durable "
                "calls, and let it depend only on recorded values (ctx.now, ctx.random, ctx.run)",
            )
        self.position, self.previous = entry.ord, key
        return JournalCall(key, kind, entry.ord, entry)

    def record(self, call: JournalCall, value: Any = None, *, error: str | None = None) -> JournalEntry:
        """Record a call's value with the next commit."""
        raw = msgspec.Raw(pack(value, f"{self.about}: the value of {call.key}"))
        code = self._code() if call.kind in WAIT_KINDS else ""
        entry = JournalEntry(call.kind, call.ord, raw, error, code or None)
        self.add_memo(call.key, entry)
        self.entries[call.key] = entry
        return entry

    def add_memo(self, name: str, value: Any) -> None:
        """Write a memo with the next commit. The store keeps the first value of a name."""
        data = encode(value)
        self._size += len(data)
        self._memos[name] = data
        self.writes.memos.append(Memo(self.scope, name, data))

    def read_memo(self, name: str) -> bytes | None:
        """Return the value of a memo, or None."""
        return self._memos.get(name)

    def list_memos(self, prefix: str = "") -> dict[str, bytes]:
        """Return all memos whose name starts with a prefix."""
        return {name: value for name, value in self._memos.items() if name.startswith(prefix)}

    def record_effects(self, emits: int, sets: int, kinds: list[str], launches: list[tuple[str, str]]) -> None:
        """Record how many emits, state writes and launches were made, if there are more than before."""
        before = self.recorded_effects
        if (emits, sets, len(launches)) != (before.emits, before.sets, len(before.launches)):
            name = f"{EFFECTS}{emits}-{sets}" + (f"-{len(launches)}" if launches else "")
            self.add_memo(name, EffectCounts(emits, sets, kinds, launches))

    def check_emit(self, index: int, kind: str) -> bool:
        """Return whether an earlier attempt committed the emit at this index; raise if it was of another kind."""
        if index >= self.recorded_effects.emits:
            return False
        recorded = self.recorded_effects.kinds[index]
        if recorded != kind:
            raise self.make_error(
                NonDeterminism,
                f"an earlier attempt emitted {recorded!r} as event {index + 1}, but this attempt emits {kind!r}. Every "
                "attempt must emit the same events in the same order; decide what to emit only from recorded values "
                "(ctx.now, ctx.random, ctx.run)",
            )
        return True

    def check_launch(self, index: int, label: str) -> str | None:
        """Return the id of the launch at this index if an earlier attempt committed it; raise if it was another one."""
        if index >= len(self.recorded_effects.launches):
            return None
        recorded, id = self.recorded_effects.launches[index]
        if recorded != label:
            raise self.make_error(
                NonDeterminism,
                f"an earlier attempt started {recorded} as launch {index + 1}, but this attempt starts {label}. Every "
                "attempt must start the same work in the same order; decide what to start only from recorded values "
                "(ctx.now, ctx.random, ctx.run)",
            )
        return id

    def check_skipped_waits(self) -> None:
        """Raise if the same code suspended on a wait before and did not reach it now. A deploy may remove waits."""
        for key, entry in self.entries.items():
            if entry.code is not None and key not in self.reached and entry.code == self._code():
                raise self.make_error(
                    NonDeterminism,
                    f"{key} was recorded as a wait ({entry.kind}) that suspended the step, but now the same code "
                    f"reached {self.previous} without it. Let the branch depend only on recorded values "
                    "(ctx.now, ctx.random, ctx.run)",
                )

    def make_error(self, kind: type[ReplayError], message: str) -> ReplayError:
        """Build the error for a broken replay rule, and remember the first one."""
        problem = kind(f"{self.about}: {message}")
        self.problem = self.problem or problem
        return problem

    def take_writes(self) -> PendingWrites:
        """Return what to commit now, and start collecting again."""
        writes, self.writes = self.writes, PendingWrites()
        self.is_urgent = False
        return writes

    def _next_ord(self) -> float:
        """Return the position of a new call: after the last call made, before the next recorded one."""
        index = bisect.bisect_right(self._ords, self.position)
        if index < len(self._ords):
            self.position = (self.position + self._ords[index]) / 2
        else:
            self.position = float(int(self.position) + 1)
        return self.position

    def _check_limit(self, key: str) -> None:
        calls = len(self.entries)
        if calls >= MAX_CALLS or self._size > MAX_JOURNAL_BYTES:
            raise self.make_error(
                HistoryLimit,
                f"step limit reached at {key}: durable call {calls + 1:,} of at most {MAX_CALLS:,}, "
                f"{self._size:,} of at most {MAX_JOURNAL_BYTES:,} bytes recorded. Split the work into several "
                "steps, or start a run for each part",
            )

    def _check_site(self, name: str) -> None:
        """Raise if a name is used at two places in the code. A loop may pass one place many times."""
        site = self.remote_site or _find_call_site()
        known = self._sites.setdefault(name, site)
        if known != site:
            raise self.make_error(
                DuplicateName,
                f"the name {name!r} is used for durable calls at {known[0]}:{known[1]} and at {site[0]}:{site[1]}; "
                "use a different name for each (waits take name=…)",
            )


def _find_call_site() -> tuple[str, int]:
    """Return the file and line of the handler's code that makes the call."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE_DIR):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _call(kind: str) -> str:
    """Return how the code makes a call of this kind."""
    return {"run": "ctx.run", "time": "ctx.wait.time", "event": "ctx.wait.event", FIRED: "the wait for a trigger"}.get(
        kind, f"a {kind}"
    )
