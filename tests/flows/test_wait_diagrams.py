"""Declared waits and start events in registries and diagrams."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from penstock import App, Context, flow, step
from penstock.flows.diagram import OUTSIDE, Edge, build_diagram, render_mermaid, render_text
from penstock.flows.diagram_svg import render_svg

PAYMENT = {"type": "event", "eventKind": "payment.confirmed", "timeout": "24h", "onTimeout": "call_off"}


@flow("order", emits=["order.created"], start_on=["basket.full", {"kind": "gift.sent", "when": {"size": "big"}}])
async def create(order: dict[str, Any], ctx: Context) -> None: ...


@step(on="order.created", emits=["order.paid"], wait=PAYMENT)
async def collect(order: dict[str, Any], ctx: Context) -> None: ...


@step(on="order.paid", emits=["order.approved"], wait={"type": "trigger", "triggerType": "user", "name": "approval"})
async def approve(order: dict[str, Any], ctx: Context) -> None: ...


@step(on="order.approved", wait={"type": "time", "delay": "90s"})
async def ship(order: dict[str, Any], ctx: Context) -> None: ...


@step(flow="order", wait={"type": "time", "delay": lambda result: 5})
async def call_off(order: dict[str, Any], ctx: Context) -> None: ...


APP = App(":memory:", handlers=[create, collect, approve, ship, call_off])
GRAPH = build_diagram(APP.registry.flow("order"))


def test_nodes_show_their_waits() -> None:
    assert APP.registry.problems == ()
    assert {name: node.wait for name, node in GRAPH.nodes.items() if node.wait} == {
        "collect": "payment.confirmed, at most 1d",
        "approve": "trigger approval",
        "ship": "90s",
        "call_off": "a time",
    }


def test_edges_of_timeouts_and_of_events_that_start_it() -> None:
    assert Edge("collect", "call_off", "timeout 1d", "timeout") in GRAPH.edges
    assert [edge.label for edge in GRAPH.edges if (edge.start, edge.end) == (OUTSIDE, "create")] == [
        "basket.full",
        "gift.sent",
    ]
    assert GRAPH.layers()[0] == [OUTSIDE]


@pytest.mark.spec("003-9.4", "003-9.5")
def test_mermaid_shows_waits() -> None:
    lines = render_mermaid(GRAPH).splitlines()
    ids = {name: f"n{number}" for number, name in enumerate(GRAPH.nodes)}
    collect, off = ids["collect"], ids["call_off"]
    assert f'  {collect} -.->|"⏱ payment.confirmed, at most 1d"| {collect}' in lines
    assert f'  {collect}[/"collect<br/>queue default"/]' in lines
    assert f'  {collect} -.->|"timeout 1d"| {off}' in lines


@pytest.mark.spec("003-9.4", "003-9.5")
def test_the_terminal_shows_waits_also_without_unicode() -> None:
    assert "⏱ payment.confirmed, at most 1d" in render_text(GRAPH)
    assert "┄┄ timeout 1d ┄▶" in render_text(GRAPH)
    plain = render_text(GRAPH, unicode=False)
    assert plain.isascii()
    assert "waits for payment.confirmed, at most 1d" in plain


@pytest.mark.spec("003-9.5")
def test_the_svg_shows_waits() -> None:
    svg = render_svg(GRAPH)
    ElementTree.fromstring(svg)
    assert "⏱ trigger approval" in svg
    assert 'class="edge timeout"' in svg


def test_the_registry_lists_waits_as_json() -> None:
    described = json.loads(json.dumps(APP.describe()))["flows"]["order"]
    assert described["steps"]["collect"]["await"] == {
        "type": "event",
        "eventKind": "payment.confirmed",
        "onTimeout": "call_off",
        "timeout": 86_400_000,
    }
    assert described["steps"]["approve"]["await"] == {"type": "trigger", "triggerType": "user", "name": "approval"}
    assert described["steps"]["ship"]["await"] == {"type": "time", "delay": 90_000}
    assert described["startOn"] == [{"eventKind": "basket.full"}, {"eventKind": "gift.sent", "when": {"size": "big"}}]
