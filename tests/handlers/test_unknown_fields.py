"""A field of an input that its dataclass does not have is refused, unless the handler or the setting ignores it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock import flow, job
from penstock.errors import SchemaViolation


@dataclass
class Address:
    city: str = "Ulm"


@dataclass
class Greeting:
    lang: str = "en"
    address: Address | None = None
    others: list[Address] = field(default_factory=list)
    by_name: dict[str, Address] = field(default_factory=dict)


@flow("greet")
async def greet(input: Greeting) -> str:
    return input.lang


@flow("lenient", unknown_fields="ignore")
async def lenient(input: Greeting) -> str:
    return input.lang


@flow("strict", unknown_fields="refuse")
async def strict(input: Greeting) -> str:
    return input.lang


@job(name="say", queue="says")
async def say(input: Greeting) -> str:
    return input.lang


async def test_a_misspelled_field_is_refused_with_the_near_match(app: Any) -> None:
    async with app(greet, say) as a:
        with pytest.raises(
            SchemaViolation, match=r"the input of flow 'greet' has an unknown field 'langg'; did you mean 'lang'\?"
        ):
            await a.start("greet", {"langg": "de"})
        with pytest.raises(SchemaViolation, match="unknown_fields='ignore'"):
            await a.enqueue("says", {"langg": "de"}, name="say")
        assert await a.runs.list() == []


@pytest.mark.parametrize(
    ("input", "place"),
    [
        ({"address": {"ciyt": "Ulm"}}, "address"),
        ({"others": [{}, {"ciyt": "Ulm"}]}, "others.1"),
        ({"by_name": {"ada": {"ciyt": "Ulm"}}}, "by_name.ada"),
    ],
)
async def test_nested_fields(memory: Any, input: dict[str, Any], place: str) -> None:
    async with memory(greet) as a:
        with pytest.raises(SchemaViolation, match=f"has an unknown field 'ciyt' at {place}; did you mean 'city'"):
            await a.start("greet", input)


async def test_a_handler_can_ignore_them(app: Any) -> None:
    async with app(lenient) as a, a.workers.background():
        assert await a.run_for_result("lenient", {"langg": "de"}) == "en"


async def test_a_setting_ignores_them(app: Any) -> None:
    async with app(greet, say, strict, unknown_fields="ignore") as a, a.workers.background():
        assert await a.run_for_result("greet", {"langg": "de"}) == "en"
        assert await a.jobs.result(await a.enqueue(say, {"langg": "de"}), timeout=20) == "en"
        with pytest.raises(SchemaViolation):
            await a.start("strict", {"langg": "de"})
