"""A run as text: on a terminal, in a pipe, and with many steps."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from penstock.cli.run_panel import RunPanel
from penstock.cli.run_view import MAX_CALLS, build_rows, one_line, render_text
from penstock.cli.timeline import Timeline
from penstock.core.clock import from_iso
from penstock.flows.reducer import RunView, StepView
from penstock.jobs.reducer import CallView
from penstock.testing.clock import FakeClock

START = "2026-01-01T00:00:00.000Z"
NOW = from_iso(START) + 2500


def view(*steps: StepView, **rest: Any) -> RunView:
    keys = [step.step if step.n == 1 else f"{step.step}#{step.n}" for step in steps]
    return RunView(id="r-1", name="shop", started_at=START, steps=dict(zip(keys, steps, strict=True)), **rest)


def draw(run: RunView, width: int = 100, height: int = 25, panel: type[RunPanel | Timeline] = RunPanel) -> list[str]:
    """Return the lines on the screen."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=height, color_system=None)
    console.print(panel(run, FakeClock(NOW)))
    return [line.rstrip() for line in out.getvalue().splitlines()]


RUNNING = view(
    StepView("pack", status="completed", attempt=1, duration=12),
    StepView("charge", status="retrying", attempt=2, error="declined", next_retry_at="2026-01-01T00:00:03.000Z"),
    StepView("ship", status="running", attempt=1, started_at="2026-01-01T00:00:02.000Z", progress=50),
    StepView("write", status="running", attempt=1, started_at=START, partials=["Dear ", "Ada,\n", "all is ", "well"]),
    StepView("rest"),
)


def test_a_running_run_in_a_pipe() -> None:
    assert render_text(RUNNING, NOW).splitlines() == [
        "shop r-1 running for 2.5 s",
        "  ✓ pack     12 ms",
        "  ↻ charge          attempt 2  retry in 500 ms: declined",
        "  ● ship    500 ms  50 %",
        "  ● write    2.5 s  all is well",
        "  · rest            no worker has claimed it",
    ]


def test_a_running_run_on_a_terminal() -> None:
    lines = draw(RUNNING)
    assert lines[0] == "shop r-1  running for 2.5 s"
    assert [line.split()[1] for line in lines[1:]] == ["pack", "charge", "ship", "write", "rest"]
    assert "━━━━" in lines[3]
    assert "all is well" in lines[4]


def test_without_unicode() -> None:
    assert render_text(RUNNING, NOW, unicode=False).isascii()


@pytest.mark.parametrize(
    ("rest", "last"),
    [
        ({"status": "completed", "result": {"a": 1}, "completed_at": START}, 'result {"a":1}'),
        ({"status": "failed", "error": "no", "completed_at": START}, "error no"),
        ({"status": "cancelled", "reason": "enough", "completed_at": START}, "reason enough"),
    ],
)
def test_the_last_line_of_an_ended_run(rest: dict[str, Any], last: str) -> None:
    run = view(StepView("pack", status="completed"), **rest)
    assert render_text(run, NOW).splitlines()[-1] == last
    assert draw(run)[-1] == last


def test_many_instances_are_folded_into_one_row_and_their_failures() -> None:
    steps = [StepView("line", n, "completed", completed_at=START) for n in range(1, 98)]
    steps += [StepView("line", 98, "failed", error="broken"), StepView("line", 99, "running"), StepView("line", 100)]
    rows = build_rows(view(*steps), NOW)
    assert [row.name for row in rows] == ["line ×100", "line#98"]
    assert rows[0].note == "97 completed, 1 failed, 1 running, 1 pending"


def test_the_latest_calls_of_a_step_and_those_that_failed_or_run_are_shown() -> None:
    calls = {f"call-{n}#1": CallView("completed", START, 5, 1, 2) for n in range(MAX_CALLS + 4)}
    calls["call-1#1"] = CallView("failed", START, 5, 3, error="declined", error_name="ValueError")
    calls["call-2#1"] = CallView("running", START)
    run = view(StepView("charge", status="running", attempt=1, started_at=START, calls=calls))
    expected = ["charge", "2", "call-1", "call-2", *(f"call-{n}" for n in range(4, MAX_CALLS + 4))]
    for lines in (render_text(run, NOW).splitlines(), draw(run, panel=Timeline)):
        assert [line.split()[1] if "more calls" not in line else "2" for line in lines[1:]] == expected, lines
        (more,) = [line for line in lines if "more calls" in line]
        assert "2 more calls" in more
        assert "✗" in next(line for line in lines if "call-1" in line)
        assert "2.5 s" in next(line for line in lines if "call-2" in line)


def test_every_wait_of_a_step_is_shown() -> None:
    step = StepView("order", status="waiting", await_type="time", await_data={"resumeAt": "2026-01-01T00:01:02.500Z"})
    step.also_awaits = [
        {"type": "event", "data": {"eventKind": "order.paid", "match": {"order": 7}}},
        {"type": "trigger", "data": {"name": "approval"}},
    ]
    (row,) = build_rows(view(step), NOW)
    assert (
        row.detail
        == "waiting for event order.paid {\"order\":7}, waiting for trigger 'approval', sleeping until 2026-01-01T00:01:02.500Z (in 1 min)"
    )


def test_steps_that_do_not_fit_the_screen_are_hidden_at_the_top() -> None:
    run = view(*(StepView(f"step-{n}", status="completed") for n in range(40)))
    lines = draw(run, height=20)
    assert len(lines) <= 20
    assert lines[1] == "  24 more above"
    assert "step-39" in lines[-1]


def test_a_narrow_screen_keeps_one_line_per_step() -> None:
    assert len(draw(RUNNING, width=40)) == 6


def test_control_characters_are_removed() -> None:
    assert one_line("a\x1b[31mb\nc\td") == "a [31mb c d"
    assert one_line("x" * 100) == "x" * 69 + "…"
    assert one_line({"a": [1, None]}) == '{"a":[1,null]}'


def test_markup_in_a_result_is_printed_as_text() -> None:
    assert draw(view(status="completed", result="[bold]x[/bold] [/nope]", duration=1))[-1] == (
        "result [bold]x[/bold] [/nope]"
    )


def test_the_time_of_an_ended_run_is_that_of_its_events() -> None:
    run = view(status="completed", completed_at="2026-01-01T00:00:00.100Z", duration=97)
    assert render_text(run, NOW).splitlines()[0] == "shop r-1 completed in 100 ms"


def test_a_waiting_run_shows_how_long_it_waits() -> None:
    steps = [StepView(name, status="waiting", await_type="event", await_data={"eventKind": "paid"}) for name in "ab"]
    steps[0].await_since, steps[1].await_since = "2026-01-01T00:00:00.500Z", "2026-01-01T00:00:02.000Z"
    assert render_text(view(*steps), NOW).splitlines()[0] == "shop r-1 waiting for 500 ms"


def test_a_deadline_that_does_not_fit_gets_a_line_of_its_own() -> None:
    data = {"eventKind": "payment.confirmed", "match": {"order": 7}, "until": "2026-01-01T00:01:02.500Z"}
    run = view(StepView("wait_for_payment", status="waiting", attempt=1, await_type="event", await_data=data))
    lines = draw(run, width=80)
    assert " ".join(" ".join(lines[1:]).split()) == (
        '… wait_for_payment waiting for event payment.confirmed {"order":7} until 2026-01-01T00:01:02.500Z (in 1 min)'
    )
    assert all(len(line) <= 80 for line in lines)
    assert len(draw(run, width=140)) == 2
