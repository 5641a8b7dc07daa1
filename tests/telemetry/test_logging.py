"""Log lines in the formats `pretty` and `json`, with run, step and attempt."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import App, Context, SyncApp, flow, job
from penstock.telemetry.logging import AttemptFilter, LineHandler, configure, restore_loggers

OWN = logging.getLogger("shop.orders")


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    engine = logging.getLogger("penstock")
    engine.propagate = True
    engine.handlers.clear()
    with restore_loggers("", "penstock", "shop.orders"):
        yield
    OWN.handlers.clear()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@flow("talk", queue="talks")
async def talk(ctx: Context) -> None:
    ctx.log("hello", order=7, api_key="abc")
    OWN.info("by hand, password=hunter2")
    await asyncio.gather(asyncio.create_task(later()), asyncio.to_thread(OWN.info, "from a thread"))


async def later() -> None:
    OWN.info("from a task")


@flow("talk-in-a-thread")
def talk_in_a_thread(ctx: Any) -> None:
    OWN.info("from a handler's thread")


async def run(app: App, *flows: Any) -> list[str]:
    runs = [await app.start(flow, key=flow.__name__) for flow in flows]
    for one in runs:
        await app.runs.wait(one, timeout=20)
    return runs


async def test_json_lines_have_run_step_and_attempt() -> None:
    stream = io.StringIO()
    configure("info", "json", logger="", stream=stream)
    async with App(":memory:", handlers=[talk, talk_in_a_thread]) as app, app.workers.background():
        await run(app, talk, talk_in_a_thread)
    OWN.info("outside")
    by_message = {line["msg"]: line for line in lines(stream)}
    hello = by_message["hello"]
    assert hello["logger"] == "penstock.handler"
    assert hello["fields"] == {"order": 7, "api_key": "[redacted]"}
    about = {"run": "talk", "step": "talk", "job": hello["job"], "attempt": 1, "queue": "talks"}
    for message in ("hello", "by hand, password=[redacted]", "from a task", "from a thread"):
        assert {key: by_message[message][key] for key in about} == about
        assert list(by_message[message])[:4] == ["ts", "level", "logger", "msg"]
        assert by_message[message]["ts"].endswith("Z")
        assert by_message[message]["level"] == "info"
    assert by_message["from a handler's thread"]["run"] == "talk_in_a_thread"
    assert by_message["outside"].keys() == {"ts", "level", "logger", "msg"}


async def test_lines_of_a_plain_job_and_its_second_attempt() -> None:
    stream = io.StringIO()

    @job(queue="mail", retry={"attempts": 2, "backoff": {"delay": "1ms"}})
    async def send(ctx: Context) -> None:
        ctx.log.error("trying")
        if ctx.attempt == 1:
            raise ConnectionError

    configure("info", "json", stream=stream)
    async with App(":memory:", handlers=[send]) as app, app.workers.background():
        id = await app.enqueue("mail", key="m-1")
        await app.jobs.result(id, timeout=20)
    by_message = [line for line in lines(stream) if line["msg"] == "trying"]
    assert [(line["job"], line["attempt"], line["queue"]) for line in by_message] == [
        ("m-1", 1, "mail"),
        ("m-1", 2, "mail"),
    ]
    assert "run" not in by_message[0]


def test_an_error_is_one_line_of_json() -> None:
    stream = io.StringIO()
    configure("info", "json", stream=stream)
    try:
        raise ValueError("cannot reach redis://u:hunter2@host")
    except ValueError:
        logging.getLogger("penstock.worker").exception("went wrong")
    logging.getLogger("penstock").warning("here", stack_info=True)
    first, second = lines(stream)
    assert first["msg"] == "went wrong"
    assert first["error"].startswith("Traceback")
    assert "hunter2" not in stream.getvalue()
    assert first["error"].endswith("ValueError: cannot reach redis://u:[redacted]@host")
    assert "stack_info=True" in second["error"]


def test_pretty_lines() -> None:
    stream = io.StringIO()
    configure("debug", "pretty", stream=stream)
    log = logging.getLogger("penstock.worker")
    log.info("plain")
    log.warning("careful, %s", "you")
    log.debug("in a run", extra={"run": "r-1", "step": "charge", "attempt": 2})
    log.error("in a job", extra={"job": "j-1", "attempt": 1})
    try:
        raise ValueError("token=abc")
    except ValueError:
        log.exception("oh")
    assert stream.getvalue().splitlines()[:5] == [
        "plain",
        "warning: careful, you",
        "debug: r-1 charge attempt 2: in a run",
        "error: j-1: in a job",
        "error: oh",
    ]
    assert stream.getvalue().endswith("ValueError: token=[redacted]\n")
    assert "\x1b" not in stream.getvalue()


def test_colours_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    configure("info", stream=stream)
    logging.getLogger("penstock").warning("careful", extra={"run": "r-1"})
    assert stream.getvalue() == "\x1b[33mwarning: \x1b[0m\x1b[2mr-1: \x1b[0mcareful\n"


@pytest.mark.spec("000-3.9", "000-3.10")
def test_configuring_again_replaces_the_configuration() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("info", stream=first)
    configure("error", "json", stream=second)
    logging.getLogger("penstock").warning("not shown")
    logging.getLogger("penstock").error("shown")
    assert first.getvalue() == ""
    assert [line["msg"] for line in lines(second)] == ["shown"]


def test_the_current_stderr_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info")
    before = sys.stderr
    sys.stderr = other = io.StringIO()
    try:
        logging.getLogger("penstock").info("there")
    finally:
        sys.stderr = before
    logging.getLogger("penstock").info("here")
    assert (other.getvalue(), capsys.readouterr().err) == ("there\n", "here\n")


def test_a_record_that_cannot_be_formatted_does_not_raise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = io.StringIO()
    configure("info", stream=stream)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    logging.getLogger("penstock").info("%d", "no number")
    assert "Logging error" in capsys.readouterr().err


@pytest.mark.spec("000-1.4", "000-2.4")
async def test_a_custom_logging_handler() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(run)s/%(step)s#%(attempt)s %(message)s"))
    handler.addFilter(AttemptFilter())
    OWN.addHandler(handler)
    OWN.setLevel("INFO")
    async with App(":memory:", handlers=[talk]) as app, app.workers.background():
        await run(app, talk)
    OWN.info("outside")
    assert stream.getvalue().splitlines()[0] == "talk/talk#1 by hand, password=hunter2"  # yours: you decide
    assert stream.getvalue().splitlines()[-1] == "None/None#None outside"


async def test_ctx_log_is_redacted_for_every_logging_handler(caplog: pytest.LogCaptureFixture) -> None:
    @flow("careless")
    async def careless(ctx: Context) -> None:
        ctx.log.warning("password=hunter2", token="abc")

    async with App(":memory:", handlers=[careless]) as app, app.workers.background():
        await run(app, careless)
    record = next(r for r in caplog.records if r.name == "penstock.handler")
    assert record.getMessage() == "password=[redacted]"
    assert record.__dict__["fields"] == {"token": "[redacted]"}
    assert (record.__dict__["run"], record.__dict__["queue"]) == ("careless", "default")


def test_an_app_does_not_configure_logging() -> None:
    code = """
import asyncio, logging, os
os.environ["PENSTOCK_LOG"] = "debug"
from penstock import App
async def use():
    async with App(":memory:", handlers=[]):
        pass
before = logging.getLogger().level
asyncio.run(use())
root, ours = logging.getLogger(), logging.getLogger("penstock")
print(root.handlers, root.level == before, ours.handlers, ours.level, ours.propagate)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[] True [] 0 True"


@pytest.mark.spec("000-1.4", "000-3.9", "000-3.10")
def test_an_app_with_log_configures_logging() -> None:
    ours, root = logging.getLogger("penstock"), logging.getLogger()
    before = root.handlers[:], root.level
    with SyncApp(":memory:", handlers=[], log="info", log_format="json", redact=["iban"]):
        handlers = [one for one in ours.handlers if isinstance(one, LineHandler)]
        assert (len(handlers), ours.level) == (1, logging.INFO)
        record = ours.makeRecord("penstock", logging.INFO, "f", 1, "iban=DE1", (), None)
        assert json.loads(handlers[0].format(record))["msg"] == "iban=[redacted]"
    assert (root.handlers, root.level) == before


def test_restore_loggers() -> None:
    logger = logging.getLogger("penstock")
    before = logger.level, logger.propagate, logger.handlers[:]
    with restore_loggers("penstock"):
        configure("debug")
        assert logger.isEnabledFor(logging.DEBUG)
    assert (logger.level, logger.propagate, logger.handlers) == before
    assert not logger.isEnabledFor(logging.DEBUG)


@pytest.mark.parametrize("text", ["\x1b[31mred\x07", "paid\nwarning: forged", "\x9b31m", "\u202egpj.exe", "\r\x00"])
def test_control_characters_are_escaped(text: str) -> None:
    shown = io.StringIO()
    configure("info", "pretty", logger="controls", stream=shown)
    logger = logging.getLogger("controls")
    escaped = text.encode("unicode_escape").decode()
    logger.info("got %s", text, extra={"run": text, "redacted": True, "fields": {"field": text}})
    assert shown.getvalue() == f"{escaped}: got {escaped} field={escaped}\n"


def test_a_traceback_has_lines_without_control_characters() -> None:
    shown = io.StringIO()
    configure("info", "pretty", logger="controls", stream=shown)
    try:
        raise ValueError("\x1b[31mred\x9b")
    except ValueError:
        logging.getLogger("controls").exception("failed")
    assert shown.getvalue().startswith("error: failed\nTraceback (most recent call last):\n  File")
    assert shown.getvalue().endswith("\nValueError: \\x1b[31mred\\x9b\n")


@pytest.mark.spec("000-4.2.6")
async def test_the_log_of_an_app(caplog: pytest.LogCaptureFixture) -> None:
    """It has the methods, the bound fields and the redaction of `ctx.log`, also before the App is open."""
    app = App(":memory:", handlers=[])
    with caplog.at_level(logging.INFO, "penstock.app"):
        app.log.debug("not shown")
        app.log.child(tenant="t-1", token="tok-77").warning("the bank is slow", ms=812)
        async with app:
            app.log("open", value=object)
        with SyncApp(":memory:", handlers=[]) as sync:
            sync.log.error("sync")
    lines = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert lines[:2] == [("penstock.app", "WARNING", "the bank is slow"), ("penstock.app", "INFO", "open")]
    assert caplog.records[0].fields == {"tenant": "t-1", "token": "[redacted]", "ms": 812}  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="unknown log level 'loud'"):
        app.log("x", "loud")
