"""Ids that every store and BullMQ can hold."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import (
    MAX_ID_CHARS,
    BadId,
    check_id,
    check_name,
    dead_letter_id,
    digest,
    event_id,
    event_seq,
    new_token,
    step_job_id,
    uuid7,
)
from penstock.core.text import shorten

ALLOWED = "abcXYZ019._-"


@pytest.mark.parametrize("value", ["a", "A.b_c-9", "1a", "1.5", "-", ".", "_", "0190a-7", "x" * MAX_ID_CHARS])
def test_valid_ids(value: str) -> None:
    assert check_id(value) == value


@pytest.mark.parametrize(
    "value",
    [
        "",
        "1",
        "0042",
        "a:b",
        "a b",
        "a/b",
        "é",
        "a\n",
        "\na",
        "a\x00",
        "a*",
        "x" * (MAX_ID_CHARS + 1),
        "٣",
        "²a",
        None,
        7,
        b"a",
    ],
)
def test_invalid_ids_are_refused(value: Any) -> None:
    with pytest.raises(BadId, match="invalid run id") as problem:
        check_id(value, "run id")
    assert shorten(value) in str(problem.value)
    assert problem.value.code == "bad_id"


@pytest.mark.parametrize("value", ["a", "charge", "v1.charge", "_x", "-x", "1st", "x" * 100])
def test_valid_names(value: str) -> None:
    assert check_name(value, "queue") == value


@pytest.mark.parametrize("value", ["", ".hidden", "12", "a:b", "a b", "x" * 101, None, 3])
def test_invalid_names_are_refused(value: Any) -> None:
    with pytest.raises(BadId, match="invalid queue"):
        check_name(value, "queue")


@given(st.text(ALLOWED, min_size=1, max_size=MAX_ID_CHARS))
def test_allowed_characters_make_an_id_unless_all_are_digits(value: str) -> None:
    if value.isdigit():
        with pytest.raises(BadId):
            check_id(value)
    else:
        assert check_id(value) == value


@given(st.text(max_size=20))
def test_any_text_is_a_valid_id_or_refused(value: str) -> None:
    try:
        check_id(value)
    except BadId:
        return
    assert re.fullmatch(r"[A-Za-z0-9._-]+", value)
    assert ":" not in value
    assert not value.isdigit()


@given(st.integers(0, 2**48 - 1))
def test_uuid7_is_a_valid_uuid_with_the_time(now: int) -> None:
    value = uuid7(now)
    parsed = uuid.UUID(value)
    assert str(parsed) == value
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == now
    assert check_id(value) == value


@given(st.integers(0, 2**48 - 2))
def test_uuid7_sorts_by_time(now: int) -> None:
    assert uuid7(now) < uuid7(now + 1)


def test_generated_ids_are_unique() -> None:
    assert len({uuid7(1_700_000_000_000) for _ in range(20_000)}) == 20_000
    assert len({new_token() for _ in range(20_000)}) == 20_000


def test_derived_ids_are_valid() -> None:
    assert step_job_id("r-1", "charge", 2) == "r-1.charge.2"
    assert dead_letter_id("r-1.charge.2") == "r-1.charge.2.dlq"
    assert check_id(dead_letter_id(step_job_id("r-1", "charge", 2)))


def test_a_digest_is_stable() -> None:
    assert digest(b"") == "e3b0c44298fc1c149afbf4c8996fb924"
    assert digest(b"a") != digest(b"b")


@given(st.integers(0, 2**48), st.integers(0, 2**53))
def test_the_sequence_of_an_event_id(ms: int, seq: int) -> None:
    assert event_seq(event_id(ms, seq)) == seq


@pytest.mark.parametrize(
    "cursor", ["", "-", "7", "7-", "-7", "a-7", "7-a", "7-7-7", "7--7", " 7-7", "7-7\n", "7-²", "٣-٣", "7-" + "9" * 30]
)
def test_invalid_cursors_are_refused(cursor: str) -> None:
    with pytest.raises(BadId, match="invalid event id"):
        event_seq(cursor)


@given(st.text(max_size=10))
def test_any_text_is_a_cursor_or_refused(cursor: str) -> None:
    try:
        assert 0 <= event_seq(cursor) < 2**63
    except BadId:
        pass
