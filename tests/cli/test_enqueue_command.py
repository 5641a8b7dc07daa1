"""`penstock enqueue` adds a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

JOBS = """
from penstock import job

@job(queue="pictures")
def resize(picture):
    return picture

@job(queue="mail", name="send")
def send_mail(mail):
    return mail

@job(queue="mail", name="check", input_schema={"type": "object"})
def check_mail(mail):
    return mail
"""


@pytest.fixture(autouse=True)
def _workers(project: Path) -> None:
    (project / "workers" / "jobs.py").write_text(JOBS)


def test_it_adds_a_job_and_prints_its_id(penstock: Callable) -> None:
    answer = penstock("enqueue", "pictures", "--input", '{"width": 8}', "--priority", "3", "--delay", "1h")
    assert (answer.code, answer.err) == (0, "")
    job = penstock("jobs", "show", answer.out.strip(), "--json").json
    assert (job["queue"], job["state"], job["priority"], job["input"]) == ("pictures", "delayed", 3, {"width": 8})


def test_by_the_name_of_the_job(penstock: Callable) -> None:
    assert penstock("enqueue", "resize", "--json").json["queue"] == "pictures"
    id = penstock("enqueue", "send", "--json").json["id"]
    assert penstock("jobs", "show", id, "--json").json["name"] == "send"
    id = penstock("enqueue", "mail", "--name", "check", "--input", "{}", "--json").json["id"]
    assert penstock("jobs", "show", id, "--json").json["name"] == "check"


def test_the_same_key_is_added_once(penstock: Callable) -> None:
    assert penstock("enqueue", "pictures", "--key", "mine", "--json").json["existing"] is False
    again = penstock("enqueue", "pictures", "--key", "mine", "--json")
    assert again.json == {"id": "mine", "queue": "pictures", "existing": True}
    assert again.err == "Job mine already exists; nothing was added.\n"


def test_jobs_with_an_order_key_wait_for_each_other(penstock: Callable) -> None:
    ids = [penstock("enqueue", "pictures", "--order-key", "ada").out.strip() for _ in range(2)]
    shown = penstock("jobs", "show", ids[1], "--json").json
    assert (shown["state"], shown["orderKey"], shown["waitsFor"]) == ("held", "ada", ids[0])
    assert f"waitsFor    {ids[0]}" in penstock("jobs", "show", ids[1]).out
    refused = penstock("jobs", "promote", ids[1])
    assert f"it waits for job '{ids[0]}', which has the same order key 'ada'" in refused.err
    assert penstock("schedules", "add", "daily", "--queue", "pictures", "--every", "1h", "--order-key", "x").code == 0
    assert penstock("schedules", "list", "--json").json["orderKey"] == "x"


@pytest.mark.parametrize(
    ("args", "message", "code"),
    [
        (["pictres"], "no job or job queue named 'pictres'; did you mean 'pictures'?", "queue"),
        (
            ["greet"],
            "'greet' is a queue of steps: use `penstock start FLOW` to start a run; known job queues: ",
            "queue",
        ),
        (
            ["mail"],
            "the handlers of queue 'mail' process only jobs with their own name; pass --name check (known names: check, send)",
            "job",
        ),
        (["zzz"], "; known job queues: mail, pictures; known jobs: ", "queue"),
        (["pictures", "--input", "{"], "the value of --input is not valid JSON", "not_json"),
        (["pictures", "--delay", "-5s"], "invalid duration '-5s'", "usage"),
        (["pictures", "--key", "a b"], "invalid job id 'a b'", "bad_id"),
        (
            ["pictures", "--priority", "-1"],
            "priority must be a whole number from 0 (first) to 2,097,151, got -1",
            "bad_priority",
        ),
        (["mail", "--name", "check", "--input", "7"], "the input of 'check' does not match", "schema_violation"),
        (
            ["pictures", "--url", ":memory:"],
            "is in the memory of this command: no other process sees it, and it is lost at the end. Use a file",
            "config_error",
        ),
    ],
)
def test_errors(penstock: Callable, args: list[str], message: str, code: str) -> None:
    answer = penstock("enqueue", *args)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert answer.err.endswith(f"{code}]\n")


def test_an_unknown_job_name_is_warned_about(penstock: Callable) -> None:
    answer = penstock("enqueue", "mail", "--name", "chek")
    assert answer.code == 0
    assert "job 'chek' in queue 'mail' has no handler in this process; did you mean 'check'?" in answer.err


def test_job_actions_have_a_dry_run(penstock: Callable) -> None:
    id = penstock("enqueue", "pictures", "--delay", "1h").out.strip()
    for action, expected in (("promote", "made due"), ("cancel", "cancelled"), ("remove", "removed")):
        assert f"job      {id}  {expected}" in penstock("jobs", action, id, "--dry-run").out
    assert penstock("jobs", "retry", id, "--dry-run").lines[0] == "Nothing would be written."
    assert penstock("jobs", "show", id, "--json").json["state"] == "delayed"
