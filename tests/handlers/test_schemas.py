"""Schemas of inputs, results and events, declared in five ways; a violation is a permanent failure."""

import dataclasses
import typing
from typing import Any

import msgspec
import pydantic
import pytest

from penstock import flow, job, step
from penstock.core.errors import DefinitionError, SchemaViolation


class StructOrder(msgspec.Struct):
    id: int
    name: str = "?"


@dataclasses.dataclass
class DataOrder:
    id: int
    name: str = "?"


class DictOrder(typing.TypedDict):
    id: int
    name: typing.NotRequired[str]


class ModelOrder(pydantic.BaseModel):
    id: int
    name: str = "?"


JSON_ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["id"],
}

SCHEMAS = [StructOrder, DataOrder, DictOrder, ModelOrder, JSON_ORDER]
NAMES = ["struct", "dataclass", "typeddict", "pydantic", "json"]
every_schema = pytest.mark.parametrize("schema", SCHEMAS, ids=NAMES)


def id_of(value: Any) -> int:
    return int(value["id"] if isinstance(value, dict) else value.id)


@every_schema
async def test_a_valid_input_has_the_declared_type(app: Any, schema: Any) -> None:
    @flow("typed", input_schema=schema)
    async def typed(input: Any) -> list[Any]:
        return [type(input).__name__, id_of(input)]

    async with app(typed) as a, a.workers.background():
        name = "dict" if isinstance(schema, dict) or schema is DictOrder else schema.__name__
        assert await a.run_for_result("typed", {"id": 7}) == [name, 7]


@pytest.mark.parametrize("bad", [{}, {"id": "seven"}, [], None, {"id": 1, "name": 5}])
@every_schema
async def test_an_invalid_input_is_refused_at_the_start(memory: Any, schema: Any, bad: Any) -> None:
    @flow("typed", input_schema=schema)
    async def typed(input: Any) -> None: ...

    async with memory(typed) as a:
        with pytest.raises(SchemaViolation, match="the input of flow 'typed'"):
            await a.start("typed", bad)
        assert await a.runs.list() == []


@pytest.mark.spec("000-7.26", "000-14.11")
@every_schema
async def test_an_invalid_input_from_an_event_is_a_permanent_failure(app: Any, schema: Any) -> None:
    ran: list[Any] = []

    @flow("typed", emits=["order"])
    async def begin(input: Any, ctx: Any) -> None:
        ctx.emit("order", input)

    @step(on="order", input_schema=schema, retry=5)
    async def typed(input: Any) -> None:
        ran.append(input)

    async with app(begin, typed) as a, a.workers.background():
        run, status = await a.run_to_end("typed", {"id": "seven"})
        assert (status, ran) == ("failed", [])
        events = [(e.kind, e.step) for e in await a.stream(run) if e.step == "typed"]
        assert events == [("step.started", "typed"), ("schema.error", "typed"), ("step.failed", "typed")]
        error = (await a.events_of(run, "schema.error"))[0]
        assert "the input of 'typed'" in error.data["message"]
        assert error.meta["attempt"] == 1
        failed = (await a.events_of(run, "step.failed"))[0].data
        assert (failed["code"], failed["willRetry"]) == ("schema_violation", False)
        assert len(await a.list_dead_letters()) == 1
        assert (await a.run_to_end("typed", {"id": 7}))[1] == "completed"


@pytest.mark.spec("000-14.11")
@every_schema
async def test_an_invalid_result_is_a_permanent_failure(app: Any, schema: Any) -> None:
    @flow("typed", output_schema=schema, retry=5, emits=["after"])
    async def typed(input: Any, ctx: Any) -> Any:
        ctx.emit("after")
        return input

    async with app(typed) as a, a.workers.background():
        assert await a.run_for_result("typed", {"id": 1}) == {"id": 1}
        run, status = await a.run_to_end("typed", {"id": None})
        assert status == "failed"
        assert "the result of 'typed'" in (await a.events_of(run, "schema.error"))[0].data["message"]
        assert "after" not in await a.kinds(run)


@pytest.mark.spec("000-7.14")
@every_schema
async def test_an_invalid_event_is_a_permanent_failure(app: Any, schema: Any) -> None:
    @flow("typed", events={"order.made": schema}, emits=["order.made", "free"], retry=5)
    async def typed(input: Any, ctx: Any) -> None:
        ctx.emit("free", "anything")
        ctx.emit("order.made", input)

    async with app(typed) as a, a.workers.background():
        run, status = await a.run_to_end("typed", {"id": 7})
        assert status == "completed"
        assert (await a.events_of(run, "order.made"))[0].data == {"id": 7}
        run, status = await a.run_to_end("typed", {"id": []})
        assert status == "failed"
        assert "the data of order.made" in (await a.events_of(run, "schema.error"))[0].data["message"]
        assert await a.events_of(run, "order.made") == await a.events_of(run, "free") == []


@pytest.mark.spec("000-7.14")
@every_schema
async def test_an_invalid_event_from_outside_is_refused(memory: Any, schema: Any) -> None:
    @flow("typed", accepts=["order.made"], events={"order.made": schema})
    async def typed(input: Any) -> None: ...

    async with memory(typed) as a:
        run = await a.start("typed")
        with pytest.raises(SchemaViolation, match=r"the data of order\.made"):
            await a.emit("order.made", {"id": []}, run=run)
        await a.emit("order.made", {"id": 7}, run=run)
        assert [e.data for e in await a.events_of(run, "order.made")] == [{"id": 7}]


@pytest.mark.parametrize(
    "value",
    [StructOrder(7), DataOrder(7), {"id": 7, "name": "?"}, ModelOrder(id=7)],
    ids=["struct", "dataclass", "dict", "pydantic"],
)
@every_schema
async def test_the_json_of_an_event_is_validated(memory: Any, schema: Any, value: Any) -> None:
    @flow("typed", events={"order.made": schema})
    async def typed(ctx: Any) -> Any:
        ctx.emit("order.made", value)
        return value

    async with memory(typed) as a, a.workers.background():
        run = await a.start("typed")
        assert await a.result(run, timeout=20) == {"id": 7, "name": "?"}
        assert (await a.events_of(run, "order.made"))[0].data == {"id": 7, "name": "?"}


async def test_an_annotation_is_used_as_schema(app: Any) -> None:
    @flow("struct", emits=["next"])
    async def begin(order: StructOrder, ctx: Any) -> None:
        ctx.emit("next", order)

    @step(on="next", emits=["then"])
    def middle(order: DataOrder, ctx: Any) -> None:
        ctx.emit("then", order)

    @step(on="then", emits=["last"])
    async def typed_dict(order: DictOrder, ctx: Any) -> None:
        ctx.emit("last", order)

    @step(on="last")
    async def end(order: ModelOrder) -> ModelOrder:
        return order

    async with app(begin, middle, typed_dict, end) as a, a.workers.background():
        assert await a.run_for_result("struct", {"id": 3}) == {"id": 3, "name": "?"}
        with pytest.raises(SchemaViolation):
            await a.start("struct", {"id": "x"})


async def test_annotations_with_plain_types_are_not_schemas(memory: Any) -> None:
    @job(queue="plain")
    async def plain(input: int) -> Any:
        return input

    async with memory(plain) as a, a.workers.background():
        assert await a.jobs.result(await a.enqueue("plain", "not a number"), timeout=20) == "not a number"


@pytest.mark.spec("002-8.4")
async def test_an_invalid_payload_from_a_producer_without_the_handler(shared: Any) -> None:
    @job(queue="typed", input_schema=JSON_ORDER, retry=5)
    async def typed() -> None: ...

    async with shared() as producer, shared(typed) as worker, worker.workers.background():
        id = await producer.enqueue("typed", {"id": "x"})
        row = await worker.wait_for_state(id, "failed")
        assert row.attempt == 1
        kinds = [e.kind for e in await worker.job_events("typed")]
        assert kinds == ["job.added", "job.active", "schema.error", "job.failed"]


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (object(), "not_json"),
        ({1: 2}, "not_json"),
        (float("inf"), "not_json"),
        (2**53, "not_json"),
        ("\ud800", "not_json"),
        (b"bytes", "not_json"),
        ("x" * 70_000, "payload_too_large"),
    ],
)
async def test_a_result_that_cannot_be_stored_is_a_permanent_failure(memory: Any, result: Any, code: str) -> None:
    @flow("odd", retry=5)
    def odd() -> Any:
        return result

    @flow("fine", queue="other")
    def fine() -> str:
        return "fine"

    async with memory(odd, fine) as a, a.workers.background():
        run, status = await a.run_to_end("odd")
        assert status == "failed"
        failed = (await a.events_of(run, "step.failed"))[0].data
        assert (failed["code"], failed["willRetry"]) == (code, False)
        assert "the result of 'odd'" in failed["error"]
        assert await a.run_for_result("fine") == "fine"


@pytest.mark.parametrize("schema", ["not a schema", 7, {"type": "nonsense"}, {"type": 7}])
def test_an_invalid_schema_is_refused_by_the_decorator(schema: Any) -> None:
    with pytest.raises(DefinitionError) as refusal:

        @job(input_schema=schema)
        async def typed() -> None: ...

    assert "test_schemas.py" in str(refusal.value)


def test_an_invalid_event_schema_is_reported(memory: Any) -> None:
    @flow("bad", events={"x": "nonsense"})
    async def bad() -> None: ...

    app = memory(bad)
    (problem,) = app.registry.problems
    assert "nonsense" in problem.message
    assert "bad" not in app.registry.flows


@every_schema
async def test_a_misspelt_required_field_has_a_near_match(memory: Any, schema: Any) -> None:
    @flow("shop", input_schema=schema)
    async def typed(input: Any) -> None: ...

    async with memory(typed) as a:
        with pytest.raises(SchemaViolation, match=r"the input of flow 'shop' .*; got 'idd', did you mean 'id'\?"):
            await a.start("shop", {"idd": 7, "name": "x"})
        with pytest.raises(SchemaViolation) as it:
            await a.start("shop", {"name": "x"})
        assert "did you mean" not in str(it.value), "a known field is not a misspelt one"


async def test_a_misspelt_field_of_an_inner_object(memory: Any) -> None:
    @dataclasses.dataclass
    class Basket:
        orders: list[DataOrder]

    @job(queue="q")
    async def typed(input: Basket) -> None: ...

    async with memory(typed) as a:
        with pytest.raises(SchemaViolation, match=r"got 'idd', did you mean 'id'\?"):
            await a.enqueue("q", {"orders": [{"id": 1}, {"idd": 2}]})


@every_schema
async def test_a_missing_input_names_the_flow(memory: Any, schema: Any) -> None:
    @flow("shop", input_schema=schema)
    async def typed(input: Any) -> None: ...

    async with memory(typed) as a:
        with pytest.raises(
            SchemaViolation, match=r"^the input of flow 'shop' .*; pass input=, or --input on the command"
        ):
            await a.start("shop")
