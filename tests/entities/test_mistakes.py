"""Mistakes of callers: a state or a type that does not exist, a time as text."""

from __future__ import annotations

import pytest

from penstock import App
from penstock.app.arguments import check_choice
from penstock.core.errors import BadArgument, DefinitionError, UnknownEntity
from penstock.entities import States, Transition, entity


@entity("loan")
class Loan:
    states = States("open", idles=["open", "review"], finals=["approved"])
    transitions = [Transition("check", "open", "review"), Transition("approve", "review", "approved")]


def make_app() -> App:
    return App("sqlite://:memory:", handlers=[Loan])


async def test_waiting_for_a_state_that_the_type_does_not_have_is_refused() -> None:
    async with make_app() as app:
        await app.entities.create("loan:1")
        for urn in ("loan:1", "loan:2"):  # the second one does not exist yet
            with pytest.raises(
                BadArgument, match=r"type 'loan' have no state 'aproved'; did you mean 'approved'. states: "
            ):
                await app.entities.wait_for(urn, ["open", "aproved"] if urn == "loan:2" else "aproved", timeout=5)


async def test_lists_of_a_misspelled_type_or_state_are_refused() -> None:
    async with make_app() as app:
        with pytest.raises(BadArgument, match=r"no entity has the state 'reveiw'; did you mean 'review'"):
            await app.entities.list(status="reveiw")
        with pytest.raises(UnknownEntity, match=r"no entity of type 'lon' is defined here; did you mean 'loan'"):
            await app.entities.list(type="lon")
        assert await app.entities.list(type="invoice", status="x") == []  # other code may have it


async def test_an_entity_is_shown_as_it_was_at_a_time_as_text() -> None:
    async with make_app() as app:
        await app.entities.create("loan:1")
        view = await app.entities.get("loan:1")
        assert view.created_at is not None
        assert (await app.entities.get("loan:1", at=view.created_at)).status == "open"
        for wrong in ("2026-11-19T22:21:32", "2026-13-19T22:21:32Z"):
            with pytest.raises(BadArgument, match=r"at must be the id of an event or a time with its zone"):
                await app.entities.get("loan:1", at=wrong)


def test_a_transition_to_a_misspelled_final_state_is_named() -> None:
    with pytest.raises(DefinitionError, match=r"names 'z', .* goes to 'zz', .* did you mean 'zz' in states, or 'z' in"):

        @entity("t")
        class T:
            states = States("a", idles=["a"], finals=["z"])
            transitions = [Transition("go", "a", "zz")]


def test_a_poor_match_lists_the_valid_words() -> None:
    with pytest.raises(BadArgument, match=r"did you mean 'open'. It can be 'open' or 'half-open'"):
        check_choice("borken", ["open", "half-open"], "status")
    with pytest.raises(BadArgument, match=r"did you mean 'failed'.$"):
        check_choice("faild", ["failed", "completed"], "status")
