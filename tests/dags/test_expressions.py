"""Expressions in the config of nodes: a small language that reads JSON and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ExpressionError
from penstock.dags.expressions import Expression, Template

SCOPE: dict[str, Any] = {
    "input": {"amount": 1200, "tags": ["a", "b"], "name": " Eve ", "odd-key": 1, "none": None},
    "nodes": {"fetch": {"data": {"id": 7, "ok": True}}},
    "run": {"id": "r1"},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("input.amount", 1200),
        ("nodes.fetch.data.id", 7),
        ("run.id", "r1"),
        ("input.tags[0]", "a"),
        ("input.tags[-1]", "b"),
        ('input["odd-key"]', 1),
        ("input.amount > 1000", True),
        ("input.amount <= 1000 or nodes.fetch.data.ok", True),
        ("not (input.amount == 1200 and input.tags[0] != 'a')", True),
        ("input.gone | default('x')", "x"),
        ("input.none | default(0)", 0),
        ("input.tags | length", 2),
        ("input.name | trim | upper", "EVE"),
        ("input.tags | first", "a"),
        ("input.tags | json", '["a","b"]'),
        ("nodes.fetch.data | keys", ["id", "ok"]),
        ("-1.5", -1.5),
        ('"it\'s"', "it's"),
        ("null", None),
    ],
)
def test_values(text: str, expected: Any) -> None:
    assert Expression(text).evaluate(SCOPE) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected a value, but it ends"),
        ("input.amount >", "expected a value, but it ends"),
        ("input amount", "expected an operator or the end, but got 'amount'"),
        ("inptu.amount", "unknown name 'inptu'; did you mean 'input'?"),
        ("__import__('os')", "unknown name '__import__'; a path starts with input, nodes, run"),
        ("input.tags | lenght", "no filter 'lenght'; did you mean 'length'?"),
        ("nodes.fetch.id", "the data of a node is `nodes.<id>.data`"),
        ("input.amount + 1", "unexpected character '+'"),
        ("input.tags[0", "expected ']', but it ends"),
        ("input[", "expected an index or a quoted key"),
    ],
)
def test_a_text_that_is_no_expression(text: str, expected: str) -> None:
    with pytest.raises(ExpressionError) as failure:
        Expression(text)
    assert expected in str(failure.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("input.amuont", "{{ input.amuont }}: input has no 'amuont'; did you mean 'amount'? Use `| default(value)`"),
        ("input.tags[5]", "input.tags is a list of 2 items; it has no item 5; use"),
        ("input.name.first", "input.name is ' Eve ', which has no 'first'"),
        ("input.name.__class__", "which has no '__class__'"),
        ("input.amount | upper", "the filter 'upper' needs a text, got 1200"),
        ("input.amount < input.name", "not supported between"),
    ],
)
def test_an_expression_without_a_value(text: str, expected: str) -> None:
    with pytest.raises(ExpressionError) as failure:
        Expression(text).evaluate(SCOPE)
    assert expected in str(failure.value)


def test_a_template_keeps_types_and_fills_texts() -> None:
    template = Template({"a": "{{ input.amount }}", "b": ["x {{ run.id }} {{ input.tags }}", 1], "c": "plain"})
    assert template.render(SCOPE) == {"a": 1200, "b": ['x r1 ["a","b"]', 1], "c": "plain"}
    assert (template.nodes, template.reads_input, template.is_constant) == (set(), True, False)
    assert Template({"a": 1}).is_constant
    with pytest.raises(ExpressionError, match=r"has '\{\{' without '\}\}'"):
        Template("{{ input.amount")


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_an_expression_error(text: str) -> None:
    try:
        Expression(text).evaluate(SCOPE)
    except ExpressionError:
        pass


def test_nesting_is_bounded() -> None:
    with pytest.raises(ExpressionError, match="at most 1000 characters"):
        Expression("(" * 2000 + "1" + ")" * 2000)
    with pytest.raises(ExpressionError, match="at most 20 parentheses"):
        Expression("(" * 400 + "1" + ")" * 400)
    assert Expression("(" * 20 + "1" + ")" * 20).evaluate(SCOPE) == 1
    assert Expression("not " * 240 + "true").evaluate(SCOPE) is True
    assert Expression(" or ".join(["false"] * 100)).evaluate(SCOPE) is False
