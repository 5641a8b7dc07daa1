"""The envelope of an event, and the names of streams."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import PenstockError
from penstock.core.events import (
    STREAM_TYPES,
    BadStream,
    Event,
    EventBody,
    Streams,
    decode_event,
    encode_body,
    encode_event,
    strip_event,
)
from penstock.core.payload import pack

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@pytest.mark.spec("000-7.1", "001-1.3", "001-6.5", "003-2.1")
def test_an_encoded_event() -> None:
    body = EventBody("order.paid", "order/7", "shop", "charge", None, "c-1", msgspec.Raw(b'{"sum":7}'), {"attempt": 1})
    event = decode_event("nq:entity:7", 3, 1_700_000_000_123, encode_body(body))
    assert json.loads(encode_event(event)) == {
        "id": "1700000000123-3",
        "ts": "2023-11-14T22:13:20.123Z",
        "kind": "order.paid",
        "subject": "order/7",
        "flow": "shop",
        "step": "charge",
        "correlationId": "c-1",
        "data": {"sum": 7},
        "meta": {"attempt": 1},
    }
    assert event.seq == 3


def test_absent_fields_are_omitted() -> None:
    assert encode_body(EventBody("a", "b")) == b'{"kind":"a","subject":"b"}'
    assert encode_event(Event("1-1", "t", "a", "b")) == b'{"id":"1-1","ts":"t","kind":"a","subject":"b"}'


def test_data_is_stored_byte_for_byte() -> None:
    raw = b'{ "a" : [] , "n":9007199254740991, "f":1.0 }'
    assert raw in encode_body(EventBody("a", "b", data=msgspec.Raw(raw)))


@pytest.mark.spec("001-6.5", "003-2.1")
@given(words, words, st.none() | words, st.none() | words, json_values, st.integers(0, 2**53), st.integers(0, 2**45))
def test_an_event_round_trips(
    kind: str, subject: str, step: str | None, correlation: str | None, data: Any, seq: int, ms: int
) -> None:
    body = EventBody(kind, subject, step=step, correlation_id=correlation, data=msgspec.Raw(pack(data)))
    event = decode_event("nq:entity:7", seq, ms, encode_body(body))
    assert (event.kind, event.subject, event.step, event.correlation_id) == (kind, subject, step, correlation)
    assert event.data == data
    assert event.id == f"{ms}-{seq}"
    assert event.seq == seq
    assert msgspec.json.decode(encode_event(event), type=Event) == event


@pytest.mark.parametrize(
    ("stream", "subject", "flow", "correlation"),
    [
        ("nq:flow:r-1", "r-1", "r-1", "r-1"),
        ("nq:queue:orders", "orders", None, "orders"),
        ("nq:entity:order-7", "order-7", None, None),
        ("nq:global", "global", None, None),
    ],
)
def test_fields_of_the_stream_name_are_filled_in(
    stream: str, subject: str, flow: str | None, correlation: str | None
) -> None:
    event = decode_event(stream, 1, 0, encode_body(EventBody("a")))
    assert (event.subject, event.flow, event.correlation_id) == (subject, flow, correlation)
    event = decode_event(stream, 1, 0, encode_body(EventBody("a", "s", "f", correlation_id="c")))
    assert (event.subject, event.flow, event.correlation_id) == ("s", "f", "c")


def test_an_event_is_immutable() -> None:
    with pytest.raises(AttributeError):
        Event("1-1", "t", "a", "b").kind = "c"  # type: ignore[misc]


@pytest.mark.spec("001-4.6", "003-3.1")
def test_stream_names() -> None:
    streams = Streams("shop")
    assert streams.flow("r-1") == "shop:flow:r-1"
    assert streams.queue("orders") == "shop:queue:orders"
    assert streams.stream_name("entity", "order-7") == "shop:entity:order-7"
    assert streams.global_stream == "shop:global"
    assert Streams().flow("r") == "nq:flow:r"


@pytest.mark.parametrize("name", ["nq:global", *(f"nq:{type_}:x" for type_ in STREAM_TYPES)])
def test_valid_streams(name: str) -> None:
    assert Streams().check(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "nq", "nq:", "nq:flow", "nq:flow:", "nq:other:x", "shop:flow:x", "nq:flow:a:b", "flow:x", "shop:global"],
)
def test_invalid_streams_are_refused(name: str) -> None:
    with pytest.raises(BadStream, match="nq:<type>:<id>") as problem:
        Streams().check(name)
    assert isinstance(problem.value, PenstockError)
    assert problem.value.code == "bad_stream"


@pytest.mark.parametrize("stream", ["nq:flow:a", "nq:queue:a", "nq:countdown:a", "nq:trigger:a", "nq:global"])
@pytest.mark.parametrize("subject", [None, "a", "b"])
@pytest.mark.parametrize("flow", [None, "a", "b"])
@pytest.mark.parametrize("correlation_id", [None, "a", "b", "global"])
def test_a_stripped_event_is_read_as_it_was(
    stream: str, subject: str | None, flow: str | None, correlation_id: str | None
) -> None:
    body = EventBody("paid", subject, flow, "s", None, correlation_id, msgspec.Raw(b'{"by":1}'), {"n": 2})
    event = decode_event(stream, 7, 1000, encode_body(body))
    stripped = strip_event(stream, event)
    assert decode_event(stream, 7, 1000, encode_body(stripped)) == event
    assert stripped.subject != stream.rpartition(":")[2]  # the stream implies it


@pytest.mark.parametrize("kind", ["countdown", "dag"])
def test_streams_of_further_kinds_of_runs(kind: str) -> None:
    streams = Streams()
    with pytest.raises(BadStream, match="one of flow, trigger, webhook, entity, queue, audit; got"):
        streams.check(f"nq:{kind}:x")
    streams.add_types([kind, "flow"])
    assert streams.check(f"nq:{kind}:x") == streams.run(kind, "x")
    with pytest.raises(BadStream, match=f"one of flow, trigger, webhook, entity, queue, audit, {kind}; got"):
        streams.check("nq:other:x")
