"""The dashboard and the alert rules: every expression parses, every metric exists, every runbook has its section."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from penstock import Context, flow, job
from penstock.cli import main
from penstock.http.metrics import Metrics
from penstock.telemetry.export import DASHBOARD, DEFAULT_DOCS, RULES, read_file

ROOT = Path(__file__).parents[2]
RULE_LIST: list[dict[str, Any]] = yaml.safe_load(read_file(RULES))["groups"][0]["rules"]
PANELS: list[dict[str, Any]] = json.loads(read_file(DASHBOARD))["panels"]
VARIABLES = {"$instance": ".*", "$queue": ".*"}


def panel_expressions() -> Iterator[str]:
    for panel in PANELS:
        for target in panel["targets"]:
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            yield text


EXPRESSIONS = [*panel_expressions(), *(rule["expr"] for rule in RULE_LIST)]


def metrics_of(expression: str) -> set[str]:
    """Return the metrics that an expression reads."""
    promql_parser.parse(expression)
    return set(re.findall(r"\b(penstock_\w+)", expression))


@job(queue="mail", retry=1)
async def send(n: int) -> None:
    if n:
        raise ValueError("no")


@flow("ask", emits=[])
async def ask(_: Any, ctx: Context) -> None:
    await ctx.wait.time(0.001)


async def emitted_metrics() -> dict[str, set[str]]:
    """Return the names and labels that a scrape of a busy App has."""
    from penstock import App
    from penstock.app.bridges import BridgeView

    metrics = Metrics()
    async with App(":memory:", handlers=[send, ask], listeners=[metrics]) as app:
        await app.enqueue("mail", 1)
        await app.enqueue("mail", 0)
        await app.start("ask")
        await app.schedules.add("often", queue="mail", input=0, every="1h")
        await app.workers.run_until_idle()

        async def bridges() -> list[BridgeView]:
            return [BridgeView("orders", True)]

        async def rates(_queue: str | None, since: int) -> list[Any]:
            from penstock.ports.monitoring import MinuteCounts

            return [MinuteCounts("mail", since, 1, 1, 1)]

        app.check_bridges = bridges  # type: ignore[method-assign, assignment]
        app.store.rates = rates  # type: ignore[method-assign]
        text = (await metrics.render(app, 0)).decode()
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(penstock_\w+)(?:\{(.*)\})? ", text, flags=re.M):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    for name in re.findall(r"^# TYPE (penstock_\w+)", text, flags=re.M):  # without a value yet
        found.setdefault(name, set())
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_parses(expression: str) -> None:
    assert metrics_of(expression)


def test_a_broken_expression_would_be_found() -> None:
    with pytest.raises(ValueError, match=r"unclosed|unexpected|syntax|invalid"):
        metrics_of("sum by (queue (penstock_workers)")


async def test_every_metric_and_label_exists() -> None:
    emitted = await emitted_metrics()
    for expression in EXPRESSIONS:
        for name in metrics_of(expression):
            assert name in emitted, f"{name} in {expression}"
    labels = set().union(*emitted.values()) | {"instance"}
    for expression in EXPRESSIONS:
        grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
        used = {label.strip() for group in grouped for label in group.split(",")} | set(
            re.findall(r"[{,](\w+)=", expression)
        )
        assert used <= labels, f"{used - labels} in {expression}"


async def test_every_metric_is_on_the_dashboard() -> None:
    shown = " ".join(panel_expressions())
    kinds = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in await emitted_metrics()}
    missing = {name for name in kinds if name not in shown}
    assert missing == set()


@pytest.mark.parametrize("rule", RULE_LIST, ids=lambda rule: rule["alert"])
def test_every_rule_has_a_runbook_that_exists(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert rule["annotations"]["summary"]
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    text = (ROOT / page).read_text("utf-8")
    headings = re.findall(r"^#+ (.+)$", text, flags=re.M)
    anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    assert anchor in anchors


def test_panels_do_not_overlap_and_have_ids() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_the_command_writes_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["telemetry", "export", str(tmp_path / "out"), "--docs", "https://docs.example.com/p/", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["files"]
    assert [Path(name).name for name in written] == [DASHBOARD, RULES]
    rules = yaml.safe_load(Path(written[1]).read_text("utf-8"))["groups"][0]["rules"]
    assert all(rule["annotations"]["runbook_url"].startswith("https://docs.example.com/p/howto/") for rule in rules)
    assert DEFAULT_DOCS == "docs"
    (tmp_path / "file").write_text("")
    assert main(["telemetry", "export", str(tmp_path / "file")]) == 2
    assert "cannot write to" in capsys.readouterr().err


def test_the_command_needs_no_extra() -> None:
    code = "import sys; sys.modules['yaml'] = None; from penstock.telemetry.export import read_file; read_file('prometheus-rules.yaml')"
    subprocess.run([sys.executable, "-c", code], check=True)
