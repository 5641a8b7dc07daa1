"""What can be known afterwards: of runs, of queues, and of what handlers really did."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from ...core.events import Event


class Effect(msgspec.Struct, frozen=True):
    """One execution of a handler, as a log that the engine does not know tells it."""

    run: str  # empty for a plain job
    step: str
    job: str
    attempt: int
    key: str  # the idempotency key the handler was given


class Trigger(msgspec.Struct, frozen=True):
    """What starts a step: the kinds it listens to, and how. Only for steps without `when`."""

    kinds: tuple[str, ...]
    mode: str = "once"


class RunHistory(msgspec.Struct, frozen=True):
    """A run: what its row says, and its stream."""

    id: str
    flow: str
    status: str
    closed: bool
    events: Sequence[Event]


class History(msgspec.Struct, frozen=True):
    """Everything that can be known afterwards.

    `settled`: nothing more is under way, so everything must have ended. `calm`: nothing happened that could cost
    anyone a lease, so every attempt must have been recorded to its end before the next.
    """

    runs: Sequence[RunHistory] = ()
    queues: Mapping[str, Sequence[Event]] = {}
    effects: Sequence[Effect] = ()
    acknowledged: Collection[str] = ()  # runs and jobs whose start was answered
    triggers: Mapping[str, Mapping[str, Trigger]] = {}  # flow -> step -> what starts it
    settled: bool = True
    calm: bool = False
    gates: Mapping[str, Sequence[Event]] = {}  # the streams of triggers


class Violation(msgspec.Struct, frozen=True):
    """A rule that was broken, where, and by what."""

    rule: str
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.message}"
