"""JSON containment, as waits and subscriptions ask for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.matching import contains

values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("value", "pattern", "found"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": None}, {"a": None}, True),
        ({}, {"a": None}, False),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, True),
        ([1, 2, 3], [3, 1], True),
        ([1, 2], [1, 1], True),
        ([1], [1, 2], False),
        ([{"a": 1, "b": 2}], [{"a": 1}], True),
        ([], [], True),
        (1, 1, True),
        (1, 1.0, True),
        (1, True, False),
        (True, 1, False),
        (0, False, False),
        ("1", 1, False),
        (None, None, True),
        (None, False, False),
        ({"a": 1}, [], False),
        ([], {}, False),
    ],
)
def test_containment(value: Any, pattern: Any, found: bool) -> None:
    assert contains(value, pattern) is found


@given(values)
def test_a_value_contains_itself(value: Any) -> None:
    assert contains(value, value)


@given(values, values, values)
def test_containment_passes_on(a: Any, b: Any, c: Any) -> None:
    if contains(a, b) and contains(b, c):
        assert contains(a, c)
