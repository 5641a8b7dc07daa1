"""Entities whose data is in storage of the user's: the order of writes, and the key that makes a retry safe."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import RetryPolicy
from penstock.core.errors import DefinitionError, EntityRefused
from penstock.core.retry import Backoff
from penstock.entities import FunctionService, Rejected, States, Transition, entity

AT_ONCE = RetryPolicy(3, Backoff("fixed", 1, jitter=False))
TIMEOUT_S = 20


class Rows:
    """A table of the user's. `update` commits, and then its process may crash before Penstock's commit."""

    def __init__(self, *, crashes: int = 0) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.crashes = crashes
        self.keys: list[str] = []

    async def load(self, urn: str) -> dict[str, Any] | None:
        row = self.rows.get(urn)
        return dict(row) if row is not None else None

    def update(self, row: dict[str, Any], status: str, key: str) -> None:
        self.rows[row["urn"]] = {**row, "status": status, "key": key}
        self.keys.append(key)
        if self.crashes:
            self.crashes -= 1
            raise OSError("the process died after the commit")

    def applied(self, urn: str, key: str) -> bool:
        return bool(self.rows.get(urn, {}).get("key") == key)


def count(row: dict[str, Any]) -> None:
    row["count"] = row.get("count", 0) + 1


def make(storage: Any) -> type:
    @entity("row", retry=AT_ONCE)
    class Row:
        service = storage
        states = States("open", idles=["open", "counted"], finals=["done"])
        transitions = [
            Transition("count", ["open", "counted"], "counted", actions=[count]),
            Transition("finish", "counted", "done"),
        ]

    return Row


async def test_a_repeated_event_is_not_applied_twice(app: Any) -> None:
    rows = Rows(crashes=1)
    service = FunctionService(rows.load, rows.update, applied=rows.applied)
    async with app(make(service)) as a, a.workers.background():
        done = await (await a.entities.emit("row-1", "count")).result(timeout=TIMEOUT_S)
        assert (done.from_, done.to) == ("open", "counted")
        await (await a.entities.emit("row-1", "count")).result(timeout=TIMEOUT_S)
        assert rows.rows["row-1"]["count"] == 2
        assert rows.keys == ["row-1.event.1", "row-1.event.2"]
        assert (await a.entities.data("row-1"))["count"] == 2
        assert (await a.entities.get("row-1")).status == "counted"


async def test_without_the_key_it_is(app: Any) -> None:
    """Show that the test above finds the mistake that the key prevents."""
    rows = Rows(crashes=1)
    async with app(make(FunctionService(rows.load, rows.update))) as a, a.workers.background():
        await (await a.entities.emit("row-1", "count")).result(timeout=TIMEOUT_S)
        assert rows.rows["row-1"]["count"] == 2
        assert rows.keys == ["row-1.event.1", "row-1.event.1"], "each attempt has the same key"


async def test_the_status_of_the_storage_decides(app: Any) -> None:
    rows = Rows()
    rows.rows["row-1"] = {"urn": "row-1", "status": "counted", "count": 7}
    async with app(make(FunctionService(rows.load, rows.update))) as a, a.workers.background():
        done = await (await a.entities.emit("row-1", "finish")).result(timeout=TIMEOUT_S)
        assert (done.to, rows.rows["row-1"]["status"]) == ("done", "done")
        with pytest.raises(EntityRefused):
            await (await a.entities.emit("row-1", "count")).result(timeout=TIMEOUT_S)


class Shelf(Rows):
    """The whole protocol, as an object, a class and a function that makes it."""

    def new(self, urn: str) -> dict[str, Any]:
        return {"urn": urn, "status": "open"}

    def status(self, row: dict[str, Any]) -> str:
        return str(row["status"])

    def urn(self, row: dict[str, Any]) -> str:
        return str(row["urn"])


@pytest.mark.spec("002-1.2", "002-4.6")
@pytest.mark.parametrize("storage", [Shelf(), Shelf, lambda: Shelf()])
async def test_a_service_is_an_object_a_class_or_a_function(memory: Any, storage: Any) -> None:
    async with memory(make(storage)) as a, a.workers.background():
        done = await (await a.entities.emit("row-1", "count")).result(timeout=TIMEOUT_S)
        assert (done.from_, done.to) == ("open", "counted")
        row = await a.entities.data("row-1")
        assert (row["status"], row["count"], row["key"]) == ("counted", 1, "row-1.event.1")


def test_a_service_without_a_method_is_refused() -> None:
    class Short(Rows):
        new = status = urn = None

    with pytest.raises(DefinitionError, match="the service of entity 'row' has no method 'new'"):
        make(Short())


async def test_a_rejected_step_of_a_function_service_keeps_the_steps_before_it(memory: Any) -> None:
    rows: dict[str, Any] = {}

    def reject(row: dict[str, Any]) -> None:
        row["count"] = 100
        raise Rejected("no")

    @entity("row")
    class Row:
        service = FunctionService(
            rows.get, lambda row, status, key: rows.update({row["urn"]: {**row, "status": status}})
        )
        states = States("open", idles=["open"], finals=["done"], failed="failed")
        transitions = [
            Transition("count", "open", "counting", actions=[count]),
            Transition(None, "counting", "done", actions=[reject]),
        ]

    async with memory(Row) as a, a.workers.background():
        await (await a.entities.emit("row-1", "count")).result(timeout=TIMEOUT_S)
    assert (rows["row-1"]["status"], rows["row-1"]["count"]) == ("failed", 1)
