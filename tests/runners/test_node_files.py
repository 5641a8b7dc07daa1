"""TypeScript and JavaScript worker files: how they are found, described, imported and reloaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from node_files import SharedRunner

from node_programs import node
from penstock.runners.node import describe
from penstock.testing import TestApp

pytestmark = pytest.mark.asyncio(loop_scope="module")
JOB = "export default async function (input, ctx) {{ return {} }}\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host() -> AsyncIterator[SharedRunner]:
    shared = SharedRunner()
    yield shared
    await shared.inner.close()


@pytest.fixture
def shared(host: SharedRunner, monkeypatch: pytest.MonkeyPatch) -> SharedRunner:
    host.install(monkeypatch)
    return host


def write(root: Path, **files: str) -> Path:
    """Write files under `root/workers`; `__` in a name is a slash, the last `_` the dot."""
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        path = root / f"{stem.replace('__', '/')}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "workers"


@pytest.mark.spec("000-16.11", "000-1.1", "000-2.3", "000-3.2", "000-5.1", "000-5.8")
async def test_every_kind_of_file(tmp_path: Path, shared: SharedRunner) -> None:
    """ESM and CommonJS, with and without a package.json, beside Python; files with `_` and declarations do not count."""
    folder = write(
        tmp_path,
        workers__sendMail_ts="export default async (input: number): Promise<number> => input + 1\n",
        workers__esm_js="export const queue = 'q-esm'\n" + JOB.format("'esm'"),
        workers__mod_mjs="export const queue = 'q-mod'\n" + JOB.format("'mod'"),
        workers__common_cjs="module.exports = { queue: 'q-cjs', handle: async () => require('node:path').sep }\n",
        workers__plain_js="const { sep } = require('node:path')\nmodule.exports = { config: { queue: 'q-js' }, default: async () => sep }\n",
        workers__made_ts="import { defineFunction } from 'penstock'\nexport default defineFunction({ queue: 'q-made' }, async () => 'made')\n",
        workers__named_ts="export const config = { queue: 'q-named', handler: 'work' }\nexport const work = async () => 'named'\n",
        workers__helper_ts="export const helper = 1\n",
        workers___hidden_ts="throw new Error('never imported')\n",
        workers__py_py="queue = 'q-py'\ndef handle(input, ctx):\n    return 'py'\n",
    )  # fmt: skip
    (folder / "types.d.ts").write_text("declare const x: number\n")
    async with TestApp(dir=folder) as app:
        assert app.registry.problems == ()
        queues = ["send-mail", "q-esm", "q-mod", "q-cjs", "q-js", "q-made", "q-named", "q-py"]
        assert sorted(app.registry.queues()) == sorted(queues)
        found = [await app.run_job(queue, 1) for queue in queues]
        assert found == [2, "esm", "mod", "/", "/", "made", "named", "py"]
        shown = {worker["queue"]: worker for worker in app.describe()["workers"]}
        assert shown["q-esm"]["kind"] == "ts"


@pytest.mark.spec("000-11.1")
async def test_the_registry_names_the_runner_and_the_line(tmp_path: Path, shared: SharedRunner) -> None:
    folder = write(
        tmp_path,
        workers__arrow_ts="export const queue = 'q-1'\n\nexport default async () => 1\n",
        workers__later_ts="async function work() {}\n\n\nexport default work\n",
        workers__listed_ts="\nconst work = async () => 1\nexport { work as default }\n",
        workers__named_ts="export const config = { handler: 'work' }\nexport const other = 1\nexport const work = async () => 1\n",
        workers__common_cjs="const x = 1\nmodule.exports = { handle: async () => x }\n",
        workers__py_py="from penstock import job\n\n@job(runner='process')\ndef py(): ...\n",
    )  # fmt: skip
    async with TestApp(dir=folder) as app:
        found = app.describe()
        workers = {one["id"]: (one["kind"], one["runner"], one["line"]) for one in found["workers"]}
    assert workers == {
        "arrow": ("ts", "node", 3),
        "later": ("ts", "node", 1),
        "listed": ("ts", "node", 2),
        "named": ("ts", "node", 3),
        "common": ("ts", "node", 2),
        "py": ("py", "process", 3),
    }
    assert found["runner"] == {
        "py": {"enabled": True, "isolate": "process"},
        "ts": {"enabled": True, "isolate": "node"},
    }


@pytest.mark.spec("000-11.5")
async def test_an_edit_changes_the_fingerprint(tmp_path: Path, shared: SharedRunner) -> None:
    """An edit of the file, of its config, or of a file that it imports; not one of another file."""
    folder = write(
        tmp_path,
        workers__charge_ts="import { rate } from '../lib/rate'\nexport const queue = 'q-charge'\n" + JOB.format("rate"),
        workers__mail_ts="export const queue = 'q-mail'\n" + JOB.format("1"),
        lib__rate_ts="export const rate = 1\n",
    )

    async def read() -> dict[str, str]:
        async with TestApp(dir=folder) as app:
            found = app.describe()
            assert not found["problems"]
            return {"all": found["fingerprint"], **{one["id"]: one["fingerprint"] for one in found["workers"]}}

    async def changed_by(path: Path, old: str, new: str) -> set[str]:
        before = await read()
        path.write_text(path.read_text().replace(old, new))
        after = await read()
        return {id for id in before if before[id] != after[id]}

    charge = folder / "charge.ts"
    assert await changed_by(charge, "return rate", "return rate + 1") == {"all", "charge"}
    assert await changed_by(charge, "'q-charge'", "'q-other'") == {"all", "charge"}
    assert await changed_by(tmp_path / "lib/rate.ts", "= 1", "= 2") == {"all", "charge"}
    assert await changed_by(folder / "mail.ts", "return 1", "return 1") == set()


async def test_imports_of_the_project(tmp_path: Path, shared: SharedRunner) -> None:
    """Files without an extension, folders, `.js` for `.ts`, tsconfig paths and the project's own node_modules."""
    folder = write(
        tmp_path,
        workers__all_ts="""
            import { a } from './_lib/a'
            import { b } from './_lib'
            import { c } from './_lib/c.js'
            import { d } from '@shared/d'
            import dep from 'dep'
            import { Kind } from './_lib/kind'
            export default async () => [a, b, c, d, dep, Kind.One]
        """,
        workers___lib__a_ts="export const a: string = 'a'\n",
        workers___lib__index_ts="export const b = 'b'\n",
        workers___lib__c_ts="export const c = 'c'\n",
        workers___lib__kind_ts="export enum Kind { One = 'one' }\n",
        shared__d_ts="export const d = 'd'\n",
        node_modules__dep__index_js="module.exports = 'dep'\n",
        tsconfig_json='{ // with a comment\n "compilerOptions": { "paths": { "@shared/*": ["./shared/*"], }, } }\n',
    )  # fmt: skip
    async with TestApp(dir=folder) as app:
        assert app.registry.problems == ()
        assert await app.run_job("all") == ["a", "b", "c", "d", "dep", "one"]
        names = {path.name for path in app.script_sources}
        assert {"all.ts", "a.ts", "index.ts", "c.ts", "d.ts", "kind.ts"} <= names


async def test_the_npm_package_of_the_project_comes_first(tmp_path: Path, shared: SharedRunner) -> None:
    """It has more than the host's module: the reducers and the client."""
    folder = write(
        tmp_path,
        workers__own_ts="import { createClient, Permanent } from 'penstock'\nexport default async (input) => { if (!input) throw new Permanent('no'); return createClient() }\n",
        node_modules__penstock__package_json='{ "name": "penstock", "type": "module", "exports": "./index.js" }\n',
        node_modules__penstock__index_js="export const createClient = () => 'client'\nexport class Permanent extends Error { name = 'Permanent' }\n",
    )  # fmt: skip
    async with TestApp(dir=folder) as app:
        assert app.registry.problems == ()
        assert await app.run_job("own", 1) == "client"
        with pytest.raises(Exception, match="no"):
            await app.run_job("own", 0)


async def test_errors_point_at_the_source(tmp_path: Path, shared: SharedRunner) -> None:
    """Also in a file whose code was generated, because it has an enum."""
    text = "enum Kind { One }\n\ninterface Input { id: number }\n\nexport default async (input: Input) => {\n  const kind: Kind = Kind.One\n  throw new RangeError(`bad ${kind}`)\n}\n"  # fmt: skip
    async with TestApp(dir=write(tmp_path, workers__boom_ts=text)) as app:
        with pytest.raises(Exception, match="bad 0"):
            await app.run_job("boom")
        (failed,) = [e for e in await app.events.read_all("nq:queue:boom") if e.kind == "job.failed"]
        assert "boom.ts:7:" in failed.data["stack"]


async def test_a_schema_object_validates(tmp_path: Path, shared: SharedRunner) -> None:
    """Any library with the Standard Schema interface, such as zod; and its conversions reach the handler."""
    text = """
        const number = { '~standard': { version: 1, vendor: 'test', validate: (value) =>
          Number.isFinite(Number(value)) ? { value: Number(value) } : { issues: [{ message: 'not a number', path: ['n'] }] } } }
        export const config = { inputSchema: number }
        export default async (input) => [input, typeof input]
    """
    async with TestApp(dir=write(tmp_path, workers__check_mjs=text)) as app:
        assert await app.run_job("check", "7") == [7, "number"]
        with pytest.raises(Exception, match="the input of 'check' is invalid at n: not a number"):
            await app.run_job("check", "seven")


async def test_patterns_of_a_schema_object_that_look_around(tmp_path: Path, shared: SharedRunner) -> None:
    """zod's email has one. Only the patterns that Node checks itself, or that a format repeats, are left out."""
    zod = tmp_path / "node_modules" / "zod"
    zod.mkdir(parents=True)
    (zod / "package.json").write_text('{"name": "zod", "type": "module", "main": "index.js"}')
    (zod / "index.js").write_text(
        "export const toJSONSchema = (schema, { override }) => {\n"
        "  const jsonSchema = { ...schema.json }\n"
        "  override({ zodSchema: schema, jsonSchema })\n"
        "  return jsonSchema\n}\n"
    )
    text = """
        const validate = (value) => (value === 'a@b.cd' ? { value } : { issues: [{ message: 'no email', path: [] }] })
        const zod = (json) => ({ '~standard': { version: 1, vendor: 'zod', validate }, json })
        const email = { type: 'string', format: 'email', pattern: '^(?!\\\\.)[a-z]+@.*$' }
        export const config = { flow: { id: 'mail', role: 'main', events: { sent: zod(email) } }, inputSchema: zod({ pattern: email.pattern }) }
        export default async (input, ctx) => ctx.emit('sent', input)
    """
    async with TestApp(dir=write(tmp_path, workers__mail_mjs=text)) as app:
        assert app.registry.problems == ()
        assert (await app.run_flow("mail", "a@b.cd")).status == "completed"
        view = await app.run_flow("mail", "b")
        assert (view.status, "no email" in str(view.error)) == ("failed", True)


async def test_node_starts_only_for_changed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: SharedRunner
) -> None:
    started: list[list[str]] = []
    real = describe._describe

    def spy(found: Any, files: Any) -> Any:
        started.append([file.name for file in files])
        return real(found, files)

    monkeypatch.setattr(describe, "_describe", spy)
    folder = write(tmp_path, workers__a_mjs=JOB.format(1), workers__b_mjs="import './_c.mjs'\n" + JOB.format(2), workers___c_mjs="")  # fmt: skip
    for _ in range(2):
        TestApp(dir=folder)
    assert started == [["a.mjs", "b.mjs"]]
    (folder / "_c.mjs").write_text("export const c = 1\n")
    TestApp(dir=folder)
    assert started[1:] == [["b.mjs"]], "it imports the file that changed"
    cached = list((tmp_path / ".penstock" / "node").glob("*.json"))
    assert len(cached) == 2
    for path in cached:
        path.write_text("{damaged")
    assert TestApp(dir=folder).registry.problems == ()


async def test_a_reload_and_a_file_with_an_error(tmp_path: Path) -> None:
    """A running attempt goes on with its code; a file that cannot be read keeps its version, and the others change."""
    gate = tmp_path / "gate"
    slow = f"""
        import fs from 'node:fs'
        const version = 1
        export default async () => {{
          fs.writeFileSync({str(gate)!r}, 'started')
          while (fs.readFileSync({str(gate)!r}, 'utf8') !== 'go') await new Promise((done) => setTimeout(done, 5))
          return version
        }}
    """
    folder = write(tmp_path, workers__slow_ts=slow, workers__fast_ts=JOB.format(1), workers__bad_ts=JOB.format("'old'"))
    async with TestApp(dir=folder, node=node()) as app:
        assert await app.run_job("bad") == "old"
        job = await app.jobs.enqueue("slow")
        while not gate.exists():
            await asyncio.sleep(0.01)
        (folder / "slow.ts").write_text("export default async () => 2\n")
        (folder / "fast.ts").write_text(JOB.format(2))
        (folder / "bad.ts").write_text("export default async ( => 3\n")
        (problem,) = app.reload().problems
        assert (problem.code, problem.line, "bad.ts" in problem.file) == ("import_failed", 1, True)
        assert [await app.run_job("fast"), await app.run_job("slow"), await app.run_job("bad")] == [2, 2, "old"]
        gate.write_text("go")
        assert await app.jobs.result(job) == 1
        (folder / "bad.ts").write_text(JOB.format("'new'"))
        assert app.reload().problems == ()
        assert await app.run_job("bad") == "new"


@pytest.mark.parametrize("option", ["orderKey", "rateLimit"])
async def test_a_function_that_every_process_would_call_is_refused(tmp_path: Path, option: str) -> None:
    text = f"export const config = {{ {option}: (input) => input.id }}\n" + JOB.format(1)
    app = TestApp(dir=write(tmp_path, workers__keyed_ts=text), node=node())
    (problem,) = app.registry.problems
    assert (problem.code, f"config.{option} is a function" in problem.message) == ("script_function", True)


@pytest.mark.spec("000-3.42")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("export const config = { retryPolcy: { attempts: 3 } }\n" + JOB.format(1), "did you mean 'retryPolicy'?"),
        ("export const config = { timeout: '5 parsecs' }\n" + JOB.format(1), ".ts:1: timeout: invalid duration"),
        ("export const queue = 'f'\nexport async function handler() {}\n", "exports 'queue' but no handler"),
        ("import { z } from 'zodd'\n" + JOB.format(1), "npm install zodd"),
        ("export default async (input: { x: number) => 1\n", "SyntaxError: "),
        ("export const config = 7\n" + JOB.format(1), "config must be an object, got number"),
    ],
    ids=["key", "value", "handler", "package", "syntax", "config"],
)
async def test_a_mistake_in_a_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    app = TestApp(dir=write(tmp_path, workers__wrong_ts=text), node=node())
    (problem,) = app.registry.problems
    assert message in str(problem)
    assert str(problem).startswith(str(tmp_path / "workers" / "wrong.ts"))
    assert "\n" not in str(problem)


async def test_a_when_that_raises_fails_the_step_once(tmp_path: Path, shared: SharedRunner) -> None:
    folder = write(
        tmp_path,
        workers__main_ts="export const config = { flow: { id: 'main', role: 'main', emits: ['a.b'] } }\nexport default async (i, ctx) => ctx.emit('a.b', { n: 1 })\n",
        workers__next_ts="export const config = { flow: { id: 'main', step: 'next' , subscriptions: [{ kind: 'a.b', when: (e) => e.data.x.y }] } }\n" + JOB.format(1),
    )  # fmt: skip
    async with TestApp(dir=folder) as app:
        run = await app.run_flow("main")
        assert run.status == "failed"
        (failed,) = [e for e in await app.events.read_all(f"nq:flow:{run.id}") if e.kind == "step.failed"]
        assert (failed.step, failed.data["code"]) == ("next", "subscription_failed")
        assert "undefined" in failed.data["error"]


async def test_a_flow_started_by_an_event_with_when_and_map(tmp_path: Path, shared: SharedRunner) -> None:
    text = """
        export const config = { step: 'greet', subscriptions: [
          { kind: 'user.made', stream: 'global', when: (e) => e.data.age >= 18, map: (e) => ({ name: e.data.name }) } ] }
        export default async (input) => input
    """
    async with TestApp(dir=write(tmp_path, workers__greet_ts=text)) as app:
        assert app.registry.problems == ()
        await app.emit("user.made", {"name": "Kid", "age": 7})
        await app.emit("user.made", {"name": "Ada", "age": 36})
        await app.settle()
        (run,) = await app.runs.list(flow="greet")
        assert (await app.finish(run.id)).result == {"name": "Ada"}


async def test_a_check_replays_typescript_handlers(tmp_path: Path, shared: SharedRunner) -> None:
    text = "export const config = {{ flow: {{ id: 'waits', role: 'main' }} }}\nexport default async (i, ctx) => {{ await ctx.run('{}', () => 1); await ctx.await.time('1h') }}\n"  # fmt: skip
    folder = write(tmp_path, workers__waits_ts=text.format("charge"))
    async with TestApp(dir=folder) as app:
        await app.start("waits")
        await app.settle()
        assert (await app.runs.preflight()).problems == []
        (folder / "waits.ts").write_text(text.format("bill"))
        app.reload()
        report = await app.runs.preflight()
        assert report.broken
        assert {problem.call for problem in report.problems} >= {"bill#1"}


async def test_a_reload_reaches_files_that_share_what_changed(tmp_path: Path) -> None:
    """Node imports a file once: a host that has the old one cannot run a file that imports the new one."""
    user = "import { v } from './_lib.mjs'\nexport default async () => v\n"
    folder = write(
        tmp_path, workers___lib_mjs="export const v = 'old'\n", workers__a_mjs=user, workers__b_mjs=user
    )  # fmt: skip
    async with TestApp(dir=folder, node=node()) as app:
        assert await app.run_job("a") == "old"
        (folder / "_lib.mjs").write_text("export const v = 'new'\n")
        assert app.reload().problems == ()
        assert [await app.run_job("b"), await app.run_job("a")] == ["new", "new"]


async def test_a_reload_reaches_the_functions_of_a_config(tmp_path: Path) -> None:
    """The host has loaded the second file for its `when` only."""
    second = "export const config = {{ flow: {{ id: 'main', step: 'next', subscriptions: [{{ kind: 'a.b', when: (e) => e.data.n > {} }}] }} }}\nexport default async () => '{}'\n"  # fmt: skip
    folder = write(
        tmp_path,
        workers__main_mjs="export const config = { flow: { id: 'main', role: 'main', emits: ['a.b'] } }\nexport default async (i, ctx) => ctx.emit('a.b', i)\n",
        workers__next_mjs=second.format(5, "old"),
    )  # fmt: skip
    async with TestApp(dir=folder, node=node()) as app:
        assert list((await app.run_flow("main", {"n": 1})).steps) == ["main"]
        (folder / "next.mjs").write_text(second.format(0, "new"))
        assert app.reload().problems == ()
        run = await app.run_flow("main", {"n": 1})
        assert await app.step_result(run.id, "next") == "new"


@pytest.mark.parametrize("body", ["new Promise(() => {})", "{ for (;;) {} }"], ids=["pending", "blocking"])
async def test_a_when_that_never_returns_fails_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    """The host goes on, or is replaced if the function blocks it."""
    monkeypatch.setattr("penstock.runners.node.host_process.EVALUATE_TIMEOUT_S", 0.3)
    folder = write(
        tmp_path,
        workers__main_mjs="export const config = { flow: { id: 'main', role: 'main', emits: ['a.b'] } }\nexport default async (i, ctx) => ctx.emit('a.b', i)\n",
        workers__next_mjs=f"export const config = {{ flow: {{ id: 'main', step: 'next', subscriptions: [{{ kind: 'a.b', when: () => {body} }}] }} }}\n" + JOB.format(1),
        workers__other_mjs="export const config = { retry: { attempts: 3 } }\n" + JOB.format("'other'"),
    )  # fmt: skip
    async with TestApp(dir=folder, node=node()) as app:
        run = await app.run_flow("main")
        (failed,) = [e for e in await app.events.read_all(f"nq:flow:{run.id}") if e.kind == "step.failed"]
        assert (run.status, failed.data["code"]) == ("failed", "subscription_failed")
        assert "subscriptions.0.when" in failed.data["error"]
        assert "did not return within" in failed.data["error"]
        assert await app.run_job("other") == "other"


async def test_a_check_leaves_the_hosts_of_the_worker_alone(tmp_path: Path) -> None:
    text = "export const config = { flow: { id: 'waits', role: 'main' } }\nexport default async (i, ctx) => { await ctx.await.time('1h'); return process.pid }\n"  # fmt: skip
    folder = write(tmp_path, workers__waits_mjs=text, workers__pid_mjs=JOB.format("process.pid"))
    async with TestApp(dir=folder, node=node()) as app:
        pid = await app.run_job("pid")
        await app.start("waits")
        await app.settle()
        assert (await app.runs.preflight()).problems == []
        assert await app.run_job("pid") == pid
