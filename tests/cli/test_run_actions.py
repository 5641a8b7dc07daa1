"""`penstock runs cancel|retry|replay`, `penstock emit`, `penstock tail`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

# Fails until a file named `fixed` exists.
FRAGILE = """
from pathlib import Path
from penstock import Context, flow, step

@flow("fragile", emits=["tried"])
async def start(input, ctx: Context):
    ctx.emit("tried", input)

@step(on="tried")
def repair(input):
    if not Path("fixed").exists():
        raise ValueError("it is broken")
    return "whole"
"""
LISTENS = """
from penstock import flow, step

@flow("listens", accepts=["paid"])
def start(input):
    return None

@step(on="paid", flow="listens")
def thank(payment):
    return f"thanks for {payment['amount']}"
"""


BILL = """
from penstock import flow

@flow("bill", key=lambda order: f"bill-{order}")
def bill(order):
    return order
"""


@pytest.fixture(autouse=True)
def _workers(project: Path) -> None:
    (project / "workers" / "fragile.py").write_text(FRAGILE)
    (project / "workers" / "listens.py").write_text(LISTENS)


def test_cancel(penstock: Callable) -> None:
    penstock("start", "greet", "--key", "mine")
    assert penstock("runs", "cancel", "mine", "--reason", "no longer wanted").out == "Run mine is cancelled.\n"
    run = penstock("runs", "show", "mine", "--json").json
    assert (run["status"], run["reason"]) == ("cancelled", "no longer wanted")
    again = penstock("runs", "cancel", "mine")
    assert (again.code, "run 'mine' is already cancelled [run_error]" in again.err) == (2, True)


def test_retry_runs_the_failed_steps_again(penstock: Callable, project: Path) -> None:
    assert penstock("run", "fragile", "--key", "mine").code == 1
    (project / "fixed").touch()
    answer = penstock("runs", "retry", "mine")
    assert (answer.code, answer.lines) == (
        0,
        ["mine.repair.1.dlq -> mine.repair.1.redrive-1", "Retried 1 step."],
    )
    run = penstock("run", "fragile", "--key", "mine", "--json").json
    assert (run["status"], run["result"], run["steps"]["start"]["attempt"]) == ("completed", "whole", 1)


def test_a_retried_run_that_fails_again_can_be_retried_again(penstock: Callable, project: Path) -> None:
    penstock("run", "fragile", "--key", "mine")
    penstock("runs", "retry", "mine")
    assert penstock("run", "fragile", "--key", "mine").code == 1
    (project / "fixed").touch()
    assert penstock("runs", "retry", "mine", "--json").json["sent"] == {
        "mine.repair.1.redrive-1.dlq": "mine.repair.1.redrive-2"
    }
    assert penstock("run", "fragile", "--key", "mine").code == 0


def test_retry_is_refused(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "good")
    assert "is completed, not failed" in penstock("runs", "retry", "good").err
    penstock("start", "fragile", "--key", "new")
    assert "is running and has no failed step to retry" in penstock("runs", "retry", "new").err


def test_a_step_without_a_dead_letter_is_retried_from_the_record(penstock: Callable, project: Path) -> None:
    penstock("run", "fragile", "--key", "bad")
    penstock("dlq", "discard", "bad.repair.1", "--yes")
    assert penstock("runs", "retry", "bad").lines[0] == "bad.repair.1 -> bad.repair.1.redrive-1"
    (project / "fixed").touch()
    assert "whole" in penstock("run", "fragile", "--key", "bad").out


def test_replay_starts_a_new_run_with_the_recorded_input(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "mine", "--input", '"Ada"')
    for warning in ("", "Run again already exists; nothing was started.\n"):
        answer = penstock("runs", "replay", "mine", "--key", "again")
        assert (answer.out, answer.err) == ("again\n", warning)
    assert "Hello, Ada!" in penstock("run", "greet", "--key", "again").out
    other = penstock("runs", "replay", "mine", "--input", '"Bob"', "--json").json
    assert other["replayOf"] == "mine"
    assert penstock("runs", "show", other["id"], "--json").json["input"] == "Bob"


def test_a_redacted_input_cannot_be_replayed(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "mine", "--input", '{"name": "Ada", "password": "hush"}')
    answer = penstock("runs", "replay", "mine")
    assert (answer.code, "secrets redacted; pass the input with --input [run_error]" in answer.err) == (2, True)
    assert penstock("runs", "replay", "mine", "--input", '{"name": "Ada"}').code == 0


def test_emit_to_a_run_starts_its_steps(penstock: Callable) -> None:
    penstock("start", "listens", "--key", "mine")
    for text in ("Emitted paid to run mine.\n", "Nothing was emitted: key 'payment-1' was used before.\n"):
        answer = penstock("emit", "paid", "--data", '{"amount": 5}', "--run", "mine", "--key", "payment-1")
        assert (answer.code, answer.out) == (0, text)
    assert penstock("run", "listens", "--key", "mine", "--json").json["result"] == "thanks for 5"
    assert "[run_closed]" in penstock("emit", "paid", "--run", "mine").err


def test_emit_globally(penstock: Callable) -> None:
    assert penstock("emit", "upload.received").out == "Emitted upload.received (global).\n"
    assert penstock("emit", "shop.opened", "--data", "1", "--json").json["data"] == 1
    assert "shop.opened" in penstock("events", "nq:global").out
    assert "[bad_emit]" in penstock("emit", "step.done").err


def test_a_key_emits_once(penstock: Callable) -> None:
    answers = [
        penstock("emit", "paid", "--data", '{"n": 1, "token": "hush"}', "--key", "k", "--json") for _ in range(2)
    ]
    assert [(answer.code, answer.json["emitted"]) for answer in answers] == [(0, True), (0, False)]
    assert answers[0].json["data"] == {"n": 1, "token": "[redacted]"}
    assert penstock("emit", "paid", "--key", "k").out == "Nothing was emitted: key 'k' was used before.\n"
    assert len(penstock("events", "nq:global", "--json").lines) == 1


def test_replay_of_a_flow_that_declares_a_key(penstock: Callable, project: Path) -> None:
    (project / "workers" / "bill.py").write_text(BILL)
    penstock("run", "bill", "--input", "7")
    ids = ["bill-7", *(penstock("runs", "replay", "bill-7").out.strip() for _ in range(2))]
    assert len(set(ids)) == 3
    lines = penstock("runs", "--flow", "bill", "--json").lines
    assert sorted(json.loads(line)["id"] for line in lines) == sorted(ids)
    assert penstock("run", "bill", "--key", ids[1], "--json").json["result"] == 7


def test_run_with_a_declared_key_that_was_used(penstock: Callable, project: Path) -> None:
    (project / "workers" / "bill.py").write_text(BILL)
    assert penstock("run", "bill", "--input", "7").err == ""
    again = penstock("run", "bill", "--input", "7", "--json")
    assert (again.json["id"], again.err) == ("bill-7", "Run bill-7 has already ended.\n")


def test_tail_in_a_pipe_prints_events(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "mine")
    kinds = [json.loads(line)["kind"] for line in penstock("tail", "mine", "--json").lines]
    assert (kinds[0], kinds[-1]) == ("flow.started", "flow.completed")
    assert penstock("tail", "nope").code == 2


def test_tail_on_a_terminal_draws_a_timeline(terminal: type, penstock: Callable, project: Path) -> None:
    penstock("run", "greet", "--key", "mine", "--input", '"Ada"')
    screen = terminal("tail", "mine")
    assert screen.end() == 0
    assert "━" in screen.seen
    assert "Hello, Ada!" in screen.seen


def test_cancel_asks_on_a_terminal(terminal: type, penstock: Callable) -> None:
    penstock("start", "greet", "--key", "mine")
    screen = terminal("runs", "cancel", "mine")
    screen.until(lambda: "permanently? [y/N]" in screen.seen)
    screen.type("n\n")
    assert screen.end() == 1
    assert "Nothing was done." in screen.seen
    assert penstock("runs", "show", "mine", "--json").json["status"] == "running"
    screen = terminal("runs", "cancel", "mine", "--yes")
    assert screen.end() == 0


def test_lists_are_tables_on_a_terminal(terminal: type, penstock: Callable) -> None:
    penstock("run", "greet", "--key", "mine")
    screen = terminal("runs", "list")
    assert screen.end() == 0
    assert "flow" in screen.seen
    assert "\x1b[32mcompleted" in screen.seen


def test_dry_runs_of_failed_runs_and_jobs(penstock: Callable) -> None:
    penstock("run", "fragile", "--key", "mine")
    letter = penstock("dlq", "list", "fragile", "--json").json
    show = ("--dry-run", "--json")
    before = penstock("events", "mine", "--json").out, penstock("dlq", "list", "fragile", "--json").out
    replayed = penstock("runs", "replay", "mine", "--key", "again", *show).json
    assert [event["kind"] for event in replayed["events"]] == ["flow.started"]
    for ways in ([letter["id"]], ["--all", "fragile"], ["--group", letter["group"]]):
        preview = penstock("dlq", "redrive", *ways, *show).json
        assert ([job["run"] for job in preview["jobs"]], preview["removedJobs"]) == (["mine"], [letter["id"]])
    assert (penstock("events", "mine", "--json").out, penstock("dlq", "list", "fragile", "--json").out) == before
    moved = penstock("runs", "replay", "mine", "--if-version", "1")
    assert (moved.code, "[run_moved]" in moved.err) == (2, True)
    misused = penstock("dlq", "redrive", "--all", "fragile", "--if-version", "1")
    assert (misused.code, "can only be used with an ID" in misused.err) == (2, True)


MAIL = """
from penstock import job

@job(queue="mail")
def send(input): ...
"""


def test_dry_runs_of_plain_jobs(project: Path, penstock: Callable) -> None:
    (project / "workers" / "mail.py").write_text(MAIL)
    penstock("enqueue", "mail", "--key", "letter", "--delay", "1h")
    preview = penstock("jobs", "cancel", "letter", "--dry-run").lines
    assert preview == [
        "event    job.cancelled  (nq:queue:mail)",
        "job      letter  cancelled",
        "Job letter has attempt 0; nothing was written.",
    ]
    assert penstock("jobs", "retry", "letter", "--dry-run").lines[0] == "Nothing would be written."
    moved = penstock("jobs", "cancel", "letter", "--if-attempt", "2")
    assert (moved.code, "[run_moved]" in moved.err) == (2, True)
    assert penstock("jobs", "cancel", "letter", "--if-attempt", "0").out == "Job letter is cancelled.\n"
    assert penstock("jobs", "retry", "letter", "--dry-run").lines[0] == "job      letter  made due"


STATEFUL = """
from penstock import Context, flow

@flow("stateful")
async def stateful(input, ctx: Context):
    await ctx.state.set("phase", "first")
    await ctx.wait.time(0.01)
    await ctx.state.set("phase", "second")
    await ctx.state.set("more", {"n": 1})
"""


def test_show_at_an_event_has_the_state_as_of_that_event(project: Path, penstock: Callable) -> None:
    (project / "workers" / "stateful.py").write_text(STATEFUL)
    penstock("run", "stateful", "--key", "mine")
    events = penstock("events", "mine", "--json").out.splitlines()
    first = next(event for event in map(json.loads, events) if event["kind"] == "state.set")
    assert [line for line in penstock("runs", "show", "mine").lines if line.startswith("state ")] == [
        "state phase second",
        'state more {"n":1}',
    ]
    then = penstock("runs", "show", "mine", "--at", first["id"])
    assert [line for line in then.lines if line.startswith("state ")] == ["state phase first"]
    assert then.lines[0].startswith("stateful mine running")
    assert penstock("runs", "show", "mine", "--at", first["id"], "--json").json["state"] == {"phase": "first"}


def test_bulk_counts_first_and_then_acts(penstock: Callable) -> None:
    for n in range(3):
        penstock("start", "greet", "--key", f"g-{n}", "--tag", f"shop={'a' if n else 'b'}")
    counted = penstock("runs", "bulk", "cancel", "--tag", "shop=a", "--dry-run")
    assert counted.out == "The filter selects 2 runs; nothing was done.\n"
    done = penstock("runs", "bulk", "cancel", "--tag", "shop=a", "--reason", "recall", "--json").json
    assert (done["matched"], sorted(done["changed"]), done["refused"]) == (2, ["g-1", "g-2"], {})
    assert penstock("runs", "show", "g-1", "--json").json["reason"] == "recall"
    assert penstock("runs", "show", "g-0", "--json").json["status"] != "cancelled"
    refused = penstock("runs", "bulk", "cancel")
    assert (refused.code, "a bulk cancel needs a filter" in refused.err) == (2, True)


def test_bulk_reports_refused_runs(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "done")
    answer = penstock("runs", "bulk", "retry", "--flow", "greet", "--status", "completed")
    assert (answer.code, answer.out) == (1, "Retry: 0 of 1 run.\n")
    assert "Run done was refused: run 'done' is completed, not failed" in answer.err


def test_next_times_of_a_schedule(penstock: Callable) -> None:
    penstock("schedules", "add", "tick", "--flow", "greet", "--every", "1h")
    lines = penstock("schedules", "next", "tick", "--count", "3").out.splitlines()
    assert (lines[0].strip(), len(lines)) == ("at", 4)
    penstock("schedules", "pause", "tick")
    assert "has no next time" in penstock("schedules", "next", "tick").err


def test_runs_and_jobs_with_a_correlation_id(project: Path, penstock: Callable) -> None:
    (project / "workers" / "mail.py").write_text(
        MAIL.replace("...", "ctx.log('sent')").replace("(input)", "(input, ctx)")
    )
    penstock("start", "greet", "--key", "mine", "--correlation-id", "basket-7")
    penstock("start", "greet", "--key", "other")
    assert penstock("runs", "list", "--correlation-id", "basket-7", "--json").json["id"] == "mine"
    assert penstock("events", "mine", "--json").json["correlationId"] == "basket-7"
    penstock("enqueue", "mail", "--key", "letter", "--correlation-id", "basket-7")
    assert penstock("events", "nq:queue:mail", "--json").json["correlationId"] == "basket-7"


def test_logs_of_a_plain_job_by_its_id_alone(project: Path, penstock: Callable) -> None:
    (project / "workers" / "mail.py").write_text(MAIL)
    penstock("enqueue", "mail", "--key", "letter")
    answer = penstock("logs", "letter")
    assert (answer.code, answer.err) == (0, "Job letter has no log lines.\n")
    assert "no run with id 'none'" in penstock("logs", "none").err
