"""Which values can be stored, so that every store and language reads the same value."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import NotJSON, PayloadError, PayloadTooDeep, PayloadTooLarge
from penstock.core.payload import MAX_DEPTH, MAX_INTEGER, MAX_PAYLOAD_BYTES, pack, parse_json, to_plain, unpack

text = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


class Colour(Enum):
    RED = "red"
    MIXED = ("red", 1)


class Size(StrEnum):
    LARGE = "large"


class Rank(IntEnum):
    FIRST = 1


class Text(str):
    __slots__ = ()


@dataclasses.dataclass
class Address:
    street: str
    tags: set[str]


class Line(msgspec.Struct, rename="camel"):
    unit_price: float
    sold_at: datetime | None = None
    extra: Any = None


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    order_id: int = pydantic.Field(alias="orderId")
    placed: datetime | None = None
    anything: Any = None


Point = namedtuple("Point", "x y")

JULY = datetime(2026, 7, 1, tzinfo=UTC)
LINE = {"unitPrice": 1, "soldAt": None, "extra": None}
ORDER = {"orderId": 7, "placed": None, "anything": None}
ADDRESS = {"street": "Main", "tags": []}


def nested(depth: int, inner: Any = None) -> Any:
    value: Any = inner
    for n in range(depth):
        value = [value] if n % 2 else {"a": value}
    return value


@given(values)
def test_any_json_value_round_trips(value: Any) -> None:
    assert unpack(pack(value)) == value
    assert json.loads(pack(value)) == value
    assert parse_json(pack(value)) == value
    assert parse_json(pack(value).decode()) == value
    assert pack(unpack(pack(value))) == pack(value)


@given(values)
def test_python_and_strict_readers_agree_on_types(value: Any) -> None:
    def shape(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: shape(inner) for key, inner in item.items()}
        return [shape(inner) for inner in item] if isinstance(item, list) else type(item)

    assert shape(unpack(pack(value))) == shape(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, 2), [1, 2]),
        (Point(1, 2), [1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (Colour.RED, "red"),
        (Colour.MIXED, ["red", 1]),
        (Size.LARGE, "large"),
        (Rank.FIRST, 1),
        (Text("x"), "x"),
        ({Size.LARGE: Rank.FIRST}, {"large": 1}),
        ({Text("k"): 1}, {"k": 1}),
        (datetime(2026, 7, 1, 12, tzinfo=UTC), "2026-07-01T12:00:00+00:00"),
        (date(2026, 7, 1), "2026-07-01"),
        (time(12, 30), "12:30:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Address("Main", {"b", "a"}), {"street": "Main", "tags": ["a", "b"]}),
        (Address("Main", set()), ADDRESS),
        (Line(1), LINE),
        (Line(1, JULY), {**LINE, "soldAt": "2026-07-01T00:00:00Z"}),
        (Line(1, extra=Address("Main", set())), {**LINE, "extra": ADDRESS}),
        (Line(1, extra=[Order(orderId=7)]), {**LINE, "extra": [ORDER]}),
        (Order(orderId=7), ORDER),
        (Order(orderId=7, placed=JULY), {**ORDER, "placed": "2026-07-01T00:00:00Z"}),
        ([Address("Main", set()), Line(1), Order(orderId=7)], [ADDRESS, LINE, ORDER]),
    ],
)  # fmt: skip
def test_values_with_a_json_form(value: Any, expected: Any) -> None:
    assert to_plain(value) == expected
    assert unpack(pack(value)) == expected


class Odd:
    pass


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (float("nan"), "payload is nan"),
        ({"a": [1, float("inf")]}, r"payload\.a\[1\] is inf"),
        (-float("inf"), "payload is -inf"),
        (2**53, "beyond 2"),
        (-(2**53), "beyond 2"),
        ({"a": 10**30}, r"payload\.a is 1000"),
        ("\ud800", "lone surrogate"),
        (["ok", "x\udfffy"], r"payload\[1\] contains a lone surrogate"),
        ({"\ud800": 1}, "lone surrogate"),
        ({1: "a"}, "the key 1 of type int"),
        ({"a": {None: "a"}}, r"payload\.a has the key None"),
        ({(1, 2): "a"}, "of type tuple"),
        (b"bytes", "payload cannot be converted to JSON: it is an instance of the class 'bytes'"),
        ({"a": Odd()}, r"payload\.a cannot be converted to JSON: it is an instance of the class 'Odd'"),
        (Odd, "payload cannot be converted to JSON: it is an instance of the class 'type'"),
        (Order, "payload cannot be converted to JSON: it is an instance of the class 'ModelMetaclass'"),
        (Address, "payload cannot be converted to JSON: it is an instance of the class 'type'"),
        (Decimal("1.5"), "payload cannot be converted to JSON: it is an instance of the class 'Decimal'"),
        (1j, "payload cannot be converted to JSON: it is an instance of the class 'complex'"),
        (iter([1]), "cannot be converted to JSON"),
        (print, "cannot be converted to JSON"),
        ({1, "a", Odd()}, "cannot be converted to JSON: it is an instance of the class 'Odd'"),
        (Address("x", {"\ud800"}), r"payload\.tags\[0\] contains"),
        (Line(float("nan")), r"payload\.unitPrice is nan"),
        (Line(1, extra=Odd()), "cannot be converted to JSON: it is an instance of the class 'Odd'"),
        (Line(1, extra={"a": 2**60}), r"payload\.extra\.a is"),
        (Order(orderId=1, anything=Odd()), "Odd"),
        (Order(orderId=2**60), r"payload\.orderId is"),
    ],
)  # fmt: skip
def test_values_without_a_json_form_are_refused_with_their_path(value: Any, where: str) -> None:
    with pytest.raises(NotJSON, match=where):
        pack(value)


@pytest.mark.parametrize("value", [MAX_INTEGER, -MAX_INTEGER, 0, -0.0, 5e-324, 1.7976931348623157e308, 1e16, 0.1])
def test_extreme_numbers_round_trip(value: float) -> None:
    assert repr(unpack(pack(value))) == repr(value)


def test_maximum_depth() -> None:
    assert unpack(pack(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(PayloadTooDeep, match="deeper than 64"):
        pack(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize("leaf", [Size.LARGE, Rank.FIRST, Text("x"), date(2026, 7, 1), UUID(int=1)])
def test_scalars_do_not_count_as_depth(leaf: Any) -> None:
    assert pack(nested(MAX_DEPTH, leaf)) == pack(nested(MAX_DEPTH, to_plain(leaf)))


def test_depth_of_models() -> None:
    assert pack(nested(MAX_DEPTH - 1, Line(1)))
    for model in (Line(1), Address("x", set()), Order(orderId=1), MappingProxyType({}), Point(1, 2), {1}):
        with pytest.raises(PayloadTooDeep):
            pack(nested(MAX_DEPTH, model))


def test_a_recursive_value_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(PayloadTooDeep):
        pack(loop)


@pytest.mark.spec("001-1.14")
def test_maximum_size() -> None:
    fits = "x" * (MAX_PAYLOAD_BYTES - 2)
    assert len(pack(fits)) == MAX_PAYLOAD_BYTES
    assert parse_json(pack(fits)) == fits
    for problem in (
        lambda: pack(fits + "x"),
        lambda: parse_json(b'"%bx"' % fits.encode()),
        lambda: parse_json(f'"{fits}x"'),
    ):
        with pytest.raises(PayloadTooLarge, match=r"65,537 bytes; the limit is 65,536"):
            problem()


def test_size_is_counted_in_bytes() -> None:
    fits = "é" * ((MAX_PAYLOAD_BYTES - 2) // 2)
    assert len(pack(fits)) == MAX_PAYLOAD_BYTES
    with pytest.raises(PayloadTooLarge):
        pack(fits + "é")
    with pytest.raises(PayloadTooLarge):
        parse_json(f'"{fits}é"')


def test_custom_limit_and_name() -> None:
    assert pack("abc", limit=5) == b'"abc"'
    with pytest.raises(PayloadTooLarge, match="the result is 6 bytes; the limit is 5"):
        pack("abcd", "the result", limit=5)
    with pytest.raises(NotJSON, match="'a' in the result is nan"):
        pack({"a": float("nan")}, "the result")


@pytest.mark.parametrize(
    "document",
    [
        "NaN", "[Infinity]", '{"a":-Infinity}', "1e400", "-1e400",
        '{"a":1,"a":2}', '{"a":1,"\\u0061":2}', '[{"b":{"x":1,"x":1}}]',
        '"\\ud800"', '{"\\udfff":1}', '"\\ud800\\ud800"',
        "9007199254740992", "-9007199254740992", "[1" + "0" * 5000 + "]",
        "", " ", "{", "[1,]", '{"a":}', "{'a':1}", "nul", "01", "+1", "1.", ".5", "0x1", '"\t"', '"a', "[1] 2",
        "// x\n1",
        b"\xff", b'"\xff"', b'"\xed\xa0\x80"', b"\xef\xbb\xbf1", "\ufeff1", '"\ud800"',
        '{"a":1}'.encode("utf-16"), "1".encode("utf-32"),
    ],
)  # fmt: skip
def test_invalid_json_is_refused(document: str | bytes) -> None:
    with pytest.raises(NotJSON):
        parse_json(document)


@pytest.mark.parametrize(
    ("document", "value"),
    [
        ("null", None), (" [1, 2.0, true] ", [1, 2.0, True]),
        ('{"a":{"a":1},"b":[{"a":2}]}', {"a": {"a": 1}, "b": [{"a": 2}]}),
        ('"\\ud83e\\uddea"', "\U0001f9ea"), ("\"\U0001f9ea\"".encode(), "\U0001f9ea"), ('"\\u0000"', "\x00"),
        ("9007199254740991", MAX_INTEGER), ("1e2", 100.0), ("-0", 0),
    ],
)  # fmt: skip
def test_valid_json_is_parsed(document: str | bytes, value: Any) -> None:
    assert parse_json(document) == value
    assert type(parse_json(document)) is type(value)


def test_maximum_depth_of_parsed_json() -> None:
    assert parse_json("[" * 64 + "]" * 64) == nested(0, json.loads("[" * 64 + "]" * 64))
    for deep in ("[" * 65 + "]" * 65, '{"a":' * 65 + "1" + "}" * 65, "[" * 60_000):
        with pytest.raises(PayloadTooDeep):
            parse_json(deep)
        with pytest.raises(PayloadTooDeep):
            parse_json(deep.encode())


@given(st.lists(st.sampled_from(['"', "\\", "[", "]", "{", "}", "a"]), max_size=80).map("".join))
def test_brackets_inside_strings_do_not_count_as_depth(content: str) -> None:
    document = json.dumps([content] * 3)
    assert parse_json(document) == [content] * 3


@given(st.binary(max_size=40) | st.text(max_size=40))
def test_any_input_is_parsed_or_refused(document: str | bytes) -> None:
    try:
        value = parse_json(document)
    except PayloadError:
        return
    assert unpack(pack(value)) == value


def test_a_set_is_encoded_the_same_in_every_process() -> None:
    # The order of a set of strings differs from process to process, and payloads are compared by their digest.
    code = "from penstock.core.payload import pack; print(pack({'a','b','c','d','e'}), pack({1,'1',None}))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
