"""`penstock runs pause|resume|fork`, `waits`, `fire`, `check`, and `doctor` on a run that waits."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import App
from penstock.testing.until import until

# Writes its token into a file.
ASKS = """
from pathlib import Path
from penstock import Context, flow

@flow("asks")
async def asks(order, ctx: Context):
    await ctx.{first}
    paid = await ctx.wait.event("paid", match={{"order": order}}, timeout="1h")
    trigger = await ctx.wait.trigger("approval", type="user")
    await ctx.run("save", Path("token").write_text, trigger.token)
    return [paid.data["by"], await trigger.wait()]
"""
FIRST = 'run("charge", Path("charged").touch)'


@pytest.fixture(autouse=True)
def _workers(project: Path) -> None:
    (project / "workers" / "asks.py").write_text(ASKS.format(first=FIRST))


def work_until(kind: str | None) -> None:
    """Work until the run has a wait of this kind, or has ended."""

    async def work() -> None:
        async with App(dir="workers") as app, app.workers.background():

            async def there() -> bool:
                if kind is None:
                    return (await app.store.run("mine")).closed  # type: ignore[union-attr]
                job: Any = await app.store.job("mine.asks.1")
                return job.state in ("suspended", "delayed") and bool(await app.waits.list(run="mine", kind=kind))

            await until(there, 30)

    asyncio.run(work())


@pytest.fixture
def waiting(penstock: Callable) -> None:
    """A run that waits for an event."""
    penstock("start", "asks", "--key", "mine", "--input", "7")
    work_until("event")


def test_pause_and_resume(penstock: Callable) -> None:
    penstock("start", "greet", "--key", "mine")
    assert penstock("runs", "pause", "mine", "--reason", "for lunch").out == "Run mine is paused.\n"
    assert penstock("runs", "show", "mine", "--json").json["status"] == "paused"
    assert penstock("runs", "--status", "paused", "--json").json["id"] == "mine"
    assert "it is paused (for lunch); `penstock runs resume mine` resumes it" in penstock("doctor", "mine").out
    again = penstock("runs", "pause", "mine")
    assert (again.code, "run 'mine' is already paused [run_error]" in again.err) == (2, True)
    assert penstock("runs", "resume", "mine", "--json").json == {"id": "mine", "paused": False}
    again = penstock("runs", "resume", "mine")
    assert (again.code, "run 'mine' is running, not paused" in again.err) == (2, True)
    assert penstock("runs", "pause", "nobody").code == 2


def test_waits_are_listed_and_explained(penstock: Callable, waiting: None) -> None:
    (line,) = penstock("waits", "--json").lines
    wait = json.loads(line)
    assert (wait["run"], wait["step"], wait["kind"], wait["event"], wait["match"]) == (
        "mine", "asks", "event", "paid", {"order": 7},
    )  # fmt: skip
    shown = penstock("waits", "list", "--run", "mine").lines
    assert shown[0].split() == ["id", "run", "step", "kind", "for", "since", "until"]
    assert 'paid {"order":7}' in shown[1]
    assert penstock("waits", "--kind", "trigger").err == "No pending waits.\n"
    assert penstock("waits", "--kind", "webhook").code == 2
    assert penstock("waits", "--run", "nobody").code == 2
    explained = penstock("doctor", "mine").out
    assert "step 'asks' has been waiting since " in explained
    assert ", until " in explained
    assert 'for event paid matching {"order":7}; `penstock emit paid --data \'{"order":7}\'` resolves it' in explained
    assert "… asks" in penstock("runs", "show", "mine").out
    assert 'for event paid {"order":7} until 20' in penstock("runs", "show", "mine").out


def test_waits_are_resolved_and_cancelled_by_hand(penstock: Callable, waiting: None) -> None:
    id = penstock("waits", "--json").json["id"]
    shown = penstock("waits", "show", id)
    assert {"state pending", "event paid"} <= {" ".join(line.split()) for line in shown.lines}
    options = ("--reason", "paid in cash", "--by", "ada")
    resolved = penstock("waits", "resolve", id, "--data", '{"order": 7, "by": "cash"}', *options)
    assert resolved.out == "Resolved. Run mine resumes.\n"
    again = penstock("waits", "resolve", id)
    assert (again.code, "[wait_settled]" in again.err) == (2, True)
    ended = penstock("waits", "show", id, "--json").json
    assert (ended["state"], ended["data"], ended["manual"]) == ("resolved", {"order": 7, "by": "cash"}, True)
    assert (ended["by"], ended["reason"]) == ("ada", "paid in cash")
    assert penstock("waits", "--run", "mine", "--state", "resolved", "--json").json["id"] == id
    work_until("trigger")
    trigger = penstock("waits", "--kind", "trigger", "--json").json["id"]
    assert penstock("waits", "cancel", trigger, "--json").json == {"id": trigger, "run": "mine"}
    listed = penstock("waits", "--state", "cancelled").lines
    assert listed[0].split()[-1] == "ended"
    assert listed[1].split()[0] == trigger
    unknown = penstock("waits", "show", "t-none")
    assert (unknown.code, "[unknown_wait]" in unknown.err) == (2, True)


def test_emit_and_fire_resolve_waits(penstock: Callable, project: Path, waiting: None) -> None:
    penstock("emit", "paid", "--data", '{"order": 7, "by": "ada"}')
    work_until("trigger")
    (trigger,) = penstock("waits", "--kind", "trigger", "--json").lines
    assert penstock("waits").lines[1].split()[:5] == [json.loads(trigger)["id"], "mine", "asks", "trigger", "approval"]
    id = json.loads(trigger)["id"]
    assert f"for its trigger 'approval' ({id}) to be fired" in penstock("doctor", "mine").out
    assert f"`penstock fire $(penstock waits token {id})` fires it" in penstock("doctor", "mine").out
    by_id = penstock("fire", id)
    assert (by_id.code, f"`penstock waits token {id}` creates a token" in by_id.err) == (2, True)
    created = penstock("waits", "token", id)
    assert (len(created.lines), created.lines[0].startswith(f"{id}.")) == (1, True)
    token = (project / "token").read_text()
    wrong = penstock("fire", token + "x")
    assert (wrong.code, "[unknown_trigger]" in wrong.err) == (2, True)
    wait = penstock("waits", "--kind", "trigger", "--json").json
    other = penstock("waits", "token", wait["id"], "--json").json
    assert other["url"] == f"/api/triggers/{other['token']}"
    assert penstock("fire", other["token"], "--data", '"yes"').out == "Fired. Run mine resumes.\n"
    used = penstock("fire", token)
    assert (used.code, "[trigger_used]" in used.err) == (2, True)
    work_until(None)
    assert penstock("runs", "show", "mine", "--json").json["result"] == ["ada", "yes"]


def test_a_signed_trigger_is_fired_where_its_secret_is_set(
    penstock: Callable, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = ASKS.format(first=FIRST).replace('type="user"', 'signed="BANK_SECRET"')
    (project / "workers" / "asks.py").write_text(signed)
    penstock("start", "asks", "--key", "mine", "--input", "7")
    penstock("emit", "paid", "--data", '{"order": 7, "by": "ada"}')
    work_until("trigger")
    id, token = penstock("waits", "--kind", "trigger", "--json").json["id"], (project / "token").read_text()
    assert f"`penstock fire --sign $(penstock waits token {id})` fires it" in penstock("doctor", "mine").out
    unsigned = penstock("fire", token, "--data", '"yes"')
    assert (unsigned.code, "run `penstock fire --sign` where BANK_SECRET is set [bad_signature]" in unsigned.err) == (
        2, True,
    )  # fmt: skip
    assert "BANK_SECRET, which is not set in this process" in penstock("fire", "--sign", token).err
    monkeypatch.setenv("BANK_SECRET", "too short")
    weak = penstock("fire", "--sign", token)
    assert (weak.code, "BANK_SECRET is a key of 9 bytes" in weak.err, "too short" in weak.err) == (2, True, False)
    monkeypatch.setenv("BANK_SECRET", "a secret of at least 24 bytes")
    assert penstock("fire", "--sign", token, "--data", '"yes"').out == "Fired. Run mine resumes.\n"
    work_until(None)
    assert penstock("runs", "show", "mine", "--json").json["result"] == ["ada", "yes"]


def test_a_waiting_run_is_exported_and_imported(penstock: Callable, project: Path, waiting: None) -> None:
    assert penstock("export", "mine", "saved.jsonl").code == 0
    other = ("--url", "sqlite:///other.db")
    assert penstock("import", "saved.jsonl", *other).code == 0
    assert len(penstock("waits", "--json", *other).lines) == 1


def test_fork(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "mine", "--input", '"Ada"')
    events = [json.loads(line) for line in penstock("events", "mine", "--json").lines]
    at = next(event["id"] for event in events if event["kind"] == "step.completed")
    for warning in ("", "Run again already exists; nothing was started.\n"):
        answer = penstock("runs", "fork", "mine", "--at", at, "--key", "again")
        assert (answer.out, answer.err) == ("again\n", warning)
    assert penstock("run", "greet", "--key", "again", "--json").json["result"] == "Hello, Ada!"
    assert penstock("runs", "show", "again", "--json").json["forkedFrom"] == "mine"
    wrong = penstock("runs", "fork", "mine", "--at", "1-1")
    assert (wrong.code, "[cannot_fork]" in wrong.err) == (2, True)
    end = penstock("runs", "fork", "mine", "--at", events[-1]["id"])
    assert (end.code, "no step was left to run after it; fork it at" in end.err) == (2, True)


def test_check(penstock: Callable, project: Path, waiting: None) -> None:
    good = penstock("check")
    assert (good.code, good.out) == (0, "Checked 1 open step of 1 open run: all can continue with this code.\n")
    assert "Warning: this re-executes handlers up to their last recorded call." in good.err
    (project / "workers" / "asks.py").write_text(ASKS.format(first='wait.time("1h", name="charge")'))
    bad = penstock("check")
    assert bad.code == 1
    assert "run mine, step asks: " in bad.out
    assert "charge#1 was ctx.run when it was recorded, and now it is ctx.wait.time" in bad.out
    assert bad.lines[-1] == "Checked 1 open step of 1 open run: 1 would fail or repeat work with this code."
    answer = penstock("check", "--json", "--flow", "asks")
    assert answer.code == bad.code
    found = answer.json
    assert (found["ok"], found["runs"], found["problems"][0]["code"]) == (False, 1, "non_determinism")
    assert answer.err.count("Warning: this re-executes handlers") == 1
    assert penstock("check", "--flow", "greet").code == 0
    assert penstock("check", "--flow", "grete").code == 2


def test_check_finds_a_renamed_call(penstock: Callable, project: Path, waiting: None) -> None:
    workers = project / "workers" / "asks.py"
    workers.write_text(workers.read_text().replace('"charge"', '"bill"'))
    answer = penstock("check", "--json")
    (problem,) = answer.json["problems"]
    assert (answer.code, problem["run"], problem["code"], problem["call"]) == (1, "mine", "call_added", "bill#1")
    assert problem["breaks"]


def test_check_fails_without_a_worker_file(penstock: Callable, project: Path, waiting: None) -> None:
    """The runs of a file that is not loaded cannot continue."""
    broken = project / "workers" / "broken.py"
    broken.write_text("import no_such_module\n")
    one = penstock("check")
    assert (one.code, one.lines[-1]) == (1, "1 problem with worker files: their runs cannot continue.")
    (project / "workers" / "worse.py").write_text("1 +\n")
    assert penstock("check").lines[-1] == "2 problems with worker files: their runs cannot continue."
    answer = penstock("check", "--json").json
    assert (answer["ok"], len(answer["files"])) == (False, 2)


def test_the_engines_own_queue_is_listed_with_all(penstock: Callable, waiting: None) -> None:
    assert not [line for line in penstock("queues").lines if line.startswith("penstock-events")]
    assert [line for line in penstock("queues", "--all").lines if line.startswith("penstock-events")]


def test_doctor_suggests_data_that_fits_the_schema_of_a_trigger(penstock: Callable, project: Path) -> None:
    schema = '{"type": "object", "properties": {"ok": {"type": "boolean"}, "by": {}}, "required": ["ok", "by"]}'
    (project / "workers" / "asks.py").write_text(
        "from penstock import flow\n\n@flow('asks')\nasync def asks(order, ctx):\n"
        f"    trigger = await ctx.wait.trigger('approval', schema={schema})\n    return await trigger.wait()\n"
    )
    penstock("start", "asks", "--key", "mine")
    work_until("trigger")
    (reason,) = penstock("doctor", "mine", "--json").json["reasons"]
    command, data = re.search(r"`penstock fire \$\((.*)\) --data '(.*)'` fires it", reason).groups()  # type: ignore[union-attr]
    token = penstock(*command.split()[1:]).lines[0]
    assert penstock("fire", token).code == 2, "without data it does not match"
    assert penstock("fire", token, "--data", data).code == 0


EXPIRES = """
from penstock import flow

@flow("asks")
async def asks(order, ctx):
    paid = await ctx.wait.event("paid", timeout="{timeout}")
    return paid.data
"""


def test_doctor_does_not_advise_to_retry_an_expired_wait(penstock: Callable, project: Path) -> None:
    (project / "workers" / "asks.py").write_text(EXPIRES.format(timeout="10ms"))
    penstock("run", "asks", "--key", "mine")
    end, failure = penstock("doctor", "mine", "--json").json["reasons"]
    assert "`penstock runs retry" not in end
    assert "`penstock runs replay mine` starts a new run with the same input" in end
    assert failure.count("asks.py") == 1
    assert penstock("doctor", "mine").out.count("Run mine") == 1
    (project / "workers" / "asks.py").write_text(EXPIRES.format(timeout="1h"))
    penstock("runs", "retry", "mine")
    work_until(None)
    assert penstock("runs", "show", "mine", "--json").json["status"] == "failed", "a retry finds the expired wait"
    fork = re.search(r"`penstock (runs fork mine --at \S+)` repeats only that step", end)
    assert fork is not None
    assert penstock(*fork[1].split(), "--key", "again").code == 0
    penstock("emit", "paid", "--data", '"ada"')
    assert penstock("run", "asks", "--key", "again", "--json").json["result"] == "ada"


def test_check_accepts_a_new_call(penstock: Callable, project: Path, waiting: None) -> None:
    workers = project / "workers" / "asks.py"
    more = 'await ctx.run("notify", print)\n    ctx.emit("asked")\n    paid = '
    workers.write_text(workers.read_text().replace("paid = ", more, 1))
    assert penstock("check").code == 1
    assert penstock("check", "--accept", "other").code == 1
    answer = penstock("check", "--accept", "notify")
    assert answer.code == 0
    assert "notify#1 has no record and comes before" in answer.out
    assert "[call_added, accepted]" in answer.out
    (problem,) = penstock("check", "--accept", "notify", "--json").json["problems"]
    assert (problem["is_accepted"], problem["breaks"]) == (True, False)
    workers.write_text(workers.read_text().replace('await ctx.run("notify", print)', "pass"))
    assert penstock("check").code == 1
    assert penstock("check", "--accept", "asked").code == 0


@pytest.mark.spec("003-3.7")
def test_webhooks_are_added_and_called(penstock: Callable, waiting: None) -> None:
    added = penstock("webhooks", "add", "bank", "--event", "paid", "--method", "PUT")
    assert added.out == "Added webhook bank: it emits paid.\n"
    call = (
        "webhooks",
        "receive",
        "bank",
        "--method",
        "PUT",
        "--data",
        '{"order": 7}',
        "--header",
        "idempotency-key: k",
    )
    assert penstock(*call).out == "Emitted paid (global).\n"
    assert penstock(*call, "--json").json["isNew"] is False
    assert penstock("webhooks", "--json").json["path"] == "bank"
    assert penstock("events", "nq:webhook:bank", "--json").json["kind"] == "webhook.received"
    wrong = penstock("webhooks", "receive", "bank")
    assert (wrong.code, "[webhook_method]" in wrong.err) == (2, True)
    assert penstock("webhooks", "remove", "bank").out == "Removed webhook bank.\n"
    gone = penstock("webhooks", "remove", "bank")
    assert (gone.code, "[unknown_webhook]" in gone.err) == (2, True)


def test_dry_runs_write_nothing(penstock: Callable, waiting: None) -> None:
    shown = penstock("runs", "cancel", "mine", "--dry-run").lines
    assert [line.split()[:2] for line in shown[:2]] == [["event", "step.await.cancelled"], ["event", "flow.cancelled"]]
    preview = penstock("runs", "cancel", "mine", "--dry-run", "--json").json
    assert (preview["run"], preview["status"]) == ("mine", "cancelled")
    id = penstock("waits", "--json").json["id"]
    resolved = penstock("waits", "resolve", id, "--dry-run", "--json").json
    assert resolved["waits"] == [{"id": id, "state": "resolved"}]
    assert penstock("emit", "paid", "--run", "mine", "--dry-run", "--json").json["events"][0]["kind"] == "paid"
    assert penstock("runs", "pause", "mine", "--dry-run", "--json").json["status"] == "paused"
    assert json.loads(penstock("runs", "--json").lines[0])["status"] == "waiting"
    refused = penstock("runs", "cancel", "mine", "--yes", "--if-version", str(preview["version"] + 1))
    assert (refused.code, "[run_moved]" in refused.err) == (2, True)
    assert penstock("runs", "cancel", "mine", "--yes", "--if-version", str(preview["version"])).code == 0
