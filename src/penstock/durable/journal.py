"""The journal of a handler's durable calls: what earlier attempts recorded, and what this attempt adds.

A call is identified by its name and by how often that name was used before (`charge#1`, `charge#2` in a loop). A deploy
may add and remove calls; the calls that remain must keep their kind and their order, or replay fails with an error that
names the call. In a handler with concurrent calls, order matters only among calls of one name, and in TypeScript also
among calls that are known to be made one after the other.
"""

from __future__ import annotations

import bisect
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from ..core.errors import (
    DuplicateName,
    HistoryLimit,
    NonDeterminism,
    PayloadTooLarge,
    ReplayError,
    UnreadableRecord,
)
from ..core.payload import MAX_PAYLOAD_BYTES, fits, pack
from ..core.stored import describe_problem
from ..core.text import shorten
from ..ports.unit import Memo, NewEvent, NewJob, WaitChange

MAX_CALLS = 10_000
MAX_JOURNAL_BYTES = 10 * 1024 * 1024
RESULT = "!"  # suffix of the memo that holds a wait's result, next to the memo of the wait itself
EFFECTS = "~effects#"
PARTIALS = "~partials#"
FIRED = "fired"
WAIT_KINDS = ("time", "event", "call", FIRED)  # the kinds of calls a handler suspends on
_NAME = re.compile(r"[A-Za-z0-9_./ -]{1,100}")
_RECORDED_ONLY = "branch only on the input and on recorded values (ctx.now, ctx.random, ctx.run)"
_PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class JournalEntry(msgspec.Struct, omit_defaults=True):
    """A recorded call."""

    kind: str
    ord: float
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: str | None = None
    code: str | None = None  # for a wait: the fingerprint of the code that suspended on it
    concurrent: bool = False  # the handler made concurrent calls: their order may differ in a replay
    chain: int = 0  # calls of one chain were made one after the other; see Journal.break_chain


class EffectCounts(msgspec.Struct, omit_defaults=True):
    """How many emits, state writes and launches were committed when the handler suspended: replay skips that many."""

    emits: int = 0
    sets: int = 0
    kinds: list[str] = []  # the kind of each emit
    launches: list[tuple[str, str]] = []  # what each `ctx.enqueue` and `ctx.start` started, and its id
    keys: list[str] = []  # of the state writes, if the handler made concurrent calls

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
_decode_partials = msgspec.json.Decoder(tuple[str, int]).decode
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
        self.is_concurrent = False  # the handler makes concurrent calls: what it does is identified without its order
        self.orders_effects = True  # emits, launches and state writes come in the same order in each attempt
        self.chain = 0
        self._passed: dict[int, float] = {}  # the order of the last recorded call made, by the chain it was recorded in
        self.is_urgent = False  # the writes must be committed before the handler acts on them
        self.recorded_effects = EffectCounts()
        self.entries: dict[str, JournalEntry] = {}
        self._partials: dict[str, int] = {}  # how many chunks of output an attempt had sent when it suspended
        self._code = code
        self._memos = memos
        self._size = 0
        self._counts: dict[str, int] = {}
        self._sites: dict[str, tuple[str, int]] = {}
        self.remote_site: tuple[str, int] | None = None  # the line of a handler in another process
        self.reached: set[str] = set()  # the keys of the calls made
        self.previous = "none"  # the key of the last call made
        self.position = 0.0  # the order of the last call made
        self._effects: dict[tuple[str, str], int] = {}  # how often each emit, launch and state write was made
        self._load(memos)
        self._ords = sorted([entry.ord for entry in self.entries.values()])
        self._unreached = len(self.entries)  # recorded calls that this attempt has not made
        self._has_new_call = False

    def _load(self, memos: dict[str, bytes]) -> None:
        for name, value in memos.items():
            self._size += len(value)
            try:
                self._load_one(name, value)
            except Exception as problem:
                reason = describe_problem(problem, value)
                raise UnreadableRecord(
                    f"{self.about}: cannot read the recorded result of {name!r} ({reason}). {REPLAY_HINT}"
                ) from None

    def _load_one(self, name: str, value: bytes) -> None:
        if name.startswith(PARTIALS):
            owner, count = _decode_partials(value)
            self._partials[owner] = max(self._partials.get(owner, 0), count)
            return
        if name.startswith(EFFECTS):
            effects = _decode_effects(value)
            if effects.total >= self.recorded_effects.total:  # none of them ever gets less
                self.recorded_effects = effects
        elif "#" in name and not name.startswith(("patch:", "~")) and not name.endswith(RESULT):
            entry = self.entries[name] = _decode_entry(value)
            self.is_concurrent = self.is_concurrent or entry.concurrent

    @property
    def is_replaying(self) -> bool:
        """Whether the handler has not yet reached the last call an earlier attempt recorded."""
        if self.is_concurrent:
            return self._unreached > 0 and not self._has_new_call
        return bool(self._ords) and self.position < self._ords[-1]

    def next_call(self, name: str, kind: str) -> JournalCall:
        """Return the next call with this name, and check that it matches the recorded one."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self.make_error(
                NonDeterminism,
                f"invalid name {shorten(name)} for a durable call; use letters, digits, spaces and . _ / -, "
                "at most 100 characters",
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
            self._has_new_call = True
            return JournalCall(key, kind, self._next_ord(), None)
        self._unreached -= 1
        if entry.kind != kind:
            raise self.make_error(
                NonDeterminism,
                f"the durable call {key} was {_call(entry.kind)} when it was recorded, and now it is {_call(kind)}. "
                "Give the new call another name, so that it does not get the old call's recorded value",
            )
        if entry.ord < self._passed.get(entry.chain, 0.0) and not self.is_concurrent:
            raise self.make_error(
                NonDeterminism,
                f"an earlier attempt made the durable call {key} before {self.previous}, but this attempt makes it "
                f"after. Every attempt must make the same calls in the same order; {_RECORDED_ONLY}",
            )
        self._passed[entry.chain] = entry.ord
        self.position, self.previous = max(entry.ord, self.position), key
        return JournalCall(key, kind, entry.ord, entry)

    def break_chain(self) -> None:
        """Take note that the next call may be made by another branch than the calls before: a host that cannot tell its
        branches apart does not know. Only the order of calls of one chain is compared."""
        self.chain += 1
        self._passed.clear()

    def record(self, call: JournalCall, value: Any = None, *, error: str | None = None) -> JournalEntry:
        """Record a call's value with the next commit."""
        raw = msgspec.Raw(self._pack(call.key, value))
        code = self._code() if call.kind in WAIT_KINDS else ""
        entry = JournalEntry(call.kind, call.ord, raw, error, code or None, self.is_concurrent, self.chain)
        self.add_memo(call.key, entry)
        self.entries[call.key] = entry
        return entry

    def _pack(self, key: str, value: Any) -> bytes:
        """Encode a call's value. Raise if it, or the whole step, gets too large."""
        data = pack(value, f"{self.about}: the value of {key}", MAX_JOURNAL_BYTES)
        if not fits(len(data)):
            raise PayloadTooLarge(
                f"{self.about}: the durable call {key} returned {len(data):,} bytes; the limit for one value is "
                f"{MAX_PAYLOAD_BYTES:,} bytes. Set blob_url, which lifts the limit; or store the data elsewhere (a "
                "file, a bucket, a table) and return its name or key, or only the part that the handler needs"
            )
        if not fits(self._size + len(data), MAX_JOURNAL_BYTES):
            raise self.make_error(
                HistoryLimit,
                f"the result of {key} ({len(data):,} bytes) brings this step to {self._size + len(data):,} recorded "
                f"bytes; the limit for a step is {MAX_JOURNAL_BYTES:,} bytes. Return less "
                "from its calls, split the work into several steps, or start a run for each part",
            )
        return data

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

    def record_effects(
        self, emits: int, sets: int, kinds: list[str], launches: list[tuple[str, str]], keys: list[str]
    ) -> None:
        """Record how many emits, state writes and launches were made, if there are more than before."""
        before = self.recorded_effects
        if (emits, sets, len(launches)) != (before.emits, before.sets, len(before.launches)):
            name = f"{EFFECTS}{emits}-{sets}" + (f"-{len(launches)}" if launches else "")
            self.add_memo(name, EffectCounts(emits, sets, kinds, launches, [] if self._has_ordered_effects else keys))

    def record_partials(self, attempt: str, count: int) -> None:
        """Record how many chunks of output this attempt has sent, so that its resume does not send them again."""
        if count > self._partials.get(attempt, 0):
            self.add_memo(f"{PARTIALS}{attempt}-{count}", (attempt, count))

    def sent_partials(self, attempt: str) -> int:
        """Return how many chunks of output this attempt had sent when it suspended."""
        return self._partials.get(attempt, 0)

    @property
    def _has_ordered_effects(self) -> bool:
        return self.orders_effects and not self.is_concurrent

    def check_emit(self, index: int, kind: str) -> bool:
        """Return whether an earlier attempt committed the emit at this index; raise if it was of another kind."""
        count = self._count_effect("emit", kind)
        if not self._has_ordered_effects:
            return count <= self.recorded_effects.kinds.count(kind)
        if index >= self.recorded_effects.emits:
            return False
        recorded = self.recorded_effects.kinds[index]
        if recorded != kind:
            raise self.make_error(
                NonDeterminism,
                f"an earlier attempt emitted {recorded!r} as event {index + 1}, but this attempt emits {kind!r}. Every "
                f"attempt must emit the same events in the same order; {_RECORDED_ONLY}",
            )
        return True

    def check_launch(self, index: int, label: str) -> str | None:
        """Return the id of the launch at this index if an earlier attempt committed it; raise if it was another one."""
        count = self._count_effect("launch", label)
        if not self._has_ordered_effects:
            ids = [id for one, id in self.recorded_effects.launches if one == label]
            return ids[count - 1] if count <= len(ids) else None
        if index >= len(self.recorded_effects.launches):
            return None
        recorded, id = self.recorded_effects.launches[index]
        if recorded != label:
            raise self.make_error(
                NonDeterminism,
                f"job or run number {index + 1} that an earlier attempt started was {recorded}, but this attempt "
                f"starts {label}. Every attempt must start the same work in the same order; {_RECORDED_ONLY}",
            )
        return id

    def check_write(self, index: int, key: str) -> bool:
        """Return whether an earlier attempt committed the state write at this index, or of this key."""
        if self.recorded_effects.keys:
            return self._count_effect("state", key) <= self.recorded_effects.keys.count(key)
        return index < self.recorded_effects.sets

    def _count_effect(self, what: str, name: str) -> int:
        count = self._effects[what, name] = self._effects.get((what, name), 0) + 1
        return count

    def check_skipped_waits(self) -> None:
        """Raise if the same code suspended on a wait before and did not reach it now. A deploy may remove waits."""
        if self.is_concurrent or self.chain:
            return  # a branch that was cancelled, or comes later now, does not reach its waits
        for key, entry in self.entries.items():
            if entry.code is not None and key not in self.reached and entry.code == self._code():
                raise self.make_error(
                    NonDeterminism,
                    f"an earlier attempt waited at {key} ({_call(entry.kind)}), but this attempt skipped that wait "
                    f"(last durable call: {self.previous}). Every attempt must reach the same waits; {_RECORDED_ONLY}",
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
        if len(self.entries) >= MAX_CALLS:
            reached = f"a step can make at most {MAX_CALLS:,} durable calls, and this one has made them"
        elif self._size > MAX_JOURNAL_BYTES:
            reached = f"a step can record at most {MAX_JOURNAL_BYTES:,} bytes, and this one has recorded {self._size:,}"
        else:
            return
        hint = "Split the work into several steps, or start a run for each part"
        raise self.make_error(HistoryLimit, f"the durable call {key!r} is over the limit: {reached}. {hint}")

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
    return {
        "run": "ctx.run",
        "time": "ctx.wait.time",
        "event": "ctx.wait.event",
        "call": "ctx.call",
        FIRED: "the wait for a trigger",
    }.get(kind, f"a {kind}")
