"""JSON containment, as used by waits and subscriptions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.json_match import MAX_LEAVES, contains, index_key, index_keys

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
def test_containment_is_transitive(a: Any, b: Any, c: Any) -> None:
    if contains(a, b) and contains(b, c):
        assert contains(a, c)


numbers = st.integers(-3, 3) | st.sampled_from([0.0, -0.0, 1.0, 2.5, 1e300, -1e19, 2.0**53])
events = st.dictionaries(st.text("ab", max_size=2), values | numbers, max_size=4)


@given(events, events)
def test_a_pattern_that_an_event_contains_is_indexed_by_one_of_its_keys(event: Any, pattern: Any) -> None:
    keys = index_keys(event)
    assert keys is not None
    if contains(event, pattern):
        assert index_key(pattern) in keys


@given(events, st.data())
def test_a_part_of_an_event_is_found_by_its_keys(event: Any, data: st.DataObject) -> None:
    part = {key: event[key] for key in event if data.draw(st.booleans())}
    assert contains(event, part)
    assert index_key(part) in (index_keys(event) or [])


@pytest.mark.parametrize(("one", "other"), [(7, 7.0), (0, -0.0), (10**15, 1e15)])
def test_equal_numbers_have_one_key(one: Any, other: Any) -> None:
    assert index_key({"a": one}) == index_key({"a": other})


def test_an_event_with_too_many_scalars_is_compared_with_all_waits() -> None:
    assert index_keys({str(n): n for n in range(MAX_LEAVES + 1)}) is None
    assert index_keys(None) == sorted({"any", index_key(None)})


def naive(value: Any, pattern: Any) -> bool:
    """Containment as it is defined, without any limit."""
    if isinstance(pattern, dict):
        return isinstance(value, dict) and all(k in value and naive(value[k], v) for k, v in pattern.items())
    if isinstance(pattern, list):
        return isinstance(value, list) and all(any(naive(item, wanted) for item in value) for wanted in pattern)
    return isinstance(value, bool) is isinstance(pattern, bool) and value == pattern


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 0.5, "", "a", "1"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=12,
)


@given(JSON, JSON)
def test_scalars_that_are_looked_up_match_as_if_they_were_compared(value: Any, pattern: Any) -> None:
    assert contains(value, pattern) == naive(value, pattern)
    assert contains([value, 1, {"a": value}], [value, {"a": value}])


def test_a_match_that_takes_too_long_is_none(caplog: pytest.LogCaptureFixture) -> None:
    many = [{"n": n} for n in range(4_000)]
    assert contains(many[:300], many[200:300])
    assert not contains(many, many)
    assert "no match: more than 200000 comparisons" in caplog.text
    assert contains(list(range(30_000)), list(range(30_000)))
