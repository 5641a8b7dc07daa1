"""A trigger's URL is right where a server is configured: `penstock serve --worker`, `public_url`, `waits token`."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

ASK = """
from pathlib import Path
from penstock import Context, flow

@flow("ask")
async def ask(question, ctx: Context):
    answer = await ctx.wait.trigger("answer", timeout="1h")
    await ctx.run("send", Path("url").write_text, answer.url)
    Path("sent").touch()
    text = await answer.wait()
    Path("answered").write_text(text)
    return text
"""


@pytest.fixture
def port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def post(url: str, data: object) -> dict:
    request = urllib.request.Request(url, json.dumps(data).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def test_serve_answers_the_url_of_its_own_worker(
    penstock: Callable, child: Callable, project: Path, port: int, wait_for_file: Callable
) -> None:
    (project / "workers" / "ask.py").write_text(ASK)
    penstock("start", "ask", "--key", "tea", "--input", '"Tea?"')
    server = child("serve", "--worker", "--port", str(port))
    server.wait_for_output("Stop with Ctrl-C.")
    wait_for_file(project / "sent")
    url = (project / "url").read_text()
    assert url.startswith(f"http://127.0.0.1:{port}/api/triggers/t-")
    assert post(url, "yes")["run"] == "tea"
    wait_for_file(project / "answered")
    server.signal(signal.SIGTERM)
    ended = server.end()
    assert f"triggers  http://127.0.0.1:{port}/api/triggers/TOKEN; set PENSTOCK_PUBLIC_URL=" in ended.out


@pytest.mark.parametrize(
    ("public_url", "shown"),
    [("", "http://127.0.0.1:"), ("https://hr.test", "https://hr.test/api/triggers/TOKEN\n")],
)
def test_serve_shows_where_triggers_are_fired(
    child: Callable, monkeypatch: pytest.MonkeyPatch, public_url: str, shown: str
) -> None:
    monkeypatch.setenv("PENSTOCK_PUBLIC_URL", public_url)
    server = child("serve", "--port", "0")
    server.wait_for_output("Stop with Ctrl-C.")
    server.signal(signal.SIGTERM)
    assert f"triggers  {shown}" in server.end().out


@pytest.mark.parametrize(
    ("public_url", "note"), [("", "Its path is /api/"), ("https://hr.test", "As a URL: https://hr.test/api/")]
)
def test_a_token_in_a_terminal_comes_with_its_url(
    penstock: Callable, terminal: Callable, project: Path, monkeypatch: pytest.MonkeyPatch, public_url: str, note: str
) -> None:
    monkeypatch.setenv("PENSTOCK_PUBLIC_URL", public_url)
    (project / "workers" / "ask.py").write_text(ASK)
    penstock("start", "ask", "--key", "tea", "--input", '"Tea?"')
    worker = terminal("worker")
    worker.until((project / "sent").exists)
    worker.press_ctrl_c()
    worker.end()
    token = terminal("waits", "token", penstock("waits", "--json").json["id"])
    assert token.end() == 0
    assert f"{note}triggers/t-" in token.seen
    assert "`penstock serve` answers it" in token.seen
