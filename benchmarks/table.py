"""Build the tables: one column per contender, with how many times better Penstock is.

Scenarios with many contenders get a table of their own, with the contenders as rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from .rounds import Readings
from .scenarios import Contender, Metric, Scenario

OURS = "penstock"


@dataclass(frozen=True)
class Row:
    """One row. The first row of a scenario has a title, shown above it."""

    title: str | None
    name: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Sheet:
    """One table."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def sheets(readings: Readings) -> list[Sheet]:
    """Return one table per scenario with many contenders, and one table with all the others."""
    measured = [s for s in readings.part.scenarios if s.name in readings.taken]
    wide = [s for s in measured if _is_wide(readings, s)]
    rest = [s for s in measured if s not in wide]
    found = [_by_contender(readings, scenario) for scenario in wide]
    return [*found, _by_metric(readings, rest)] if rest else found


def _is_wide(readings: Readings, scenario: Scenario) -> bool:
    return len(scenario.contenders) > 5 and len(readings.part.contenders) > 5


def _list_contenders(readings: Readings, scenarios: Sequence[Scenario]) -> list[Contender]:
    named = {name for scenario in scenarios for name in scenario.contenders}
    return [c for c in readings.part.contenders if c.name in named and c.name in readings.about]


def _by_contender(readings: Readings, scenario: Scenario) -> Sheet:
    title: str | None = _title(readings, scenario)
    rows = []
    for one in _list_contenders(readings, [scenario]):
        cells = tuple(_cell(readings, scenario, metric, one.name) for metric in scenario.metrics)
        rows.append(Row(title, one.title, cells))
        title = None
    return Sheet(tuple(metric.title for metric in scenario.metrics), tuple(rows))


def _by_metric(readings: Readings, scenarios: Sequence[Scenario]) -> Sheet:
    contenders = _list_contenders(readings, scenarios)
    rows = [row for scenario in scenarios for row in _rows(readings, scenario, contenders)]
    return Sheet(tuple(c.title for c in contenders), tuple(rows))


def _rows(readings: Readings, scenario: Scenario, contenders: Sequence[Contender]) -> Iterator[Row]:
    title: str | None = _title(readings, scenario)
    for metric in scenario.metrics:
        yield Row(title, metric.title, tuple(_cell(readings, scenario, metric, c.name) for c in contenders))
        title = None


def _title(readings: Readings, scenario: Scenario) -> str:
    once = ", one round" if scenario.once else ""
    return f"{scenario.title} ({scenario.name}, n = {readings.n[scenario.name]:,}{once})"


def _cell(readings: Readings, scenario: Scenario, metric: Metric, contender: str) -> str:
    if contender not in scenario.contenders:
        return "–"
    values = _values(readings, scenario, metric, contender)
    present = [value for value in values if value is not None]
    if not present:
        return "failed" if any(failed == contender for failed, _ in readings.failures) else "–"
    shown = _format_value(statistics.median(present), metric.unit)
    ratios = _ratios(_values(readings, scenario, metric, OURS), values, metric) if contender != OURS else []
    return f"{shown} ({_spread(ratios)})" if ratios else shown


def _values(readings: Readings, scenario: Scenario, metric: Metric, contender: str) -> list[float | None]:
    return [m.get(metric.key) if m else None for m in readings.of(scenario.name, contender)]


def _ratios(ours: Sequence[float | None], theirs: Sequence[float | None], metric: Metric) -> list[float]:
    """Return how many times better Penstock was, per round."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if a and b]
    return [a / b if metric.more_is_better else b / a for a, b in pairs]


def _spread(ratios: Sequence[float]) -> str:
    """Return the median; from three rounds on also the minimum and maximum. A wide range means a busy machine."""
    middle = f"{_format_ratio(statistics.median(ratios))}×"
    return middle if len(ratios) < 3 else f"{middle}, {_format_ratio(min(ratios))}–{_format_ratio(max(ratios))}"


def _format_value(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return f"{text}{unit}" if unit == "/s" else f"{text} {unit}"


def _format_ratio(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2f}"


def to_terminal_tables(readings: Readings) -> Iterator[Table]:
    for sheet in sheets(readings):
        table = Table(
            title=f"Penstock compared with others: {readings.part.title}",
            caption="(n×): Penstock is n times better; minimum–maximum of the rounds",
            title_justify="left",
        )
        table.add_column("")
        for title in sheet.columns:
            table.add_column(title, justify="right", no_wrap=True)
        for row in sheet.rows:
            if row.title:
                table.add_section()
                table.add_row(f"[bold]{row.title}")
            table.add_row(f"  {row.name}", *row.cells)
        yield table


def to_markdown(readings: Readings) -> str:
    """Return the tables as Markdown."""
    return "\n\n".join(_markdown(sheet) for sheet in sheets(readings))


def _markdown(sheet: Sheet) -> str:
    lines = ["| | " + " | ".join(sheet.columns) + " |", "|---|" + "---:|" * len(sheet.columns)]
    for row in sheet.rows:
        if row.title:
            lines.append(f"| **{row.title}** |" + " |" * len(sheet.columns))
        lines.append(f"| {row.name} | " + " | ".join(row.cells) + " |")
    return "\n".join(lines)
