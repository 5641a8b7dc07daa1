"""The Python reducers against the vectors that all languages share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import Event
from penstock.dags.reducer import reduce_dag
from penstock.entities.reducer import reduce_entity
from penstock.flows.reducer import apply_flow, reduce_flow, reduce_trigger
from penstock.jobs.reducer import reduce_job

HERE = Path(__file__).parent
LISTS = {"steps", "state", "emitted", "logs", "partials", "calls", "alsoAwaits", "unreadableEvents", "frames"}
LISTS |= {"waiting", "history", "payloads", "path"}
FILES = {"flow": reduce_flow, "trigger": reduce_trigger, "job": reduce_job, "dag": reduce_dag, "entity": reduce_entity}
VECTORS = [
    pytest.param(name, vector, id=f"{name}: {vector['name']}")
    for name in FILES
    for vector in json.loads((HERE / f"{name}.json").read_text("utf-8"))["vectors"]
]


def to_json(view: msgspec.Struct) -> dict[str, Any]:
    """Return a view as JSON, without empty fields."""
    whole = {f.encode_name: getattr(view, f.name) for f in msgspec.structs.fields(view)}
    return {
        name: _value_to_json(name, value)
        for name, value in whole.items()
        if not (value is None or (name in LISTS and not value))
    }


def _value_to_json(name: str, value: Any) -> Any:
    if name in ("steps", "calls"):
        return {key: to_json(step) for key, step in value.items()}
    if name == "history":
        return [to_json(one) for one in value]
    if name in ("emitted", "logs"):
        return [{key: item for key, item in entry.items() if item is not None} for entry in value]
    return value


def fold(name: str, vector: dict[str, Any], after: int) -> msgspec.Struct:
    events = [msgspec.convert(event, Event) for event in vector["events"][:after]]
    if name == "job":
        return reduce_job(events, vector.get("job"))
    reduce: Callable[[Any], msgspec.Struct] = FILES[name]
    return reduce(events)


@pytest.mark.spec("000-15.2", "001-1.16", "001-4.9", "003-5.1", "003-5.2", "003-5.3", "003-5.4", "003-15.1")
@pytest.mark.parametrize(("name", "vector"), VECTORS)
def test_a_vector(name: str, vector: dict[str, Any]) -> None:
    for expected in vector["states"]:
        assert to_json(fold(name, vector, expected["after"])) == expected["state"], f"after {expected['after']} events"
    assert vector["states"][-1]["after"] == len(vector["events"])


@pytest.mark.parametrize(("name", "vector"), VECTORS)
def test_every_prefix_of_a_vector_folds(name: str, vector: dict[str, Any]) -> None:
    for after in range(len(vector["events"]) + 1):
        msgspec.json.encode(fold(name, vector, after))


@pytest.mark.parametrize(("name", "vector"), VECTORS)
def test_the_events_of_a_vector_are_envelopes(name: str, vector: dict[str, Any]) -> None:
    """Ids are in order and there is nothing but the envelope, so other languages can read them."""
    known = {f.encode_name for f in msgspec.structs.fields(Event)}
    for seq, event in enumerate(vector["events"], 1):
        assert set(event) <= known
        assert event["id"].endswith(f"-{seq}")
        assert msgspec.to_builtins(msgspec.convert(event, Event)) == {k: v for k, v in event.items() if v is not None}


def test_folding_incrementally_equals_folding_at_once() -> None:
    for param in VECTORS:
        name, vector = param.values
        if name != "flow":
            continue
        events = [msgspec.convert(event, Event) for event in vector["events"]]
        view = reduce_flow([])
        for event in events:
            apply_flow(view, event)
        assert view == reduce_flow(events)


def test_a_fold_does_not_change_earlier_views() -> None:
    """Each view is new: a list shared by two views would show one run's logs in another."""
    events = [
        msgspec.convert(event, Event) for event in json.loads((HERE / "flow.json").read_text())["vectors"][2]["events"]
    ]
    before = msgspec.json.encode(reduce_flow(events))
    reduce_flow(events)
    assert reduce_flow([]).logs == []
    assert msgspec.json.encode(reduce_flow(events)) == before


@pytest.mark.parametrize(
    "vector", [one.values[1] for one in VECTORS if one.values[0] == "flow"], ids=lambda one: one["name"]
)
def test_the_reducer_of_dags_folds_runs_of_flows_the_same(vector: dict[str, Any]) -> None:
    events = [msgspec.convert(event, Event) for event in vector["events"]]
    assert reduce_dag(events) == reduce_flow(events)
