"""The frames of tests/vectors/frames.json, and the conversations that every host must be able to have."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node_programs import node
from penstock.core.errors import PayloadTooLarge
from penstock.host.wire import Wire
from penstock.ports.frames import (
    HandlerFrame,
    Log,
    WorkerFrame,
    decode_handler_frame,
    decode_worker_frame,
    encode_frame,
)
from penstock.runners.node.describe import HOST, NODE_FLAGS
from penstock.runners.node.program import find_node

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "frames.json").read_text())
HANDLERS = Path(__file__).with_name("vector_handlers.py")
DECODERS = {"host": decode_handler_frame, "worker": decode_worker_frame}


@pytest.mark.parametrize("vector", VECTORS["frames"], ids=lambda one: one["frame"]["type"])
def test_frame_is_read_and_written(vector: dict[str, Any]) -> None:
    frame = DECODERS[vector["from"]](json.dumps(vector["frame"]))
    assert json.loads(encode_frame(frame)) == vector["frame"]


@pytest.mark.parametrize("vector", VECTORS["bad"], ids=lambda one: one["text"][:20])
def test_bad_frame_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        DECODERS[vector["from"]](vector["text"])


def test_every_type_has_a_vector() -> None:
    for sender, union in (("host", HandlerFrame), ("worker", WorkerFrame)):
        types = {frame.__struct_config__.tag for frame in union.__args__}
        assert {one["frame"]["type"] for one in VECTORS["frames"] if one["from"] == sender} == types


class HostProcess:
    """A host that the test speaks to as a worker does."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = self.command(theirs.fileno())
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()
        ours.settimeout(60)
        self._socket = ours
        self._lines = ours.makefile("rb")

    def command(self, fd: int) -> list[str]:
        return [sys.executable, "-m", "penstock.host", str(fd), "{}"]

    def send(self, frame: Any) -> None:
        self._socket.sendall(json.dumps(frame).encode() + b"\n")

    def receive(self) -> Any:
        return json.loads(self._lines.readline())

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
        self._process.wait()


@pytest.fixture(scope="module")
def host() -> Iterator[HostProcess]:
    host = HostProcess()
    assert host.receive()["type"] == "ready"
    yield host
    host.close()


@pytest.mark.spec("000-15.7", "000-6.6", "000-6.13", "000-6.14", "000-6.15")
@pytest.mark.parametrize("prefix", ["", "sync-"], ids=["async", "def"])
@pytest.mark.parametrize("vector", VECTORS["conversations"], ids=lambda one: one["name"])
def test_conversation(host: HostProcess, vector: dict[str, Any], prefix: str) -> None:
    name = prefix + vector["handler"]
    function = name.replace("-", "_")
    reference = {"name": name, "queue": "q", "file": str(HANDLERS), "function": function, "isAsync": not prefix}
    task = {"handler": reference, "kind": "job", "input": vector["input"], "job": "j", "queue": "q", "attempt": 1}
    converse(host, {**task, "scope": "j"}, vector["frames"])


def converse(host: HostProcess, task: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    host.send({"type": "run", "task": task})
    names: dict[str, Any] = {}
    for line in lines:
        if line["from"] == "worker":
            host.send(_fill(line["frame"], names))
        else:
            _compare(host.receive(), line["frame"], names)


class NodeHostProcess(HostProcess):
    """A host whose lines are pairs: it is spoken to with a number for each task."""

    number = 0

    def command(self, fd: int) -> list[str]:
        found = find_node(node())
        return [found.path, *NODE_FLAGS, str(HOST), "serve", str(fd), json.dumps({"stripper": found.stripper})]

    def send(self, frame: Any) -> None:
        self.number += frame["type"] == "run"
        super().send([self.number, frame])

    def receive(self) -> Any:
        number, frame = super().receive()
        assert number == self.number
        return frame


@pytest.fixture(scope="module")
def node_host() -> Iterator[NodeHostProcess]:
    host = NodeHostProcess()
    assert host.receive()["type"] == "ready"
    yield host
    host.close()


@pytest.mark.spec("000-16.4", "000-16.9")
@pytest.mark.parametrize("vector", VECTORS["conversations"], ids=lambda one: one["name"])
def test_conversation_with_node(node_host: NodeHostProcess, vector: dict[str, Any]) -> None:
    """It runs many tasks: it is not `ready` after one, but sends `released` for one that was stopped, and then nothing."""
    reference = {"name": "n", "queue": vector["handler"], "file": str(HANDLERS.with_suffix(".mjs"))}
    task = {"handler": reference, "kind": "job", "input": vector["input"], "job": "j", "attempt": 1, "scope": "j"}
    lines: list[dict[str, Any]] = []
    is_stopped = False
    for line in vector["frames"]:
        is_stopped = is_stopped or line["frame"]["type"] in ("cancel", "suspend")
        if line["frame"]["type"] == "ready":
            lines += [{"from": "host", "frame": {"type": "released"}}] if is_stopped else []
        elif line["from"] == "worker" or not is_stopped:
            lines.append(line)
    converse(node_host, {**task, "queue": vector["handler"]}, lines)


def _fill(value: Any, names: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(one, names) for key, one in value.items()}
    return names[value] if isinstance(value, str) and value.startswith("$") else value


def _compare(found: Any, expected: Any, names: dict[str, Any]) -> None:
    """Compare a frame with a vector: `$1` stands for any id, and a frame may have more fields, such as a stack."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), (found, expected)
        for key, value in expected.items():
            assert key in found, (found, expected)
            _compare(found[key], value, names)
    elif isinstance(expected, str) and expected.startswith("$"):
        assert names.setdefault(expected, found) == found
    else:
        assert found == expected


def test_a_frame_beyond_the_limit_fails_the_handler() -> None:
    """It never leaves the host: the worker would end the child for it."""

    ours, theirs = socket.socketpair()
    wire = Wire(theirs.detach())
    with pytest.raises(PayloadTooLarge, match="limit is 1,048,576"):
        wire.send(Log("x" * 2**20))
    wire._socket.close()
    ours.close()
