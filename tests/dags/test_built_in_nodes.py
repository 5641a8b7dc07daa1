"""Built-in nodes: http and its guard, map, batch, and waits for webhooks."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from penstock import Context
from penstock.core.errors import AddressRefused, DagInvalid, RunFailed
from penstock.dags import DagBuilder, Fail
from penstock.dags import node as executor
from penstock.dags.http_node import AddressGuard
from penstock.testing import until

IS_FULL = os.environ.get("PENSTOCK_FAULTS") == "full"


class Server:
    """A server with an answer for each path, and the paths that were called."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.answers: dict[str, list[tuple[int, dict[str, str], bytes]]] = {}
        outer = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.called.append(self.path)
                queue = outer.answers[self.path]
                status, headers, body = queue.pop(0) if len(queue) > 1 else queue[0]
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def single(type: str, config: Any, **options: Any) -> Any:
    dag = DagBuilder("d")
    dag.add("a", type, config=config, **options)
    return dag.build()


async def run(a: Any, dag: Any, input: Any = None, key: str | None = None) -> Any:
    await a.dags.register(dag)
    return await (await a.dags.start(dag.id, input, key=key)).result(timeout=60)


JSON = {"content-type": "application/json"}
FAST = {"attempts": 3, "backoff": {"type": "fixed", "delay": "1ms", "jitter": False}}


async def test_http_returns_the_answer(app: Any, server: Server) -> None:
    server.answers["/a?x=1"] = [(200, JSON, b'{"ok": true}')]
    async with app(http_allow=["127.0.0.1"]) as a, a.workers.background():
        answer = await run(a, single("http", {"url": f"{server.url}/a", "query": {"x": "{{ input }}"}}), 1)
        assert (answer["status"], answer["body"]) == (200, {"ok": True})


async def test_http_retries_429_and_5xx_and_nothing_else(memory: Any, server: Server) -> None:
    ok = (200, JSON, b"1")
    server.answers["/busy"] = [(429, {"retry-after": "0"}, b""), (503, {"retry-after": "0"}, b""), ok]
    server.answers["/gone"] = [(404, {}, b"no such thing")]
    async with memory(http_allow=["127.0.0.1"]) as a, a.workers.background():
        assert (await run(a, single("http", {"url": f"{server.url}/busy"}, retry=FAST)))["body"] == 1
        assert server.called == ["/busy"] * 3
        with pytest.raises(RunFailed, match="answered 404: 'no such thing'"):
            await run(a, single("http", {"url": f"{server.url}/gone"}, retry=FAST))
        assert server.called[3:] == ["/gone"]


async def test_http_refuses_a_large_answer(memory: Any, server: Server) -> None:
    server.answers["/large"] = [(200, {}, b"x" * 1001)]
    async with memory(http_allow=["127.0.0.1"]) as a, a.workers.background():
        with pytest.raises(RunFailed, match="more than 1000 bytes"):
            await run(a, single("http", {"url": f"{server.url}/large", "maxBytes": 1000}))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.1.2.3", "0.0.0.0", "2130706433"]
)
async def test_http_refuses_addresses_that_are_not_public(memory: Any, server: Server, host: str) -> None:
    async with memory() as a, a.workers.background():
        with pytest.raises(RunFailed, match="not a public address; add it to the setting http_allow"):
            await run(a, single("http", {"url": f"http://{host}:{server.http.server_port}/a"}))
        assert server.called == []


async def test_http_checks_every_redirect(memory: Any, server: Server) -> None:
    inner = f"http://127.0.0.2:{server.http.server_port}/secret"
    server.answers["/out"] = [(302, {"location": inner}, b"")]
    server.answers["/loop"] = [(302, {"location": "/loop"}, b"")]
    async with memory(http_allow=["127.0.0.1"]) as a, a.workers.background():
        with pytest.raises(RunFailed, match=r"'127.0.0.2' resolves to 127.0.0.2, which is not a public address"):
            await run(a, single("http", {"url": f"{server.url}/out"}))
        with pytest.raises(RunFailed, match="more than 5 redirects"):
            await run(a, single("http", {"url": f"{server.url}/loop"}))


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "fe80::1", "fc00::1", "224.0.0.1"]
)
async def test_the_guard_refuses_a_name_with_one_private_address(address: str) -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        return ["93.184.215.14", address]

    with pytest.raises(AddressRefused, match=r"'example.com' resolves to"):
        await AddressGuard(resolve=resolve).resolve("https", "example.com", None)
    assert await AddressGuard(["example.com"], resolve).resolve("https", "example.com", None) == "93.184.215.14"


async def test_the_guard_refuses_other_schemes() -> None:
    with pytest.raises(AddressRefused, match="http and https addresses only, got 'file'"):
        await AddressGuard().resolve("file", "", None)


@executor("double")
async def double(input: int) -> int:
    if input < 0:
        raise ValueError(f"{input} is negative")
    return 2 * input


@executor("double-all")
def double_all(input: list[int], config: Any) -> list[dict[str, Any]]:
    batches.append(len(input))
    return [{"ok": one > 0, "value": 2 * one} for one in input]


batches: list[int] = []


async def test_map_runs_a_sub_workflow_for_each_item_in_order(app: Any) -> None:
    async with app(double) as a, a.workers.background():
        leaf = DagBuilder("leaf")
        leaf.add("a", "double")
        await a.dags.register(leaf.build())
        config = {"items": "{{ input }}", "workflowId": "leaf", "concurrency": 7}
        assert await run(a, single("map", config), list(range(20)), "r1") == [2 * n for n in range(20)]
        rows = await a.runs.list(parent="r1", limit=100)
        assert len(rows) == 20


async def test_a_slow_item_of_a_map_holds_up_no_other(app: Any) -> None:
    """With two at once, the first one waits until all others have ended."""
    running: list[Any] = []
    most = 0

    @executor("last")
    async def last(input: Any, ctx: Context) -> Any:
        nonlocal most
        if input == 0:
            await ctx.wait.event("others.done")
            return input
        running.append(input)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.remove(input)
        return input

    async with app(last) as a, a.workers.background():
        await a.dags.register({"id": "leaf", "nodes": [{"id": "a", "type": "last"}]})
        config = {"items": "{{ input }}", "workflowId": "leaf", "concurrency": 2}
        await a.dags.register(single("map", config))
        started = await a.dags.start("d", list(range(12)), key="r1")

        async def have_others_ended() -> bool:
            return len(await a.runs.list(parent="r1", status="completed", limit=100)) == 11

        await until(have_others_ended, 30)
        await a.emit("others.done")
        assert await started.result(timeout=20) == list(range(12))
        assert most == 1


async def test_an_item_that_fails_ends_a_map_with_concurrency(app: Any) -> None:
    has_first_started = asyncio.Event()  # a run that is called after the map has failed never starts

    @executor("work")
    async def work(input: Any, ctx: Context) -> Any:
        if input == 0:
            has_first_started.set()
            await ctx.wait.event("never")
        await has_first_started.wait()
        return Fail("no", retry=False) if input == 1 else input

    async with app(work) as a, a.workers.background():
        await a.dags.register({"id": "leaf", "nodes": [{"id": "a", "type": "work"}]})
        config = {"items": "{{ input }}", "workflowId": "leaf", "concurrency": 2}
        with pytest.raises(RunFailed, match=r"item 1: .*: no"):
            await run(a, single("map", config), list(range(6)), "r1")

        async def statuses() -> list[str]:
            return sorted(one.status for one in await a.runs.list(parent="r1", limit=100))

        async def is_cancelled() -> bool:
            return await statuses() == ["cancelled", "failed"]

        await until(is_cancelled, 20)


@pytest.mark.parametrize("concurrency", [None, 50])
async def test_map_over_a_thousand_items(app: Any, concurrency: int | None, request: pytest.FixtureRequest) -> None:
    """In memory; on the other stores with PENSTOCK_FAULTS=full."""
    async with app(double) as a, a.workers.background():
        leaf = DagBuilder("leaf")
        leaf.add("a", "double")
        await a.dags.register(leaf.build())
        is_long = IS_FULL or "memory" in request.node.callspec.id
        items = list(range(1000 if is_long else 100))
        config = {"items": "{{ input }}", "workflowId": "leaf", "concurrency": concurrency}
        assert await run(a, single("map", config), items) == [2 * n for n in items]


async def test_map_keeps_or_raises_the_error_of_an_item(app: Any) -> None:
    async with app(double) as a, a.workers.background():
        config = {"items": [1, -2, 3], "executor": "double"}
        with pytest.raises(RunFailed, match="-2 is negative"):
            await run(a, single("map", config))
        first, failed, last = await run(a, single("map", {**config, "continueOnFail": True}))
        assert (first, last, failed["error"]["error"]) == (2, 6, "-2 is negative")


async def test_batch_passes_many_items_in_one_call(app: Any) -> None:
    batches.clear()
    async with app(double_all) as a, a.workers.background():
        result = await run(a, single("batch", {"items": [1, 2, -3, 4, 5], "executor": "double-all", "size": 2}))
        assert [one["value"] for one in result] == [2, 4, -6, 8, 10]
        assert [one["ok"] for one in result] == [True, True, False, True, True]
        assert batches == [2, 2, 1]
        with pytest.raises(DagInvalid, match=r"nodes\[0\].config.executor: no executor for 'duoble'"):
            a.dags.check(single("batch", {"items": [], "executor": "duoble"}))


async def test_a_node_waits_for_a_webhook(app: Any) -> None:
    async with app() as a, a.workers.background():
        dag = single("wait", {"webhook": "approval", "payload": {"amount": "{{ input }}"}})
        await a.dags.register(dag)
        handle = await a.dags.start("d", 5, key="r1")

        async def find() -> Any:
            return await a.waits.list(run="r1")

        (wait,) = await until(find)
        assert (await a.waits.get(wait.id)).payload == {"amount": 5}
        await a.waits.resolve(wait.id, {"approved": True})
        assert json.dumps(await handle.result(timeout=20)).count("approved") == 1


@pytest.mark.parametrize(
    ("type", "config", "problem"),
    [
        ("wait", {}, "nodes[0].config: a wait node needs either event or webhook"),
        ("wait", {"event": "go", "webhook": "w"}, "nodes[0].config: a wait node needs either event or webhook"),
        ("wait", {"event": "{{ input }}", "timeout": "never"}, "nodes[0].config.timeout: invalid duration 'never'"),
        ("delay", None, "nodes[0].config: a delay node needs duration, durationSeconds or durationMinutes"),
        ("delay", {"duration": "soon"}, "nodes[0].config.duration: invalid duration 'soon'"),
        ("delay", {"duration": 1, "durationSeconds": 1}, "takes one of duration, durationSeconds"),
        ("delay", {"durationMinutes": -1}, "nodes[0].config.durationMinutes: a duration must not be negative"),
        ("map", {"items": "{{ input }}"}, "nodes[0].config: a map node needs either workflowId or executor"),
        ("http", {"url": "htp:/x"}, "nodes[0].config.url: 'htp:/x' is not an http or https address"),
        ("http", {"url": "https://a.b", "timeout": "never"}, "nodes[0].config.timeout: invalid duration 'never'"),
    ],
)
async def test_a_config_that_can_only_fail_is_refused(memory: Any, type: str, config: Any, problem: str) -> None:
    async with memory() as a:
        with pytest.raises(DagInvalid) as found:
            a.dags.check(single(type, config))
        assert problem in str(found.value)


@pytest.mark.parametrize(
    ("type", "config"),
    [
        ("wait", {"event": "go", "timeout": "{{ input }}"}),
        ("wait", {"webhook": "{{ input }}"}),
        ("delay", {"duration": "{{ input }}"}),
        ("delay", {"duration": 1500}),
        ("http", {"url": "{{ input }}/x"}),
        ("sub-workflow", {"workflowId": "{{ input }}"}),
    ],
)
async def test_a_config_with_expressions_is_known_later(memory: Any, type: str, config: Any) -> None:
    async with memory() as a:
        assert a.dags.check(single(type, config)) == []


async def test_an_unknown_workflow_is_a_warning(memory: Any) -> None:
    async with memory() as a:
        await a.dags.register({"id": "leaf", "nodes": [{"id": "a", "type": "transform"}]})
        for type, rest in (("sub-workflow", {}), ("map", {"items": []})):
            (found,) = a.dags.check(single(type, {"workflowId": "laef", **rest}))
            assert str(found) == (
                "nodes[0].config.workflowId: no flow or dag named 'laef' is known here; did you mean 'leaf'?"
            )
            assert a.dags.check(single(type, {"workflowId": "leaf", **rest})) == []
