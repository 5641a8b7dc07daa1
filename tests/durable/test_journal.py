"""The journal: which changes of durable calls a replay accepts, and which it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import DuplicateName, HistoryLimit, NonDeterminism, NotJSON
from penstock.durable import journal
from penstock.durable.journal import FIRED, Journal
from penstock.handlers.fingerprint import compute_fingerprint


def fresh(before: Journal | None = None, code: str = "") -> Journal:
    """Return a journal with the records of an earlier one."""
    memos = {memo.name: memo.value for memo in before.writes.memos} if before is not None else {}
    return Journal(memos, "r.charge.1", "step 'charge' of run r", lambda: code)


def recorded(*names: str, kind: str = "run", code: str = "") -> Journal:
    first = fresh(code=code)
    for name in names:
        first.record(first.next_call_by_order(name, kind), name)
    return fresh(first, code)


def calls(journal: Journal, *names: str, kind: str = "run") -> list[bool]:
    """Make calls. Return for each whether it was recorded."""
    return [journal.next_call_by_order(name, kind).entry is not None for name in names]


def test_repeated_calls_are_found() -> None:
    assert calls(recorded("a", "b", "a"), "a", "b", "a", "a") == [True, True, True, False]


def test_calls_may_be_added_and_removed() -> None:
    assert calls(recorded("a", "b", "c"), "new", "a", "newer", "c", "newest") == [False, True, False, True, False]


def test_a_new_call_keeps_its_position() -> None:
    second = recorded("a", "b")
    for name in ("a", "between", "b"):
        call = second.next_call_by_order(name, "run")
        if call.entry is None:
            second.record(call, 1)
    memos = {**second.list_memos()}
    third = Journal(memos, "s", "it")
    assert calls(third, "a", "between", "b") == [True, True, True]
    with pytest.raises(
        NonDeterminism, match=r"made the durable call between#1 before b#1, but this attempt makes it after"
    ):
        calls(Journal(memos, "s", "it"), "b", "between")


def test_forty_calls_can_be_inserted_between_two() -> None:
    memos: dict[str, bytes] = {}
    names = ["first", "last"]
    for n in range(40):
        one = Journal(memos, "s", "it")
        for name in names:
            call = one.next_call_by_order(name, "run")
            if call.entry is None:
                one.record(call, 1)
        memos = one.list_memos()
        names.insert(1, f"n{n}")
    assert all(calls(Journal(memos, "s", "it"), *[name for name in names if name != "n39"]))


def test_a_recorded_name_with_another_kind_is_refused() -> None:
    with pytest.raises(
        NonDeterminism,
        match=r"step 'charge' of run r: the durable call a#1 was ctx.run when it was recorded, and now it is ctx.wait.time",
    ):
        recorded("a").next_call_by_order("a", "time")


def test_one_name_at_two_lines_is_refused() -> None:
    one = fresh()
    for _ in range(3):
        one.next_call("loop", "run")
    with pytest.raises(
        DuplicateName, match=r"'loop' is used for durable calls at .*test_journal.py:\d+ and at .*test_journal.py:\d+"
    ):
        one.next_call("loop", "run")
    assert isinstance(one.problem, DuplicateName)


@pytest.mark.parametrize("name", ["", "a#1", "a!", "~a", "a:b", "x" * 101, 7, None])
def test_invalid_names_are_refused(name: Any) -> None:
    with pytest.raises(NonDeterminism, match=r"invalid name .* for a durable call"):
        fresh().next_call(name, "run")


def test_a_value_without_a_json_form_is_refused_with_its_path() -> None:
    one = fresh()
    with pytest.raises(NotJSON, match=r"'rows\[0\]' in .*the value of a#1"):
        one.record(one.next_call_by_order("a", "run"), {"rows": [object()]})
    assert not one.writes


@pytest.mark.parametrize(
    ("limit", "reached"),
    [
        (
            "MAX_CALLS",
            r"the durable call 'a#3' is over the limit: a step can make at most 2 durable calls, and this one has made them\.",
        ),
        (
            "MAX_JOURNAL_BYTES",
            r"the durable call 'a#2' is over the limit: a step can record at most 2 bytes, and this one has recorded \d+\.",
        ),
    ],
)
def test_history_limit_names_the_limit(monkeypatch: pytest.MonkeyPatch, limit: str, reached: str) -> None:
    monkeypatch.setattr(journal, limit, 2)
    one = fresh()
    for _ in range(2 if limit == "MAX_CALLS" else 1):
        one.record(one.next_call_by_order("a", "run"), 1)
    with pytest.raises(HistoryLimit, match=reached):
        one.next_call_by_order("a", "run")


def test_the_same_code_may_not_skip_a_recorded_wait() -> None:
    for kind in ("time", "event", FIRED):
        again = recorded("a", "b", kind=kind, code="v1")
        again.next_call_by_order("a", kind)
        with pytest.raises(NonDeterminism, match=r"waited at b#1 .* skipped that wait \(last durable call: a#1\)"):
            again.check_skipped_waits()


def test_changed_code_may_skip_waits_and_any_code_may_skip_calls() -> None:
    first = fresh(code="v1")
    first.record(first.next_call_by_order("b", "time"), 1)
    fresh(first, code="v2").check_skipped_waits()
    fresh(first, code="").check_skipped_waits()
    recorded("a", code="v1").check_skipped_waits()


def test_replaying_ends_after_the_last_recorded_call() -> None:
    again = recorded("a", "b")
    assert again.is_replaying
    calls(again, "a")
    assert again.is_replaying
    calls(again, "b")
    assert not again.is_replaying
    assert not fresh().is_replaying


def test_recorded_emits_are_skipped_on_replay() -> None:
    first = fresh()
    first.record_effects(2, 1, ["x", "y"], [], ["k"])
    again = fresh(first)
    assert [again.check_emit(0, "x"), again.check_emit(1, "y"), again.check_emit(2, "z")] == [True, True, False]
    with pytest.raises(NonDeterminism, match=r"an earlier attempt emitted 'x' as event 1, but this attempt emits 'y'"):
        again.check_emit(0, "y")


def _inner() -> int:
    return 1


def _outer() -> int:
    return _inner() + 1


def test_the_fingerprint_covers_the_function_and_what_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compute_fingerprint(_outer)
    assert before == compute_fingerprint(_outer) != compute_fingerprint(_inner) != ""
    monkeypatch.setitem(globals(), "_inner", lambda: 2)
    assert compute_fingerprint(_outer) != before
    assert compute_fingerprint(len) == ""
