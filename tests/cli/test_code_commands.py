"""`penstock flows`, `diagram`, `registry`, `settings`, `completion` and `init`."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import pytest

from node_programs import node
from penstock.cli.commands.init import Template
from penstock.flows.diagram import build_diagram, render_text
from penstock.flows.diagram_svg import render_svg
from penstock.handlers.discovery import discover
from penstock.handlers.registry import build_registry

SHOP = Path(__file__).parents[2] / "examples" / "shop" / "workers"
# A circle, a step that listens to itself, one that declares nothing, and an event from outside.
ODD = """
from penstock import flow, step

@flow("odd", emits=["go"], accepts=["poke"])
def start(x): ...

@step(on=["go", "again"], emits=["ping"], mode="each", flow="odd")
def left(x): ...

@step(on=["ping", "poke"], emits=["again"], mode="each", flow="odd")
def right(x): ...

@step(on="poke", mode="each", flow="odd")
def loose(x): ...

@step(on="whatever", flow="odd")
def never(x): ...
"""


def test_flows_are_listed(penstock: Callable) -> None:
    assert [line.split()[0] for line in penstock("flows").lines[1:]] == ["fails", "gated", "greet"]
    found = {row["flow"]: row for row in map(json.loads, penstock("flows", "list", "--json").lines)}
    assert found["greet"]["entry"] == "greet"
    assert found["greet"]["steps"]["answer"]["on"] == ["greeted"]


def test_a_flow_is_shown(penstock: Callable) -> None:
    answer = penstock("flows", "show", "greet")
    assert answer.lines[2].split()[:4] == ["answer", "greet", "greeted", "once"]
    assert "── greeted ─▶ │ answer │" in answer.out
    assert penstock("flows", "show", "greet", "--json").json["steps"]["greet"]["emits"] == ["greeted"]
    assert "[unknown_flow]" in penstock("flows", "show", "gret").err


@pytest.mark.spec("003-9.5")
def test_a_flow_is_drawn(penstock: Callable, project: Path) -> None:
    assert penstock("diagram", "greet").lines == [
        "┌───────┐",
        "│ greet │  entry · queue greet",
        "└─┬─────┘",
        "  │              ┌────────┐",
        "  └── greeted ─▶ │ answer │  queue greet",
        "                 └────────┘",
    ]
    mermaid = penstock("diagram", "greet", "--format", "mermaid").out
    assert mermaid.startswith("flowchart LR\n")
    assert 'n0 -->|"greeted"| n1' in mermaid
    assert penstock("diagram", "greet", "--format", "svg", "--output", "greet.svg").code == 0
    ElementTree.parse(project / "greet.svg")
    assert penstock("diagram", "greet", "--format", "mermaid", "--json").json["diagram"] + "\n" == mermaid


def test_joins_and_fan_out_are_marked() -> None:
    flow = build_registry(*discover(SHOP)).flows["shop"]
    graph = build_diagram(flow)
    assert (graph.nodes["ship"].mode, graph.nodes["reserve"].mode) == ("all", "each")
    assert graph.nodes["refund"].is_compensation
    text = render_text(graph)
    assert "║ ship ║  queue ship · join" in text
    assert "order.paid ─▶ ship (above)" in text
    assert "compensated by" in text
    assert render_text(graph, unicode=False).isascii()


def test_cycles_and_outside_events_are_drawn(project: Path) -> None:
    (project / "odd").mkdir()
    (project / "odd" / "odd.py").write_text(ODD)
    graph = build_diagram(build_registry(*discover(project / "odd")).flows["odd"])
    assert {(e.start, e.end, e.label, e.kind) for e in graph.edges} >= {
        ("left", "right", "ping", "emits"),
        ("right", "left", "again", "emits"),
        ("(outside)", "loose", "poke", "emits"),
        ("loose", "never", "whatever", "may_emit"),
    }
    assert sum(map(len, graph.layers())) == len(graph.nodes)
    for name in graph.nodes:
        assert f" {name} " in render_text(graph)
        assert f">{name}</text>" in render_svg(graph)


def test_boxes_do_not_overlap() -> None:
    svg = ElementTree.fromstring(render_svg(build_diagram(build_registry(*discover(SHOP)).flows["shop"])))
    boxes = [
        tuple(float(rect.attrib[side]) for side in ("x", "y", "width", "height"))
        for rect in svg.iter("{http://www.w3.org/2000/svg}rect")
        if rect.attrib.get("class", "").split() in (["box"], ["box", "entry"], ["box", "all"], ["box", "once"])
    ]
    assert len(boxes) >= 5
    for one in boxes:
        for other in boxes:
            apart = one[0] + one[2] <= other[0] or other[0] + other[2] <= one[0]
            assert one is other or apart or one[1] + one[3] <= other[1] or other[1] + other[3] <= one[1]
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    assert all(x >= 0 and y >= 0 and x + w <= width and y + h <= height for x, y, w, h in boxes)


def test_the_registry(penstock: Callable) -> None:
    found = penstock("registry").json
    assert set(found["flows"]) == {"fails", "gated", "greet"}
    assert found["problems"] == []
    assert len(penstock("registry", "--json").lines) == 1


def test_settings_and_their_sources(penstock: Callable, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "penstock.toml").write_text('lease = "5s"\n')
    monkeypatch.setenv("PENSTOCK_CONCURRENCY", "3")
    answer = penstock("settings", "--json", "--url", "redis://user:hush@host/0")
    found = {row["setting"]: (row["value"], row["source"]) for row in map(json.loads, answer.lines)}
    assert found["lease"] == (5000, "penstock.toml lease")
    assert found["concurrency"] == (3, "environment variable PENSTOCK_CONCURRENCY")
    assert found["url"] == ("redis://user:***@host/0", "argument 'url'")
    assert found["grace"][1] == "default"
    assert "5.0 s" in penstock("settings").out
    (kept,) = [line for line in penstock("settings").lines if line.startswith("keep_runs")]
    assert kept.split()[1] == "all"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(penstock: Callable, shell: str) -> None:
    answer = penstock("completion", shell)
    assert answer.code == 0
    assert "penstock" in answer.out
    assert "redrive" in answer.out
    assert penstock("completion", shell, "--json").json["script"] + "\n" == answer.out
    assert penstock("completion", "tcsh").code == 2


def test_bash_accepts_its_completion_script(penstock: Callable, project: Path) -> None:
    script = penstock("completion", "bash").out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_init_creates_a_working_project(penstock: Callable, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert penstock("init", "new", "--json").json["files"] == [
        "README.md",
        "penstock.toml",
        "tests/test_welcome.py",
        "workers/resize.py",
        "workers/welcome.py",
    ]
    monkeypatch.chdir("new")
    assert "Welcome, Ada!" in penstock("run", "welcome", "--input", '{"name": "Ada"}').out
    assert penstock("doctor").code == 0
    ran = subprocess.run([sys.executable, "-m", "pytest", "-q"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout


def test_init_creates_a_typescript_project(penstock: Callable, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = penstock("init", "new", "--ts", "--json").json["files"]
    assert {"workers/greet.ts", "workers/write.ts", "workers/resize.ts", "tsconfig.json", "penstock.toml"} <= set(files)
    assert not any(name.startswith("workers/") and name.endswith(".py") for name in files)
    monkeypatch.chdir(project / "new")
    for name in ("PENSTOCK_URL", "PENSTOCK_DIR"):
        monkeypatch.delenv(name, raising=False)
    run = penstock("run", "welcome", "--input", '{"name": "Ada"}', "--json")
    assert run.code == 0, run.err
    assert "Welcome, Ada! We are glad you are here." in run.out
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"], capture_output=True
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.spec("000-19.2")
@pytest.mark.parametrize("language", ["python", "typescript"])
def test_init_adds_templates(penstock: Callable, project: Path, monkeypatch: pytest.MonkeyPatch, language: str) -> None:
    """Each template works as it is: its own test passes, which is the same for both languages."""
    tested = 0
    for name in get_args(Template):
        answer = penstock("init", "shop", "--template", name, *(["--ts"] if language == "typescript" else []), "--json")
        if (language, name) == ("typescript", "entity"):
            assert (answer.code, "in Python only" in answer.err) == (2, True)
            continue
        files = answer.json["files"]
        endings = {Path(file).suffix for file in files if file.startswith("workers/")}
        assert endings == {".ts" if language == "typescript" else ".py"}
        (test,) = (file for file in files if file.startswith("tests/"))
        monkeypatch.setenv("PENSTOCK_NODE", node())
        for function, call in runpy.run_path(str(project / "shop" / test)).items():
            if function.startswith("test_"):
                call()
                tested += 1
    assert tested == len(get_args(Template)) - (language == "typescript")
    assert penstock("init", "shop", "--template", "approval").code == 2, "nothing is overwritten"
    assert 'Did you mean "approval"' in penstock("init", "--template", "aproval").err


def test_init_overwrites_nothing(penstock: Callable, project: Path) -> None:
    (project / "new").mkdir()
    (project / "new" / "README.md").write_text("mine")
    answer = penstock("init", "new")
    assert (answer.code, "already exists and is not overwritten" in answer.err) == (2, True)
    assert [path.name for path in (project / "new").iterdir()] == ["README.md"]
    (project / "file").touch()
    assert penstock("init", "file").code == 2
