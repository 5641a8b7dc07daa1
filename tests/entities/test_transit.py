"""The transition function: pure, and the same as a plain interpreter for random definitions and events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.errors import DefinitionError, EntityCycle
from penstock.entities import States, Transition
from penstock.entities.transit import (
    AskCondition,
    CallFallback,
    Moved,
    RefusedEvent,
    RunActions,
    StatusChanged,
    transit,
)
from penstock.handlers.entity_machine import Machine, build_machine

NAMES = "abcde"
EVENTS = "xyz"


def hold(*_: Any) -> bool:
    raise AssertionError("the transition function calls nothing")


def drive(machine: Machine, status: str, event: str, answers: dict[tuple[str, int], Any]) -> tuple[Any, list[str]]:
    """Answer each question from a table, and return the end and what was asked."""
    asked: list[str] = []
    steps = transit(machine, status, event)
    try:
        question = next(steps)
        while True:
            name, answer = answer_of(machine, question, answers)
            asked.append(name)
            question = steps.send(answer)
    except StopIteration as end:
        return end.value, asked
    except EntityCycle:
        return "cycle", asked


def answer_of(machine: Machine, question: Any, answers: dict[tuple[str, int], Any]) -> tuple[str, Any]:
    match question:
        case AskCondition(transition=one):
            n = number_of(machine, one)
            return f"if{n}", answers.get(("if", n), False)
        case RunActions(transition=one):
            n = number_of(machine, one)
            return f"do{n}", answers.get(("do", n))
        case StatusChanged(before=before, after=after):
            return f"{before}>{after}", None
        case CallFallback():
            return "fallback", None
    raise AssertionError(question)


def number_of(machine: Machine, transition: Transition) -> int:
    """Return the place of a transition. Two may be equal, so this goes by identity."""
    return next(n for n, one in enumerate(machine.transitions) if one is transition)


def interpret(machine: Machine, status: str, event: str, answers: dict[tuple[str, int], Any]) -> tuple[Any, list[str]]:
    """The same, written as one would by hand."""
    asked: list[str] = []
    if status in machine.finals:
        return ("refused", "final"), asked
    path, matching = [status], [n for n, t in enumerate(machine.transitions) if event in t.events and status in t.froms]
    while True:
        found = None
        for n in matching:
            if machine.transitions[n].conditions:
                asked.append(f"if{n}")
                if not answers.get(("if", n), False):
                    continue
            found = n
            break
        if found is None:
            break
        if len(path) > 100:
            return "cycle", asked
        asked.append(f"do{found}")
        if answers.get(("do", found)) is not None:
            if not machine.fails_rejected:
                return ("refused", "rejected"), asked
            if path[-1] != machine.failed:
                asked.append(f"{path[-1]}>{machine.failed}")
                path.append(str(machine.failed))
            return tuple(path), asked
        path.append(machine.transitions[found].to)
        asked.append(f"{path[-2]}>{path[-1]}")
        here = path[-1]
        rests = here in machine.idles or here in machine.finals or here == machine.failed
        matching = [] if rests else [
            n for n, t in enumerate(machine.transitions) if here in t.froms and t.to != machine.failed
        ]  # fmt: skip
    if len(path) > 1:
        return tuple(path), asked
    if machine.has_fallback:
        return "kept", [*asked, "fallback"]
    return ("refused", "unmet" if any(event in t.events and status in t.froms for t in machine.transitions) else
            "no_transition"), asked  # fmt: skip


def plain(end: Any) -> Any:
    if isinstance(end, Moved):
        return end.path
    return ("refused", end.code) if isinstance(end, RefusedEvent) else end if end == "cycle" else "kept"


@st.composite
def machines(draw: Any) -> Machine:
    names = st.sampled_from(NAMES)
    transitions = draw(
        st.lists(
            st.builds(
                lambda event, from_, to, has: Transition(event, from_, to, [hold] if has else ()),
                st.lists(st.sampled_from(EVENTS), min_size=1, max_size=2, unique=True),
                st.lists(names, min_size=1, max_size=3, unique=True),
                names,
                st.booleans(),
            ),
            min_size=1,
            max_size=7,
        )
    )
    idles = frozenset(draw(st.sets(names)))
    finals = frozenset(draw(st.sets(names))) - idles
    failed = draw(st.one_of(st.none(), names))
    return Machine(
        "a", idles, finals, failed, tuple(transitions), tuple(EVENTS), tuple(NAMES), draw(st.booleans()),
        failed is not None and draw(st.booleans()),
    )  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(machines(), st.sampled_from(NAMES), st.sampled_from(EVENTS), st.data())
def test_it_does_what_a_plain_interpreter_does(machine: Machine, status: str, event: str, data: Any) -> None:
    answers: dict[tuple[str, int], Any] = {}
    for n in range(len(machine.transitions)):
        answers["if", n] = data.draw(st.booleans())
        answers["do", n] = data.draw(st.sampled_from([None, None, None, "no"]))
    end, asked = drive(machine, status, event, answers)
    expected, expected_asked = interpret(machine, status, event, answers)
    assert (plain(end), asked) == (expected, expected_asked)
    assert drive(machine, status, event, answers) == (end, asked), "the same answers give the same path"


def make(*transitions: Transition, **states: Any) -> Machine:
    return build_machine("order", States("new", **states), transitions)


@pytest.mark.parametrize(
    ("transitions", "states", "message"),
    [
        ([("go", "new", "old")], {"idles": ["newer"]}, "states.idles names 'newer', .*did you mean 'new'"),
        ([("go", "new", "old")], {"finals": ["odl"]}, "states.finals names 'odl', .*did you mean 'old'"),
        ([("go", "new", "old"), ("x", "olt", "new")], {}, "'olt' cannot be reached from 'new'; did you mean 'old'"),
        ([("go", "new", "old"), ("x", "old", "new")], {"finals": ["old"]}, "'old' is final, but x: old → new"),
        ([("go", "new", "b"), ("x", "b", "c"), ("y", "c", "b")], {"idles": ["new"]}, "never rest: b → c → b"),
        ([("go", "new", "")], {}, "needs from_ and to, got go: new → ?"),
        ([("go", "new", "odl"), ("x", "new", "old")], {"finals": ["old"]}, "out of state 'odl', .*did you mean 'old'"),
        ([("go", "new", "b")], {"idles": ["new"]}, "out of state 'b', .*add it to states.finals"),
        ([], {}, "no transitions"),
        ([("go", "new", "old")], {"idles": ["old"], "finals": ["old"]}, "both in states.idles and in states.finals"),
    ],
)
def test_a_wrong_definition_is_refused(transitions: Any, states: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        make(*(Transition(*one) for one in transitions), **states)


def test_a_cycle_at_run_time_is_named() -> None:
    machine = make(
        Transition("go", "new", "b"),
        Transition("x", "b", "c", [hold]),
        Transition("y", "c", "b"),
        idles=["new"],
    )
    with pytest.raises(EntityCycle, match=r"(c → b → c)|(b → c → b)"):
        follow_all(machine)


def follow_all(machine: Machine) -> None:
    """Let every condition hold."""
    steps = transit(machine, "new", "go")
    question = next(steps)
    while True:
        question = steps.send(True if isinstance(question, AskCondition) else None)
