"""Diagrams show the flows that a step calls or starts, as far as its source shows them."""

from __future__ import annotations

import asyncio
from typing import Any
from xml.etree import ElementTree

from penstock import App, Context, SyncContext, flow, step
from penstock.flows.diagram import Edge, build_diagram, render_mermaid, render_text
from penstock.flows.diagram_svg import render_svg
from penstock.handlers.called_flows import CalledFlow, find_called_flows

REFUND = "refund"


@flow("double")
async def double(n: int) -> int:
    return 2 * n


@flow("trip", emits=["trip.booked"])
async def book(trip: dict[str, Any], ctx: Context) -> None:
    async def pay() -> Any:
        return await ctx.call(flow="pay", input=trip)

    await asyncio.gather(pay(), ctx.call(double, 2), ctx.call_many("ticket", [1, 2]), ctx.call(double, 3))
    ctx.start(trip["next"])  # only a run knows it
    ctx.emit("trip.booked")


@step(on="trip.booked")
def close(trip: dict[str, Any], ctx: SyncContext) -> None:
    trip["call"]("not a flow")
    ctx.all([ctx.branch.call("pay")])
    ctx.start(REFUND)


GRAPH = build_diagram(App(":memory:", handlers=[book, close]).registry.flow("trip"))


def test_names_functions_and_constants_are_found() -> None:
    assert find_called_flows(book) == [
        CalledFlow("pay", "calls"),
        CalledFlow("double", "calls"),
        CalledFlow("ticket", "calls many"),
    ]
    assert find_called_flows(close) == [CalledFlow("pay", "calls"), CalledFlow("refund", "starts")]
    assert find_called_flows(len) == []  # no source


def test_each_called_flow_is_a_node_with_edges() -> None:
    assert [edge for edge in GRAPH.edges if edge.kind == "calls"] == [
        Edge("book", "flow pay", "calls", "calls"),
        Edge("book", "flow double", "calls", "calls"),
        Edge("book", "flow ticket", "calls many", "calls"),
        Edge("close", "flow pay", "calls", "calls"),
        Edge("close", "flow refund", "starts", "calls"),
    ]
    mermaid = render_mermaid(GRAPH).splitlines()
    assert {r'  n2[/"flow pay"\]', '  n0 -.->|"calls"| n2', '  n1 -.->|"calls"| n2'} <= set(mermaid)
    assert "┄┄ calls many ┄▶ │ flow ticket │" in render_text(GRAPH)
    texts = [text.text for text in ElementTree.fromstring(render_svg(GRAPH)).iter() if text.text]
    assert {"flow pay", "flow double", "flow ticket", "flow refund", "starts"} <= set(texts)


async def test_the_data_of_a_diagram_has_them() -> None:
    async with App(":memory:", handlers=[book, close]) as app:
        data = app.flows.diagram("trip")
    assert [node["id"] for node in data["nodes"] if node["type"] == "flow"] == [
        *("flow pay", "flow double", "flow ticket", "flow refund"),
    ]
    calls = [(edge["from"], edge["to"], edge["label"]) for edge in data["edges"] if edge.get("type") == "call"]
    assert calls[-1] == ("close", "flow refund", "starts")
    assert len(calls) == 5
