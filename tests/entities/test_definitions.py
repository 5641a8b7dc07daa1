"""Definitions of entities: classes, data, and mistakes in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import flow
from penstock.core.errors import BadArgument, DefinitionError
from penstock.core.ids import check_id
from penstock.entities import States, Transition, entity, make_entity, on_event, on_status_changed
from penstock.entities.urns import to_id

TEST_TIMEOUT_S = 20
STATES = States("new", idles=["new"], finals=["old"])
GO = [Transition("go", "new", "old")]


async def add(data: dict[str, Any], payload: Any) -> None:
    data["sum"] = data.get("sum", 0) + payload


DEFINITION = {
    "name": "tally",
    "states": {"initial": "open", "idles": ["open"], "finals": ["done"], "failed": "broken"},
    "transitions": [
        {"event": ["add", "plus"], "from": "open", "to": "open", "actions": ["add"], "conditions": ["is_number"]},
        {"event": "finish", "from": ["open"], "to": "done"},
    ],
    "hooks": [{"event": "add", "order": 1, "call": "note"}, {"from": "open", "to": "done", "call": "note"}],
    "options": {"retry": 2},
}


@pytest.mark.spec("002-4.6")
async def test_an_entity_may_be_data(app: Any) -> None:
    noted: list[Any] = []
    functions = {"add": add, "is_number": lambda _, payload: isinstance(payload, int), "note": noted.append}
    tally = make_entity(DEFINITION, functions)
    async with app(tally) as a, a.workers.background():
        await (await a.entities.emit("tally-1", "add", 3)).result(timeout=TEST_TIMEOUT_S)
        await (await a.entities.emit("tally-1", "plus", 4)).result(timeout=TEST_TIMEOUT_S)
        await (await a.entities.emit("tally-1", "finish")).result(timeout=TEST_TIMEOUT_S)
        assert (await a.entities.data("tally-1")) == {"sum": 7}
        assert len(noted) == 2


def test_a_definition_of_data_names_its_mistakes() -> None:
    with pytest.raises(DefinitionError, match="no function named 'is_number' was passed; did you mean 'is_numbr'"):
        make_entity(DEFINITION, {"add": add, "is_numbr": add})
    with pytest.raises(DefinitionError, match="unknown key 'stats'; did you mean 'states'"):
        make_entity({"name": "x", "stats": {}})


def test_a_hook_with_a_bad_signature_or_name_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"hook bad of entity 'x' must take \(entity, payload, ctx\)"):

        @entity("x")
        class TooMany:
            states, transitions = STATES, GO

            @on_event("go")
            def bad(self, a: Any, b: Any, c: Any) -> None: ...

    with pytest.raises(DefinitionError, match="names event 'goo'; did you mean 'go'"):

        @entity("x")
        class NoEvent:
            states, transitions = STATES, GO

            @on_event("goo")
            def hook(self) -> None: ...

    with pytest.raises(DefinitionError, match="names state 'odl'; did you mean 'old'"):

        @entity("x")
        class NoState:
            states, transitions = STATES, GO

            @on_status_changed(to="odl")
            def hook(self) -> None: ...

    with pytest.raises(DefinitionError, match="entity 'x' has no transitions"):

        @entity("x")
        class Empty:
            states = STATES


@pytest.mark.parametrize(
    ("wrong", "right"), [("transitons", "transitions"), ("fallbak", "fallback"), ("mesaging", "messaging")]
)
def test_a_misspelled_member_is_refused(wrong: str, right: str) -> None:
    cls = type("X", (), {"states": STATES, "transitions": GO, wrong: GO})
    with pytest.raises(DefinitionError, match=f"has a member '{wrong}', which means nothing; did you mean '{right}'"):
        entity("x")(cls)


def test_two_definitions_of_one_name_are_reported(memory: Any) -> None:
    @entity("x")
    class One:
        states, transitions = STATES, GO

    @entity("x")
    class Two:
        states, transitions = STATES, GO

    @flow("x")
    async def same() -> None: ...

    assert [one.code for one in memory(One, Two).registry.problems] == ["duplicate_entity"]
    assert [one.code for one in memory(One, same).registry.problems] == ["duplicate_entity"]


@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_two_urns_never_have_one_id(one: str, other: str) -> None:
    assert (to_id(one) == to_id(other)) == (one == other)
    check_id(to_id(one))


def test_a_urn_that_fits_is_its_id() -> None:
    assert to_id("order-7") == "order-7"
    assert to_id("urn:order:7") == "x.urn--order--7"
    assert to_id("7") == "x.7"
    assert to_id("x.7") == "x.x.7"
    assert len(to_id("ü" * 500)) < 50
    for wrong in ("", "x" * 501, 7, "\ud800"):
        with pytest.raises(BadArgument, match="a urn must be"):
            to_id(wrong)  # type: ignore[arg-type]
