"""The one table: our column, the others' beside it, each with how many times better ours is."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from .rounds import Readings
from .scenarios import CONTENDERS, SCENARIOS, Metric, Scenario

OURS = "penstock"


@dataclass(frozen=True)
class Row:
    """A metric over all contenders; the first of a scenario carries its title."""

    scenario: str | None
    metric: str
    cells: tuple[str, ...]


def columns(readings: Readings) -> list[str]:
    return [c.title for c in CONTENDERS if c.name in readings.about]


def rows(readings: Readings) -> Iterator[Row]:
    for scenario in SCENARIOS:
        if scenario.name not in readings.taken:
            continue
        once = ", one round" if scenario.once else ""
        title: str | None = f"{scenario.title} ({scenario.name}, n = {readings.n[scenario.name]:,}{once})"
        for metric in scenario.metrics:
            cells = tuple(_cell(readings, scenario, metric, c.name) for c in CONTENDERS if c.name in readings.about)
            yield Row(title, metric.title, cells)
            title = None


def _cell(readings: Readings, scenario: Scenario, metric: Metric, contender: str) -> str:
    if contender not in scenario.contenders:
        return "–"
    values = _values(readings, scenario, metric, contender)
    there = [value for value in values if value is not None]
    if not there:
        return "failed" if values and None in readings.of(scenario.name, contender) else "–"
    shown = _number(statistics.median(there), metric.unit)
    ratios = _ratios(_values(readings, scenario, metric, OURS), values, metric) if contender != OURS else []
    return f"{shown} ({_spread(ratios)})" if ratios else shown


def _values(readings: Readings, scenario: Scenario, metric: Metric, contender: str) -> list[float | None]:
    return [m.get(metric.key) if m else None for m in readings.of(scenario.name, contender)]


def _ratios(ours: Sequence[float | None], theirs: Sequence[float | None], metric: Metric) -> list[float]:
    """How many times better ours was, round by round."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if a and b]
    return [a / b if metric.more_is_better else b / a for a, b in pairs]


def _spread(ratios: Sequence[float]) -> str:
    """The median, and with several rounds the least and the most: a wide span means a busy machine."""
    middle = f"{_times(statistics.median(ratios))}×"
    return middle if len(ratios) < 3 else f"{middle}, {_times(min(ratios))}–{_times(max(ratios))}"


def _number(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return f"{text}{unit}" if unit == "/s" else f"{text} {unit}"


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2f}"


def for_terminal(readings: Readings) -> Table:
    table = Table(
        title="Penstock beside others",
        caption="(n×): ours is n times better; least–most of the rounds",
        title_justify="left",
    )
    table.add_column("")
    for title in columns(readings):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows(readings):
        if row.scenario:
            table.add_section()
            table.add_row(f"[bold]{row.scenario}")
        table.add_row(f"  {row.metric}", *row.cells)
    return table


def for_page(readings: Readings) -> str:
    """The same as Markdown."""
    titles = columns(readings)
    lines = ["| | " + " | ".join(titles) + " |", "|---|" + "---:|" * len(titles)]
    for row in rows(readings):
        if row.scenario:
            lines.append(f"| **{row.scenario}** |" + " |" * len(titles))
        lines.append(f"| {row.metric} | " + " | ".join(row.cells) + " |")
    return "\n".join(lines)
