"""Checks the line items of an expense report, adds them up, and tells the employee how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.dags import Fail, node

LIMITS = {"travel": 100_000, "meals": 8_000, "books": 15_000}


@dataclass
class Line:
    what: str
    kind: str
    cents: int


@node("expense.line", input=Line)
def check_line(line: Line) -> Any:
    """One call for each line item: the `map` node collects the results in order."""
    if line.kind not in LIMITS:
        return Fail(f"{line.what}: no such kind of expense: {line.kind}", retry=False)
    return {"what": line.what, "cents": min(line.cents, LIMITS[line.kind]), "cut": line.cents > LIMITS[line.kind]}


@node("expense.total")
def add_up(lines: list[dict[str, Any]]) -> dict[str, Any]:
    return {"cents": sum(line["cents"] for line in lines), "cut": [line["what"] for line in lines if line["cut"]]}


@node("expense.answer")
def answer(input: dict[str, Any], skipped: tuple[str, ...]) -> dict[str, Any]:
    """A join: of its two inputs one was skipped, because the branches chose the other."""
    if "pay" in skipped:
        return {"status": "rejected", "why": input["reject"]["why"]}
    return {"status": "paid", "receipt": input["pay"]["receipt"]}
