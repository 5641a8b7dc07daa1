"""What a Node host survives: crashes, blocked loops, bad frames, floods, and the death of its worker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from node_programs import node
from penstock.core.errors import ConfigError, NodeMissing, RunnerLost
from penstock.runners.node.host_process import HostProcess
from penstock.runners.node.program import find_node
from penstock.testing import TestApp, until

FIXED = "{ attempts: 3, backoff: { type: 'fixed', delayMs: 10, jitter: false } }"
Files = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Files:
    """Return a function that writes worker files and returns their folder."""
    root = tmp_path / "workers"

    def write(**files: str) -> Path:
        root.mkdir(exist_ok=True)
        for name, text in files.items():
            stem, _, suffix = name.rpartition("_")
            (root / f"{stem.replace('_', '-')}.{suffix}").write_text(textwrap.dedent(text))
        return root

    return write


def worker(id: str, body: str, more: str = "") -> str:
    config = f"export const config = {{ flow: {{ id: '{id}', role: 'main', step: '{id}' }}, {more} }}\n"
    return f"{config}export default async function (input, ctx) {{\n{body}\n}}\n"


async def last_error(app: TestApp, run: Any) -> dict[str, Any]:
    events = await app.events.read_all(f"nq:flow:{run.id}")
    data: dict[str, Any] = [e.data for e in events if e.kind == "step.failed"][-1]
    return data


@pytest.mark.spec("000-6.5")
async def test_a_crash_in_a_step_is_retried_in_a_new_host(folder: Files) -> None:
    crash = worker("crash", "if (ctx.attempt === 1) process.exit(3); return ctx.attempt", f"retry: {FIXED}")
    async with TestApp(dir=folder(crash_mjs=crash), node=node()) as app:
        run = await app.run_flow("crash")
        assert run.result == 2
        assert (await last_error(app, run))["code"] == RunnerLost.code


async def test_a_blocked_loop_is_killed_after_a_timeout(folder: Files, tmp_path: Path) -> None:
    """A handler that never gives the loop back cannot be stopped otherwise. The others are retried."""
    began = tmp_path / "began"
    wait = f"(await import('node:fs')).writeFileSync({str(began)!r}, ''); await new Promise(() => {{}})"
    files = folder(
        block_mjs=worker("block", "for (;;) {}", "timeout: 200"),
        other_mjs=worker("other", f"if (ctx.attempt === 1) {{ {wait} }} return ctx.attempt", f"retry: {FIXED}"),
    )
    async with TestApp(dir=files, node=node()) as app:
        other = await app.start("other")
        await until(began.exists)
        blocked = await app.run_flow("block")
        assert (await last_error(app, blocked))["code"] == "timeout"
        assert (await app.finish(other)).result == 2


async def test_a_blocked_host_that_is_not_killed_keeps_its_handlers(
    folder: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the test above."""
    asked: list[HostProcess] = []
    monkeypatch.setattr(HostProcess, "_kill_blocked", lambda host: asked.append(host))
    files = folder(
        block_mjs=worker("block", "for (;;) {}", "timeout: 200"),
        other_mjs=worker("other", "await new Promise(() => {})"),
    )
    async with TestApp(dir=files, node=node(), grace="100ms") as app:
        other = await app.start("other")
        await until(lambda: _is_running(app, other))
        assert (await app.run_flow("block")).status == "failed"
        await until(lambda: asked, 20)
        assert _is_alive(asked[0].pid), "the mutant is not noticed"
        assert (await app.runs.get(other)).status == "running"


PLACE = "import { isMainThread, threadId } from 'node:worker_threads'\n"


@pytest.mark.spec("000-3.25", "000-6.4", "004-1.5", "004-3.3", "004-6.1", "004-6.2")
async def test_a_file_chooses_a_worker_thread(folder: Files) -> None:
    """By default handlers share the main thread; with the setting, those on it say so."""
    files = folder(
        plain_mjs=PLACE + worker("plain", "return isMainThread"),
        inside_mjs=PLACE + worker("inside", "return isMainThread", "useWorkerThreads: true"),
        outside_mjs=PLACE + worker("outside", "return isMainThread", "useWorkerThreads: false"),
        wrong_mjs=worker("wrong", "return 1", "useWorkerThreads: 'yes'"),
    )
    for threads, expected in ((0, [True, False, True]), (1, [False, False, True])):
        async with TestApp(dir=files, node=node(), node_threads=threads) as app:
            assert [(await app.run_flow(name)).result for name in ("plain", "inside", "outside")] == expected
            (problem,) = app.registry.problems
            assert "useWorkerThreads must be true or false, got 'yes'" in problem.message


@pytest.mark.spec("000-3.27")
async def test_resource_hints(folder: Files) -> None:
    """The heap has a limit, and a busy Node gives way to the worker."""
    body = "return [os.getPriority(), v8.getHeapStatistics().heap_size_limit / 2 ** 20]"
    files = folder(hints_mjs="import os from 'node:os'\nimport v8 from 'node:v8'\n" + worker("hints", body))
    async with TestApp(dir=files, node=node(), cpu_shares=512, node_memory=100) as app:
        priority, heap_mb = (await app.run_flow("hints")).result
        assert (priority, heap_mb < 200) == (min(os.nice(0) + 3, 19), True)


async def test_a_blocked_thread_ends_alone(folder: Files) -> None:
    """Its own attempts are retried; the process and the handlers of other threads go on."""
    files = folder(
        block_mjs=worker("block", "for (;;) {}", "timeout: 300, useWorkerThreads: true"),
        crash_mjs=worker(
            "crash",
            "if (ctx.attempt === 1) process.exit(3); return [ctx.attempt, process.pid]",
            f"retry: {FIXED}, useWorkerThreads: true",
        ),
        leak_mjs=worker(
            "leak",
            "const kept = []; while (ctx.attempt === 1) kept.push(new Array(1e5).fill(kept.length)); return [ctx.attempt, process.pid]",
            f"retry: {FIXED}, useWorkerThreads: true",
        ),
        other_mjs=worker("other", "await ctx.run('once', () => 1); return [ctx.attempt, process.pid]"),
    )
    async with TestApp(dir=files, node=node(), node_memory=100) as app:
        _, pid = (await app.run_flow("other")).result
        other = await app.start("other")
        blocked = await app.run_flow("block")
        assert (await last_error(app, blocked))["code"] == "timeout"
        assert (await app.finish(other)).result == [1, pid]
        for name in ("crash", "leak"):
            run = await app.run_flow(name)
            assert run.result == [2, pid], "the same process"
            error = await last_error(app, run)
            assert (error["code"], "the thread that ran the handler ended" in error["error"]) == (RunnerLost.code, True)


async def test_a_handler_does_not_start_after_its_timeout(folder: Files, tmp_path: Path) -> None:
    """Its file loads for longer than that. A handler that started then would block a thread that seems idle."""
    loads, gate, called = (tmp_path / name for name in ("loads", "gate", "called"))
    slow = f"""
        import fs from 'node:fs'
        import {{ isMainThread }} from 'node:worker_threads'
        if (!isMainThread) {{  // the main thread only describes the file
          fs.writeFileSync({str(loads)!r}, '')
          while (!fs.existsSync({str(gate)!r})) await new Promise((resolve) => setTimeout(resolve, 10))
        }}
        export const config = {{ flow: {{ id: 'slow', role: 'main', step: 'slow' }}, timeout: 200, useWorkerThreads: true }}
        export default async function () {{
          fs.writeFileSync({str(called)!r}, '')
          for (;;) {{}}
        }}
    """
    reads = f"import '{folder(slow_mjs=slow)}/slow.mjs'\n"  # it loads after the other file
    files = folder(after_mjs=reads + worker("after", "return ctx.attempt", "useWorkerThreads: true"))
    async with TestApp(dir=files, node=node()) as app:
        run = await app.run_flow("slow")
        assert (await last_error(app, run))["code"] == "timeout"
        await until(loads.exists)
        gate.touch()
        assert (await app.run_flow("after")).result == 1
        assert not called.exists()


async def test_a_thread_that_a_stopped_handler_blocks_is_replaced(folder: Files, tmp_path: Path) -> None:
    """The handler lets its attempt go, and then goes on. The next task of the thread runs on another one."""
    blocks = tmp_path / "blocks"
    stopped = f"""
        await new Promise((resolve) => ctx.signal.addEventListener('abort', resolve))
        fs.writeFileSync({str(blocks)!r}, '')
        for (;;) {{}}
    """
    files = folder(
        stopped_mjs="import fs from 'node:fs'\n" + worker("stopped", stopped, "timeout: 200, useWorkerThreads: true"),
        after_mjs=worker("after", "return [ctx.attempt, process.pid]", "useWorkerThreads: true"),
        main_mjs=worker("main", "return process.pid"),
    )
    async with TestApp(dir=files, node=node()) as app:
        pid = (await app.run_flow("main")).result
        while not blocks.exists():  # an attempt whose timeout passes while the file is loaded does not call the handler
            assert (await last_error(app, await app.run_flow("stopped")))["code"] == "timeout"
            with suppress(AssertionError):
                await until(blocks.exists, 3)
        assert (await app.run_flow("after")).result == [1, pid]


async def _is_running(app: TestApp, run: str) -> bool:
    return any(e.kind == "step.started" for e in await app.events.read_all(f"nq:flow:{run}"))


async def test_a_forged_frame_ends_that_host_only(folder: Files) -> None:
    forge = """
        import fs from 'node:fs'
        export const config = { flow: { id: 'forge', role: 'main', step: 'forge' } }
        export default async function () {
          console.log('[1,{"type":"done","result":"forged"}]')  // what is printed is no frame
          fs.writeSync(Number(process.argv[3]), 'garbage\\n')
          await new Promise(() => {})
        }
    """
    async with TestApp(dir=folder(forge_mjs=forge, ok_mjs=worker("ok", "return 1")), node=node()) as app:
        error = await last_error(app, await app.run_flow("forge"))
        assert (error["code"], "sent a bad frame" in error["error"]) == (RunnerLost.code, True)
        assert (await app.run_flow("ok")).result == 1


async def test_a_result_that_is_too_large_fails_the_step(folder: Files) -> None:
    files = folder(
        huge_mjs=worker("huge", "return 'x'.repeat(3_000_000)"),
        flood_mjs=worker("flood", "for (let i = 0; i < 20_000; i++) ctx.partial('x'.repeat(1000)); return 'done'"),
    )
    async with TestApp(dir=files, node=node()) as app:
        assert (await last_error(app, await app.run_flow("huge")))["code"] == "payload_too_large"
        assert (await app.run_flow("flood")).result == "done"


async def test_what_handlers_print_is_limited(folder: Files, caplog: pytest.LogCaptureFixture) -> None:
    """A flood cannot fill the disk. The log says how many lines it leaves out, also if nothing is printed afterwards."""
    caplog.set_level("INFO", "penstock.runner")
    flood = worker("flood", "for (let i = 0; i < 20_000; i++) console.log('line ' + i); console.error('x'.repeat(1e6))")
    async with TestApp(dir=folder(flood_mjs=flood), node=node()) as app:
        await app.run_flow("flood")

        def count_dropped() -> int:
            return sum(int(found[1]) for found in map(DROPPED.fullmatch, caplog.messages) if found is not None)

        shown = re.compile(r"Node process \d+ \(-\): (line \d+|x+)")

        def shows_all() -> bool:
            return sum(bool(shown.fullmatch(text)) for text in caplog.messages) + count_dropped() == 20_001

        await until(shows_all, 20)
        assert count_dropped() > 10_000
        assert max(map(len, caplog.messages)) < 5000


DROPPED = re.compile(r"Node process \d+ printed (\d+) lines more than are logged")


async def test_values_of_javascript(folder: Files) -> None:
    """Dates become text, undefined becomes null; what JSON cannot express is an error of the step."""
    files = folder(
        values_mjs=worker("values", "return [new Date(0), undefined, 7n, 2 ** 53 - 1, 'Zoë\\u2028']"),
        nan_mjs=worker("nan", "return { a: NaN }"),
        big_mjs=worker("big", "return 2n ** 64n"),
        emits_mjs=worker("emits", "ctx.emit('a.b', { n: 1n << 70n })"),
    )
    async with TestApp(dir=files, node=node()) as app:
        run = await app.run_flow("values")
        assert run.result == ["1970-01-01T00:00:00.000Z", None, 7, 2**53 - 1, "Zoë\u2028"]
        for name in ("nan", "big", "emits"):
            assert (await last_error(app, await app.run_flow(name)))["code"] == "not_json", name


async def test_without_node_python_handlers_work(folder: Files, tmp_path: Path, caplog: Any) -> None:
    python = "from penstock import flow\n@flow('py', emits=[])\nasync def py(input):\n    return 1\n"
    files = folder(py_py=python, ts_ts=worker("ts", "return 2"))
    async with TestApp(dir=files, node=str(tmp_path / "no-node")) as app:
        (problem,) = app.registry.problems
        assert (problem.code, "penstock[node]" in problem.message) == (NodeMissing.code, True)
        assert (await app.run_flow("py")).result == 1


def test_the_node_of_the_wheel_is_enough(folder: Files, tmp_path: Path) -> None:
    """Nothing is on PATH: Node comes from `penstock[node]`."""
    folder(hello_ts="enum Mood { Fine = 'fine' }\n" + worker("hello", "const mood: string = Mood.Fine; return mood"))
    command = [sys.executable, "-m", "penstock.cli", "run", "hello", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PATH": str(tmp_path), "HOME": str(tmp_path)}, capture_output=True
    )
    assert (done.returncode, b'"fine"' in done.stdout) == (0, True), done.stderr.decode()


@pytest.mark.spec("000-3.24")
async def test_typescript_can_be_off(folder: Files, tmp_path: Path) -> None:
    """The files are not even reported: Node need not exist."""
    files = folder(job_py="def handle(input):\n    return 1\n", ts_ts=worker("ts", "return 2"))
    async with TestApp(dir=files, node=str(tmp_path / "no-node"), typescript="off") as app:
        assert app.registry.problems == ()
        assert await app.run_job("job") == 1
        with pytest.raises(ConfigError, match="the setting typescript is off"):
            app.register(files / "ts.ts")
    async with TestApp(dir=files, node=node()) as app:
        assert (await app.run_flow("ts")).result == 2


def test_node_that_is_too_old_is_named(tmp_path: Path) -> None:
    old = tmp_path / "node"
    old.write_text("#!/bin/sh\necho v18.1.0\n")
    old.chmod(0o755)
    with pytest.raises(NodeMissing, match="is too old"):
        find_node(str(old))


CHILD = """
import asyncio, sys
from penstock import App
async def main():
    async with App("sqlite://:memory:", sys.argv[1], node=sys.argv[2]) as app:
        task = asyncio.create_task(app.workers.run())
        await app.start(sys.argv[3])
        await asyncio.sleep(3600)
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="processes are read from ps")
async def test_no_host_outlives_a_killed_worker(folder: Files, tmp_path: Path) -> None:
    """The host's loop is blocked, so it cannot see that its pipe was closed."""
    seen = tmp_path / "pid"
    block = f"""
        import fs from 'node:fs'
        export const config = {{ flow: {{ id: 'block', role: 'main', step: 'block' }} }}
        export default async function () {{
          fs.writeFileSync({str(seen)!r}, String(process.pid))
          for (;;) {{}}
        }}
    """
    files = folder(block_mjs=block)
    parent = subprocess.Popen([sys.executable, "-c", CHILD, str(files), node(), "block"], cwd=tmp_path)
    try:
        await until(lambda: seen.exists() and seen.read_text() != "", 60)
        pid = int(seen.read_text())
        assert _is_alive(pid)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    await until(lambda: not _is_alive(pid), 20)


async def test_nothing_that_a_handler_started_outlives_a_killed_worker(folder: Files, tmp_path: Path) -> None:
    """The host sees that its worker is gone; what its handlers have started does not."""
    seen = tmp_path / "pid"
    fork = f"""
        import fs from 'node:fs'
        import {{ spawn }} from 'node:child_process'
        export const config = {{ flow: {{ id: 'fork', role: 'main', step: 'fork' }} }}
        export default async function () {{
          const started = spawn('sleep', ['600'])
          fs.writeFileSync({str(seen)!r}, String(started.pid))
          await new Promise(() => {{}})
        }}
    """
    files = folder(fork_mjs=fork)
    parent = subprocess.Popen([sys.executable, "-c", CHILD, str(files), node(), "fork"], cwd=tmp_path)
    try:
        await until(lambda: seen.exists() and seen.read_text() != "", 60)
        pid = int(seen.read_text())
        assert _is_alive(pid)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    await until(lambda: not _is_alive(pid), 20)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(shown) and not shown.startswith("Z")


async def test_closing_the_runner_leaves_no_process(folder: Files) -> None:
    async with TestApp(dir=folder(ok_mjs=worker("ok", "return process.pid")), node=node()) as app:
        pid = (await app.run_flow("ok")).result
        assert _is_alive(pid)
    await until(lambda: not _is_alive(pid), 20)
