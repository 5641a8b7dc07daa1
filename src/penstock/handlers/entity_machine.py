"""The state machine of an entity as data: its states and transitions, checked for mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..core.errors import DefinitionError
from ..core.ids import BadId, check_name
from ..core.near_match import check_keys, did_you_mean, near_matches
from ..core.text import shorten

Function = Callable[..., Any]
"""A condition, an action or a hook: `def` or `async def`."""


@dataclass(frozen=True)
class States:
    """The states of an entity that have a meaning. Those that only transitions name need no entry.

    Args:
        initial: The state of a new entity.
        idles: States in which the entity waits for an event. From any other state that is not final, it moves on by
            itself.
        finals: States that accept no event.
        failed: The state that a rejected event leads to. Default: a rejected event is refused and changes nothing.
    """

    initial: str
    idles: Sequence[str] = ()
    finals: Sequence[str] = ()
    failed: str | None = None

    def __post_init__(self) -> None:
        _check_text("states.initial", self.initial)
        _check_texts("states.idles", self.idles)
        _check_texts("states.finals", self.finals)
        if self.failed is not None:
            _check_text("states.failed", self.failed)


@dataclass(frozen=True)
class Transition:
    """A way from one or several states to another.

    Args:
        event: The event, or several of them, that it follows. Without one it is only followed automatically.
        from_: The state, or several of them, that it starts from.
        to: The state that it leads to.
        conditions: Functions of the entity and the payload. It is followed if all of them return true.
        actions: Functions of the entity and the payload, called in order. One may change the entity, or return
            another one.
    """

    event: str | Sequence[str] | None = None
    from_: str | Sequence[str] = ()
    to: str = ""
    conditions: Sequence[Function] = ()
    actions: Sequence[Function] = ()

    def __post_init__(self) -> None:
        for name, value in (("event", self.event), ("from", self.from_)):
            if value is not None and not isinstance(value, str):
                _check_texts(f"{name} of a transition", value)
        _check_text("to of a transition", self.to)
        for name, functions in (("conditions", self.conditions), ("actions", self.actions)):
            if not isinstance(functions, list | tuple):
                raise DefinitionError(f"{name} of a transition must be a list of functions, got {shorten(functions)}")

    @property
    def events(self) -> tuple[str, ...]:
        return _names(self.event)

    @property
    def froms(self) -> tuple[str, ...]:
        return _names(self.from_)


@dataclass(frozen=True)
class Machine:
    """Checked states and transitions. It calls nothing and never changes."""

    initial: str
    idles: frozenset[str]
    finals: frozenset[str]
    failed: str | None
    transitions: tuple[Transition, ...]
    events: tuple[str, ...]
    states: tuple[str, ...]  # the initial one first, then in the order of the definition
    has_fallback: bool = False
    fails_rejected: bool = True  # a rejected event leads to `failed`; else it is refused
    fails_unmet: bool = False  # an event whose conditions do not hold leads to `failed`; else it is refused

    def candidates(self, status: str, event: str) -> list[Transition]:
        """Return the transitions of an event from a state, in the order of the definition."""
        return self._by_event.get((status, event), [])

    @cached_property
    def _by_event(self) -> dict[tuple[str, str], list[Transition]]:
        found: dict[tuple[str, str], list[Transition]] = {}
        for one in self.transitions:
            for key in dict.fromkeys((status, event) for status in one.froms for event in one.events):
                found.setdefault(key, []).append(one)
        return found

    def automatic(self, status: str) -> list[Transition]:
        """Return the transitions that are followed without an event; none from a state that rests."""
        if self.is_resting(status):
            return []
        return [one for one in self.transitions if status in one.froms and one.to != self.failed]

    def is_resting(self, status: str) -> bool:
        """Return whether an entity stays in this state until an event comes, or for good."""
        return status in self.idles or status in self.finals or status == self.failed

    def accepted(self, status: str) -> list[str]:
        """Return the events that have a transition from a state."""
        return [event for event in self.events if self.candidates(status, event)]


def _names(value: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if value is None else (value,) if isinstance(value, str) else tuple(value)


def build_machine(
    name: str,
    states: States,
    transitions: Sequence[Transition],
    *,
    has_fallback: bool = False,
    on_rejected: str | None = None,
    on_unmet: str = "refuse",
    where: str = "",
) -> Machine:
    """Check a definition and return its machine. Raise DefinitionError with the first mistake and the near match."""
    known = _known_states(states, transitions)
    events = tuple(dict.fromkeys(event for one in transitions for event in one.events))
    machine = Machine(
        states.initial,
        frozenset(states.idles),
        frozenset(states.finals),
        states.failed,
        tuple(transitions),
        events,
        known,
        has_fallback,
        (states.failed is not None) if on_rejected is None else on_rejected == "fail",
        on_unmet == "fail",
    )
    try:
        _check(name, machine, states)
    except (DefinitionError, BadId) as problem:
        raise DefinitionError(f"entity {name!r}: {problem}", where=where or None) from None
    if states.failed is None and (machine.fails_rejected or machine.fails_unmet):
        option = "on_rejected" if machine.fails_rejected else "on_unmet"
        raise DefinitionError(f'entity {name!r}: {option}="fail" needs states.failed', where=where or None)
    return machine


def _known_states(states: States, transitions: Sequence[Transition]) -> tuple[str, ...]:
    named = [states.initial, *(state for one in transitions for state in (*one.froms, one.to))]
    failed = [states.failed] if states.failed is not None else []
    return tuple(dict.fromkeys([*named, *states.finals, *failed]))


def _check(name: str, machine: Machine, states: States) -> None:
    check_name(name, "name of an entity")
    if not machine.transitions:
        raise DefinitionError("it has no transitions")
    for one in machine.transitions:
        if not one.froms or not one.to:
            raise DefinitionError(f"a transition needs from_ and to, got {_shown(one)}")
    for state in machine.states:
        check_name(state, "state")
    for event in machine.events:
        check_name(event, "event")
    _check_used(machine, states)
    _check_finals(machine)
    _check_reachable(machine)
    _check_ends(machine)
    _check_endless(machine)


def _check_used(machine: Machine, states: States) -> None:
    """Refuse an idle or final state that no transition names: it is most likely misspelled."""
    used = {state for one in machine.transitions for state in (*one.froms, one.to)}
    for what, listed in (("initial", [states.initial]), ("idles", states.idles), ("finals", states.finals)):
        for state in listed:
            if state not in used:
                listed_states = {states.initial, *states.idles, *states.finals}
                leads = next((one for one in machine.transitions if _is_misspelt(one.to, state, listed_states)), None)
                if leads is not None:
                    raise DefinitionError(
                        f"states.{what} names {state!r}, which no transition has, and {_shown(leads)} goes to "
                        f"{leads.to!r}, which states does not name; did you mean {leads.to!r} in states, or {state!r} "
                        "in the transition?"
                    )
                raise DefinitionError(f"states.{what} names {shorten(state)}, {_hint(state, used)}")
    for state in machine.idles & machine.finals:
        raise DefinitionError(f"state {state!r} is both in states.idles and in states.finals; leave it in one of them")


def _is_misspelt(to: str, state: str, listed: Iterable[str]) -> bool:
    """Return whether a transition that goes to `to` probably means this state: `to` is near, and is not in `states`."""
    return to not in listed and bool(near_matches(to, [state])) and to[:1] == state[:1]


def _hint(state: str, used: Iterable[str]) -> str:
    near = did_you_mean(state, used) or f"known states: {', '.join(sorted(used))}"
    return f"which no transition has; {near}"


def _check_finals(machine: Machine) -> None:
    for one in machine.transitions:
        for state in one.froms:
            if state in machine.finals:
                raise DefinitionError(
                    f"state {state!r} is final, but {_shown(one)} leads out of it; remove the transition, or take "
                    "the state out of states.finals"
                )


def _check_reachable(machine: Machine) -> None:
    reached, left = {machine.initial}, [machine.initial]
    if machine.failed is not None:
        reached.add(machine.failed)
        left.append(machine.failed)
    while left:
        state = left.pop()
        following = {one.to for one in machine.transitions if state in one.froms} - reached
        reached |= following
        left += following
    for state in machine.states:
        if state not in reached:
            hint = did_you_mean(state, reached) or "add a transition that leads to it"
            raise DefinitionError(f"state {state!r} cannot be reached from {machine.initial!r}; {hint}")


def _check_ends(machine: Machine) -> None:
    """Refuse a state without a way out that is neither idle nor final: it is most likely misspelled."""
    left = {state for one in machine.transitions for state in one.froms}
    for state in machine.states:
        if state not in left and not machine.is_resting(state):
            others = [one for one in machine.states if one != state]
            hint = did_you_mean(state, others) or "add it to states.finals, or to states.idles"
            raise DefinitionError(
                f"no transition leads out of state {state!r}, and it is neither in states.finals nor in states.idles; "
                f"{hint}"
            )


def _check_endless(machine: Machine) -> None:
    """Refuse states that an entity would leave for each other for ever: no condition ends the cycle."""
    for start in machine.states:
        path, state = [start], start
        while (following := machine.automatic(state)) and not following[0].conditions:
            state = following[0].to
            if state in path:
                cycle = [*path[path.index(state) :], state]
                raise DefinitionError(
                    f"the entity would never rest: {' → '.join(cycle)} are followed automatically, without a "
                    "condition; add one of these states to states.idles"
                )
            path.append(state)


def _shown(one: Transition) -> str:
    events = " or ".join(one.events) or "automatic"
    return f"{events}: {' or '.join(one.froms) or '?'} → {one.to or '?'}"


def read_states(value: Any) -> States:
    """Read states from a mapping, or return those that were passed."""
    if isinstance(value, States):
        return value
    if not isinstance(value, Mapping):
        raise DefinitionError(f"states must be States(…) or a mapping, got {shorten(value)}")
    check_keys(value, {"initial", "idles", "finals", "failed"}, "states")
    if "initial" not in value:
        raise DefinitionError("states has no initial; name the state of a new entity")
    return States(value["initial"], value.get("idles", ()), value.get("finals", ()), value.get("failed"))


def read_transition(value: Any, functions: Mapping[str, Function]) -> Transition:
    """Read a transition from a mapping, with conditions and actions by name, or return the one that was passed."""
    if isinstance(value, Transition):
        return value
    if not isinstance(value, Mapping):
        raise DefinitionError(f"a transition must be Transition(…) or a mapping, got {shorten(value)}")
    names = {"event", "events", "from", "froms", "to", "conditions", "actions"}
    check_keys(value, names, "transition")
    event, start = value.get("event", value.get("events")), value.get("from", value.get("froms", ()))
    calls = [[_function(one, functions) for one in _read_list(value, kind)] for kind in ("conditions", "actions")]
    return Transition(event, start, value.get("to", ""), calls[0], calls[1])


def _read_list(value: Mapping[str, Any], kind: str) -> Sequence[Any]:
    found = value.get(kind)
    if found is not None and not isinstance(found, list | tuple):
        raise DefinitionError(f"{kind} of a transition must be a list, got {shorten(found)}")
    return found or ()


def _check_text(what: str, value: Any) -> None:
    if not isinstance(value, str):
        raise DefinitionError(f"{what} must be a text, got {shorten(value)}")


def _check_texts(what: str, value: Any) -> None:
    is_list = isinstance(value, list | tuple | set | frozenset)
    if not is_list or not all(isinstance(one, str) for one in value):
        raise DefinitionError(f"{what} must be a list of texts, got {shorten(value)}")


def _function(value: Any, functions: Mapping[str, Function]) -> Function:
    if callable(value):
        return value  # type: ignore[no-any-return]
    if not isinstance(value, str) or value not in functions:
        hint = did_you_mean(value, functions) or f"known functions: {', '.join(sorted(functions)) or 'none'}"
        raise DefinitionError(f"no function named {shorten(value)} was passed; {hint}")
    return functions[value]
