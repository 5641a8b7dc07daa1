"""`penstock runs` and `penstock runs show`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest


def test_runs_are_listed_newest_first(penstock: Callable) -> None:
    for key, flow in (("a", "greet"), ("b", "fails")):
        penstock("run", flow, "--key", key)
    assert [line.split()[:3] for line in penstock("runs").lines] == [
        ["id", "flow", "status"],
        ["b", "fails", "failed"],
        ["a", "greet", "completed"],
    ]


def test_the_list_is_filtered_and_paged(penstock: Callable) -> None:
    for key, flow in (("a", "greet"), ("b", "fails"), ("c", "greet")):
        penstock("run", flow, "--key", key)

    def ids(*options: str) -> list[str]:
        return [json.loads(line)["id"] for line in penstock("runs", "--json", *options).lines]

    assert ids("--flow", "greet") == ["c", "a"]
    assert ids("--status", "failed") == ["b"]
    assert ids("--limit", "1") == ["c"]
    assert ids("--before", "c") == ["b", "a"]


def test_runs_are_found_by_tag_input_and_time(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "a", "--input", '{"customer": 7, "paid": true}', "--tag", "shop=rome")
    penstock("run", "greet", "--key", "b", "--input", '{"customer": 8}', "--tag", "shop=rome")

    def ids(*options: str) -> list[str]:
        return [json.loads(line)["id"] for line in penstock("runs", "--json", *options).lines]

    assert ids("--where", '{"customer": 7}') == ["a"]
    assert ids("--tag", "shop=rome") == ["b", "a"]
    assert ids("--tag", "shop=rome", "--where", '{"customer": 8}', "--since", "2h") == ["b"]
    assert ids("--until", "2h") == []
    assert ids("--since", "2020-01-31T09:00", "--until", "2020-02-01") == []
    assert "--since must be a duration such as 2h" in penstock("runs", "--since", "yesterday").err


def test_show_prints_steps_input_and_logs(penstock: Callable, project: Path) -> None:
    (project / "workers" / "chatty.py").write_text(
        "from penstock import flow\n@flow('chatty')\ndef chatty(x, ctx):\n    ctx.log('one thing')\n    return x\n"
    )
    penstock("run", "chatty", "--key", "mine", "--input", '{"a": 1}')
    answer = penstock("runs", "show", "mine")
    assert answer.code == 0
    assert answer.lines[0].startswith("chatty mine completed")
    assert 'result {"a":1}' in answer.lines
    assert 'input {"a":1}' in answer.lines
    assert answer.lines[-1].endswith("info chatty: one thing")


def test_show_prints_the_same_object_as_run(penstock: Callable) -> None:
    ran = penstock("run", "greet", "--key", "mine", "--input", "1", "--json").json
    assert penstock("runs", "show", "mine", "--json").json == ran


def test_show_prints_the_calls_of_a_step(penstock: Callable, project: Path) -> None:
    (project / "workers" / "caller.py").write_text(
        "from penstock import flow\n@flow('caller')\nasync def caller(x, ctx):\n"
        "    return await ctx.run('charge', lambda: 1)\n"
    )
    penstock("run", "caller", "--key", "mine")
    (step,) = penstock("runs", "show", "mine", "--json").json["steps"].values()
    assert [call["status"] for call in step["calls"].values()] == ["completed"]
    lines = penstock("runs", "show", "mine").lines
    call = next(n for n, line in enumerate(lines) if "charge" in line)
    assert "caller" in lines[call - 1], "a call is under its step"
    assert lines[call].index("charge") == lines[call - 1].index("caller") + 2, lines


def test_a_run_without_a_worker(penstock: Callable) -> None:
    penstock("start", "greet", "--key", "mine")
    assert "no worker has claimed it" in penstock("runs", "show", "mine").out


def test_listing_loads_no_code_and_creates_no_store(
    penstock: Callable, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DIR", "not-there")
    answer = penstock("runs")
    assert (answer.code, "[not_found]" in answer.err) == (2, True)
    assert not (project / ".penstock").exists()
    monkeypatch.delenv("PENSTOCK_DIR")
    penstock("start", "greet", "--key", "mine")
    monkeypatch.setenv("PENSTOCK_DIR", "not-there")
    assert penstock("runs").code == 0


def test_an_unknown_run(penstock: Callable) -> None:
    penstock("start", "greet")
    answer = penstock("runs", "show", "nope")
    assert (answer.code, answer.out) == (2, "")
    assert "no run with id 'nope'" in answer.err
    assert "[unknown_run]" in answer.err
