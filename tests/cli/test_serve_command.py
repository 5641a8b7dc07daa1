"""`penstock serve`: its settings, and several namespaces."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import BadAddress
from penstock.http.server import bind


def status(url: str, token: str | None = None) -> int:
    headers = {"authorization": f"Bearer {token}"} if token is not None else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code


def test_host_and_port_are_settings(
    child: Callable, penstock: Callable, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "penstock.toml").write_text('port = 0\nhost = "localhost"\nheartbeat = "1s"\nbuffer_limit = 5000\n')
    server = child("serve", "--json")
    server.wait_for_output('"address"')
    address = json.loads(server._output[-1])["address"]
    assert address.startswith("http://localhost:")
    assert status(f"{address}/health") == 200
    server.signal(signal.SIGTERM)
    assert server.end().code == 0
    monkeypatch.setenv("PENSTOCK_TOKEN", "pst_secret")
    rows = {row["setting"]: row["value"] for row in map(json.loads, penstock("settings", "--json").lines)}
    assert (rows["port"], rows["heartbeat"], rows["buffer_limit"]) == (0, 1000, 5000)
    assert rows["token"] == "[redacted]"


def test_several_namespaces(child: Callable, penstock: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "sqlite:///{namespace}.db"
    monkeypatch.setenv("PENSTOCK_NAMESPACE", "acme")
    token = penstock("tokens", "add", "ada", "--url", url, "--json").json["text"]
    monkeypatch.delenv("PENSTOCK_NAMESPACE")
    server = child("serve", "--port", "0", "--json", "--namespaces", "acme,globex", "--url", url)
    server.wait_for_output('"address"')
    shown = json.loads(server._output[-1])
    address = shown["address"]
    assert shown["namespaces"] == ["acme", "globex"]
    assert status(f"{address}/api/_queue", token) == 200
    assert status(f"{address}/ns/globex/api/_queue") == 401
    assert status(f"{address}/ns/globex/api/_queue", token) == 404
    assert status(f"{address}/ns/other/api/_queue") == 404
    server.signal(signal.SIGTERM)
    assert server.end().code == 0


def test_namespaces_need_stores_of_their_own(penstock: Callable) -> None:
    answer = penstock("serve", "--namespaces", "a,b", "--url", "sqlite:///one.db")
    assert answer.code == 2
    assert "require a URL with {namespace}" in answer.err


def test_an_address_belongs_to_one_process() -> None:
    """Two sockets that only bind it could both have it; the second would fail when it starts to serve."""
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(BadAddress, match=f"cannot listen on 127.0.0.1:{port}"):
            bind("127.0.0.1", port)


def test_another_address_without_a_token_is_refused(penstock: Callable) -> None:
    answer = penstock("serve", "--host", "0.0.0.0", "--port", "0", "--url", "sqlite:///shop.db")
    assert answer.code != 0
    assert "[bad_address]" in answer.err
    assert "penstock tokens add" in answer.err
