"""Finding worker files: the module contract of the spec, decorators, and invalid files."""

from __future__ import annotations

import importlib
import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import flow, job, step
from penstock.core.errors import ConfigError, DefinitionError
from penstock.core.worker_folders import search_path

Write = Callable[..., Path]

RESIZE = """
    # as spec 000 §8 has it
    queue = 'image-resize'
    config = {
      'flow': {
        'id': 'image-pipeline',
        'role': 'main',
        'step': 'resize',
        'emits': ['resize.requested','resize.progress','resize.completed','resize.failed']
      }
    }

    def handle(input, ctx):
        corr = ctx.correlation_id()
        ctx.emit({ 'kind': 'resize.requested', 'data': { 'url': input['url'] }, 'correlationId': corr })
        # work...
        ctx.emit({ 'kind': 'resize.completed', 'data': { 'url': '...' }, 'correlationId': corr })
        return { 'ok': True }
"""

THUMBNAIL = """
    queue = 'image-thumbnail'
    config = {
      'flow': {
        'id': 'image-pipeline',
        'role': 'step',
        'step': 'thumbnail',
        'triggers': 'resize.completed'
      }
    }

    async def handle(input, ctx):
        corr = ctx.correlation_id()
        ctx.state.set(['thumb', corr], { 'url': input['url'] })
        ctx.emit({ 'kind': 'thumbnail.completed', 'data': { 'url': 'thumb' }, 'correlationId': corr })
        return { 'ok': True }
"""

PLAIN = """
    # as spec 000 §5 has it
    queue = 'image-convert'  # optional; else derived

    def handle(input, ctx):
        ctx.emit({ 'type': 'log', 'data': 'Starting resize' })
        # ... work ...
        ctx.emit({ 'type': 'progress', 'data': 50 })
        return { 'ok': True, 'result': { 'url': '...' } }
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write worker files and return their folder."""
    root = tmp_path / "workers"
    root.mkdir()

    def files(**by_path: str) -> Path:
        for name, text in by_path.items():
            path = root / (name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return root

    return files


def codes(app: Any) -> list[str]:
    return [problem.code for problem in app.registry.problems]


# The module contract


@pytest.mark.spec("000-3.6", "000-8.1", "000-8.2", "000-8.3", "000-8.5", "000-8.7", "000-8.9", "000-8.13", "000-16.7")
@pytest.mark.spec("000-16.13")
async def test_the_flow_of_the_spec_runs_unchanged(app: Any, write: Write) -> None:
    folder = write(image__resize=RESIZE, image__thumbnail=THUMBNAIL)
    async with app(dir=folder) as a, a.workers.background():
        assert codes(a) == []
        run = await a.start("image-pipeline", {"url": "http://x"})
        assert await a.result(run, timeout=20) == {"ok": True}
        emitted = [(e.kind, e.data) for e in await a.stream(run) if e.kind.startswith(("resize", "thumbnail"))]
        assert emitted == [
            ("resize.requested", {"url": "http://x"}),
            ("resize.completed", {"url": "..."}),
            ("thumbnail.completed", {"url": "thumb"}),
        ]
        assert await a.state.of_run(run).get(["thumb", run]) == {"url": "..."}
        assert {e.step: e.kind for e in await a.stream(run) if e.kind == "step.completed"} == {
            "resize": "step.completed",
            "thumbnail": "step.completed",
        }


@pytest.mark.spec("000-3.1", "000-5.4", "000-6.2", "000-8.16")
async def test_the_plain_worker_of_the_spec_runs_unchanged(app: Any, write: Write) -> None:
    async with app(dir=write(image__convert=PLAIN)) as a, a.workers.background():
        id = await a.enqueue("image-convert", {"url": "x", "width": 3})
        assert await a.jobs.result(id, timeout=20) == {"ok": True, "result": {"url": "..."}}
        row = await a.jobs.get(id)
        assert row.progress == 50
        assert "log" in [e.kind for e in await a.job_events("image-convert")]


@pytest.mark.spec("000-8.1", "000-8.17", "000-14.5", "000-14.6", "000-14.7", "000-14.8", "000-14.9", "000-14.10")
@pytest.mark.spec("000-14.11", "000-14.12", "003-8.11")
async def test_every_key_of_a_config(memory: Any, write: Write) -> None:
    folder = write(
        all="""
        config = {
            'queue': 'everything',
            'concurrency': 3,
            'rateLimit': {'max': 5, 'durationMs': 1000},
            'retryPolicy': {
                'attempts': 4,
                'backoff': {'type': 'fixed', 'delayMs': 20, 'maxDelayMs': 90},
                'retriableErrors': ['NetworkError'],
                'onFail': 'dlq',
            },
            'dlq': {'enabled': True, 'queue': 'graves'},
            'timeoutMs': 2500,
            'idempotencyKey': 'auto',
            'inputSchema': {'type': 'object'},
            'outputSchema': {'type': 'object'},
            'priority': 2,
            'maxActive': 7,
            'callConcurrency': 4,
            'rate_key': 'tenant',
            'flow': {
                'id': 'f', 'role': 'main', 'step': 'first', 'emits': ['a'], 'version': '3', 'accepts': ['b'],
                'events': {'a': {'type': 'object'}},
            },
        }
        def handle(input, ctx): ...
        """,
        second="""
        config = {
            'step': 'second',
            'subscriptions': [{'eventKind': 'a', 'when': lambda e: True, 'map': lambda e: {}}, {'event_kind': 'b'}],
            'flow': {'id': 'f', 'mode': 'all', 'compensation': {'step': 'third', 'on': 'c'}},
        }
        def handle(input): ...
        """,
        third="config = {'flow': {'id': 'f', 'step': 'third'}}\ndef handle(): ...",
    )
    app = memory(dir=folder)
    assert app.registry.problems == ()
    found = app.registry.flow("f")
    first = found.steps["first"].handler
    assert (first.queue, first.concurrency, first.max_active, first.priority) == ("everything", 3, 7, 2)
    assert first.call_concurrency == 4
    assert (first.rate.max, first.rate.duration_ms, first.rate_key) == (5, 1000, "tenant")
    assert (first.retry.attempts, first.retry.backoff.delay_ms, first.retry.retriable_errors) == (
        4,
        20,
        ("NetworkError",),
    )
    assert (first.timeout_ms, first.dlq, first.key) == (2500, "graves", "auto")
    assert (found.definition.version, found.definition.accepts, list(found.event_validators)) == ("3", ("b",), ["a"])
    second = found.steps["second"]
    assert (second.kinds, second.mode, second.compensation, second.compensate_on) == (
        ("a", "b"),
        "all",
        "third",
        ("c",),
    )
    assert second.handler.queue == "second", "named after its file"


@pytest.mark.spec("000-8.2")
async def test_triggers_outside_the_flow_key_define_a_step(memory: Any, write: Write) -> None:
    app = memory(
        dir=write(
            first="config = {'flow': {'id': 'f', 'role': 'main', 'emits': ['go']}}\ndef handle(ctx): ctx.emit('go')",
            second="config = {'triggers': ['go']}\ndef handle(): return 'second'",
        )
    )
    async with app as a, a.workers.background():
        assert codes(a) == []
        assert await a.run_for_result("f") == "second"


# Names of queues


@pytest.mark.spec("000-3.4", "000-3.5", "000-5.2")
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("filename", {"sendEmail": "send-email", "top_level": "top-level", "Resize": "resize"}),
        ("directory", {"sendEmail": "mail-out", "top_level": "top-level", "Resize": "images"}),
    ],
)
def test_a_queue_is_named_after_the_file_or_its_folder(
    memory: Any, write: Write, strategy: str, expected: dict[str, str]
) -> None:
    body = "def handle(input, ctx): ..."
    folder = write(mailOut__sendEmail=body, images__Resize=body, top_level=body)
    app = memory(dir=folder, queue_names=strategy)
    found = {Path(item.file).stem: item.definition.handler.queue_name for item in app.registry.found}
    assert found == expected


@pytest.mark.spec("000-3.4", "000-5.2", "000-18.1")
def test_an_explicit_queue_overrides_the_file_name(memory: Any, write: Write) -> None:
    folder = write(
        a="queue = 'mine'\nconfig = {'queue': 'other'}\ndef handle(): ...",
        b="config = {'queue': 'configured'}\ndef handle(): ...",
        c="from penstock import job\n@job(queue='decorated')\ndef work(): ...\n@job(name='free')\ndef free(): ...",
    )
    homes = [item.definition.handler.queue_name for item in memory(dir=folder).registry.found]
    assert homes == ["mine", "configured", "decorated", "c"]


# Files


def test_hidden_files_and_folders_are_ignored(memory: Any, write: Write) -> None:
    body = "def handle(): ..."
    folder = write(seen=body, _hidden=body, _private__seen=body, deep__er__found=body)
    (folder / ".secret").mkdir()
    (folder / ".secret" / "x.py").write_text(body)
    (folder / "notes.txt").write_text(body)
    (folder / "deep" / "__init__.py").write_text("raise RuntimeError('never imported')")
    app = memory(dir=folder)
    assert [item.worker_id for item in app.registry.found] == ["deep/er/found", "seen"]
    assert app.registry.problems == ()


def test_worker_files_can_import_modules_of_their_folder(memory: Any, write: Write) -> None:
    folder = write(
        _penstock_test_shared="ANSWER = 42",
        uses="from _penstock_test_shared import ANSWER\nqueue = f'q{ANSWER}'\ndef handle(): ...",
    )
    app = memory(dir=folder)
    assert codes(app) == []
    assert app.registry.queues() == ["q42"]


def test_an_imported_handler_belongs_to_the_file_that_defines_it(memory: Any, write: Write) -> None:
    folder = write(
        penstock_test_first="from penstock import job\n@job(queue='one')\ndef work(): ...",
        penstock_test_second="""
        from penstock import job
        from penstock_test_first import work

        @job(queue='two')
        def own(): ...
        """,
    )
    found = memory(dir=folder).registry.found
    assert [(item.worker_id, item.export) for item in found] == [
        ("penstock_test_first", "work"),
        ("penstock_test_second", "own"),
    ]


def test_two_files_with_one_name_are_separate_modules(memory: Any, write: Write) -> None:
    folder = write(
        a__send="X = 1\nqueue = 'a'\ndef handle(): return X", b__send="X = 2\nqueue = 'b'\ndef handle(): return X"
    )
    found = memory(dir=folder).registry.found
    assert [item.definition.handler.fn() for item in found] == [1, 2]


def test_two_apps_import_modules_of_one_name(memory: Any, tmp_path: Path) -> None:
    """Each App gets the modules of its own folder, also when it is loaded again after the other."""
    apps = []
    for name in ("first", "second"):
        folder = tmp_path / name / "workers"
        texts = {
            "_penstock_test_rates": f"RATE = {name!r}",
            "penstock_test_parts/__init__": "",
            "penstock_test_parts/prices": f"PRICE = {name!r}",
            "penstock_test_plain/sizes": f"SIZE = {name!r}",
            "uses": """
            from penstock_test_parts import prices
            from penstock_test_plain import sizes
            from _penstock_test_rates import RATE
            queue = f'{RATE}-{prices.PRICE}-{sizes.SIZE}'
            def handle(): ...
            """,
        }
        for path, text in texts.items():
            file = folder / f"{path}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text))
        apps.append(memory(dir=folder))
    first, second = apps
    assert (codes(first), codes(second)) == ([], [])
    expected = [["first-first-first"], ["second-second-second"]]
    assert [app.registry.queues() for app in apps] == expected
    first.reload()
    assert [app.registry.queues() for app in apps] == expected
    paths = search_path(tmp_path / "second" / "workers")
    order = [paths.index(str(tmp_path / name / "workers")) for name in ("second", "first")]
    assert order == sorted(order), "a child process imports the modules of its App"


def test_a_module_of_the_program_is_not_replaced(
    memory: Any, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_penstock_test_own.py").write_text("ANSWER = 'program'")
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("_penstock_test_own")
    uses = "from _penstock_test_own import ANSWER as queue\ndef handle(): ..."
    app = memory(dir=write(_penstock_test_own="ANSWER = 'folder'", uses=uses))
    assert app.registry.queues() == ["program"]
    assert sys.modules["_penstock_test_own"] is own


def test_a_missing_folder_is_an_error_with_a_fix(memory: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"folder .* not found; set 'dir'"):
        memory(dir=tmp_path / "nowhere")


# What is wrong


async def test_one_bad_file_does_not_stop_the_others(app: Any, write: Write) -> None:
    folder = write(
        good="queue = 'good'\ndef handle(): return 'good'",
        syntax="x = 1\ndef broken(:\n    pass\n",
        missing="import os\n\nimport no_such_module_anywhere\n",
        raises="def handle(): ...\n\n\n1 / 0\n",
        exits="import sys\nsys.exit(3)\n",
    )
    async with app(dir=folder) as a, a.workers.background():
        problems = {Path(p.file).stem: p for p in a.registry.problems}
        assert {name: (p.code, p.line) for name, p in problems.items()} == {
            "syntax": ("import_failed", 2),
            "missing": ("import_failed", 3),
            "raises": ("import_failed", 4),
            "exits": ("import_failed", 2),
        }
        assert "SyntaxError" in problems["syntax"].message
        assert "no_such_module_anywhere" in problems["missing"].message
        assert str(problems["raises"]).startswith(f"{folder}/raises.py:4: ")
        assert await a.jobs.result(await a.enqueue("good"), timeout=20) == "good"


def test_an_error_in_an_imported_module_names_the_import_line(memory: Any, write: Write) -> None:
    folder = write(_penstock_test_broken="1 / 0", user="\n\nimport _penstock_test_broken\n")
    (problem,) = memory(dir=folder).registry.problems
    assert (Path(problem.file).name, problem.line) == ("user.py", 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("config = {'flw': {}}\ndef handle(): ...", "unknown key 'flw'; did you mean 'flow'"),
        ("config = {'flow': {'id': 'f', 'trigers': 'x'}}\ndef handle(): ...", "did you mean 'triggers'"),
        ("config = {'retryPolicy': {'atempts': 3}}\ndef handle(): ...", "atempts"),
        ("config = {'dlq': {'enable': 1}}\ndef handle(): ...", "did you mean 'enabled'"),
        ("config = {'flow': {'id': 'f', 'role': 'boss'}}\ndef handle(): ...", "or 'step', got 'boss'"),
        ("config = {'flow': {'role': 'main'}}\ndef handle(): ...", "requires an 'id'"),
        ("config = {'flow': {'id': 'f', 'mode': 'any'}}\ndef handle(): ...", "got 'any'"),
        (
            "config = {'flow': {'id': 'f', 'subscriptions': [{'when': 1}]}}\ndef handle(): ...",
            "a subscription requires 'kind', the kind of an event",
        ),
        (
            "config = {'flow': {'id': 'f', 'subscriptions': [{'eventKind': 1}]}}\ndef handle(): ...",
            "a subscription requires 'eventKind', the kind of an event",
        ),
        ("config = {'queue': 'x'}", "defines 'config' but no handler. Define a function `handle(input, ctx)`"),
        ("queue = 'not a name'\ndef handle(): ...", "not a name"),
        ("def handle(a, b, c): ...", "got 3 parameters (a, b, c)"),
        ("config = {'timeoutMs': -1}\ndef handle(): ...", "timeout_ms must be a non-negative number of milliseconds"),
        ("from penstock import step\n@step(mode='any')\ndef x(): ...", "got 'any'"),
        ("from penstock import job\n@job(retry=0)\ndef x(): ...", "at least 1"),
        ("from penstock import job\n@job(timeout='soon')\ndef x(): ...", "invalid duration"),
    ],
)
def test_a_bad_definition_is_reported_with_its_file_and_a_fix(
    memory: Any, write: Write, text: str, message: str
) -> None:
    folder = write(bad=text, good="def handle(): ...")
    app = memory(dir=folder)
    (problem,) = app.registry.problems
    assert message in problem.message
    assert problem.file == str(folder / "bad.py")
    assert app.registry.queues() == ["good"]


def test_a_step_defined_twice_is_reported_and_the_first_is_used(memory: Any) -> None:
    @flow("f", emits=["go"])
    async def begin() -> None: ...

    def work() -> Any:
        @step(on="go", flow="f", name="work", queue="first")
        async def one() -> None: ...

        @step(on="go", flow="f", name="work", queue="second")
        async def two() -> None: ...

        return one, two

    app = memory(begin, *work())
    assert codes(app) == ["duplicate_step"]
    assert "defined twice" in app.registry.problems[0].message
    assert app.registry.flow("f").steps["work"].handler.queue == "first"


def test_a_flow_and_a_job_defined_twice_are_reported(memory: Any) -> None:
    def flows() -> Any:
        @flow("f")
        async def begin() -> None: ...

        return begin

    def jobs() -> Any:
        @job(queue="q", name="n")
        async def work() -> None: ...

        return work

    app = memory(flows(), flows(), jobs(), jobs())
    assert codes(app) == ["duplicate_flow", "duplicate_job"]
    assert len(app.registry.flows) == 1


def test_one_step_name_in_two_flows_is_allowed(memory: Any) -> None:
    @flow("a", emits=["go"])
    async def first() -> None: ...

    @flow("b", emits=["go"])
    async def second() -> None: ...

    def works(name: str) -> Any:
        @step(on="go", flow=name, name="work")
        async def work() -> None: ...

        return work

    app = memory(first, second, works("a"), works("b"))
    assert codes(app) == []


def test_a_join_that_cannot_complete_is_reported(memory: Any) -> None:
    @flow("f", emits=["a"])
    async def begin() -> None: ...

    @step(on=["a", "b"], mode="all", emits=[])
    async def join() -> None: ...

    app = memory(begin, join)
    assert codes(app) == ["unmet_join"]
    assert "no step of flow 'f' emits b" in app.registry.problems[0].message
    assert "join" not in app.registry.flow("f").steps

    @flow("g", emits=["a"], accepts=["b"])
    async def from_outside() -> None: ...

    assert codes(memory(from_outside, join)) == []


def test_an_unknown_compensation_is_reported_with_the_nearest_step(memory: Any) -> None:
    @flow("f", emits=["go"], compensation="refnd")
    async def begin() -> None: ...

    @step(flow="f")
    async def refund() -> None: ...

    app = memory(begin, refund)
    assert "unknown_step" in codes(app)
    assert "did you mean 'refund'" in app.registry.problems[0].message


def test_a_misspelt_event_has_a_near_match(memory: Any) -> None:
    @flow("f", emits=["order.created"])
    async def begin() -> None: ...

    @step(on="order.creatd")
    async def lost() -> None: ...

    (problem,) = memory(begin, lost).registry.problems
    assert problem.message == ("step 'lost' never starts: no step emits 'order.creatd'; did you mean 'order.created'?")


def test_a_step_that_nothing_starts_is_reported(memory: Any) -> None:
    @flow("f", emits=["order.created"])
    async def begin() -> None: ...

    @step()
    async def lost() -> None: ...

    @step(flow="ff")
    async def stray() -> None: ...

    lost_problem, stray_problem = memory(begin, lost, stray).registry.problems
    assert lost_problem.message.startswith("step 'lost' never starts: it has no on=, and no other step names it")
    assert stray_problem.message == "step 'stray' has flow='ff', but no @flow is named 'ff'; did you mean 'f'?"


def test_an_unreachable_step_is_reported(memory: Any) -> None:
    @flow("f", emits=["go"])
    async def begin() -> None: ...

    @step(on="never.emitted")
    async def lost() -> None: ...

    @step(on="go", flow="g")
    async def stray() -> None: ...

    app = memory(begin, lost, stray)
    assert sorted(codes(app)) == ["unknown_flow", "unreachable_step"]
    described = {p.code: p.message for p in app.registry.problems}
    assert "never.emitted" in described["unreachable_step"]
    assert "or to accepts=[…] of the flow" in described["unreachable_step"]
    assert "no @flow is named 'g'" in described["unknown_flow"]


def test_two_rate_limits_of_one_queue_are_reported(memory: Any) -> None:
    @job(queue="q", name="a", rate_limit="1/1s")
    async def one() -> None: ...

    @job(queue="q", name="b", rate_limit="2/1s")
    async def two() -> None: ...

    assert codes(memory(one, two)) == ["rate_conflict"]


@pytest.mark.parametrize("name", ["when", "map"])
def test_an_async_condition_is_refused(name: str) -> None:
    async def later(event: Any) -> bool:
        return False

    with pytest.raises(DefinitionError, match=f"`{name}` of the subscription to 'x' must be a `def` function"):

        @step(on="x", **{name: later})
        async def work() -> None: ...


def test_a_function_without_a_decorator_is_refused(memory: Any) -> None:
    def plain() -> None: ...

    with pytest.raises(DefinitionError, match="plain is not a handler"):
        memory(plain)


def test_a_decorated_function_can_be_called() -> None:
    @job(queue="q")
    def double(n: int) -> int:
        return n * 2

    assert double(21) == 42


# The registry as JSON


@pytest.mark.spec("000-11.2", "000-11.3", "000-11.4")
def test_the_registry_is_json_in_the_form_of_the_spec(memory: Any, write: Write) -> None:
    folder = write(image__resize=RESIZE, image__thumbnail=THUMBNAIL, broken="1/0")
    described = json.loads(json.dumps(memory(dir=folder, namespace="shop").describe()))
    assert described["version"] == 1
    assert described["compiledAt"].endswith("Z")
    assert described["provider"] == described["eventStore"] == {"name": "memory"}
    assert described["state"] == {"name": "memory", "namespace": "shop"}
    lines = [(one.pop("line"), len(one.pop("fingerprint"))) for one in described["workers"]]
    assert lines == [(13, 32), (12, 32)]
    assert described["workers"] == [
        {
            "id": "image/resize",
            "kind": "py",
            "filePath": str(folder / "image" / "resize.py"),
            "exportName": "handle",
            "runner": "inprocess",
            "queue": "image-resize",
            "flow": {
                "id": "image-pipeline",
                "role": "main",
                "step": "resize",
                "emits": ["resize.requested", "resize.progress", "resize.completed", "resize.failed"],
            },
        },
        {
            "id": "image/thumbnail",
            "kind": "py",
            "filePath": str(folder / "image" / "thumbnail.py"),
            "exportName": "handle",
            "runner": "inprocess",
            "queue": "image-thumbnail",
            "flow": {"id": "image-pipeline", "role": "step", "step": "thumbnail", "triggers": ["resize.completed"]},
        },
    ]
    place = {"queue": "image-thumbnail", "workerId": "image/thumbnail"}
    assert described["flows"] == {
        "image-pipeline": {
            "main": {"step": "resize", "queue": "image-resize", "workerId": "image/resize"},
            "steps": {"thumbnail": {**place, "triggers": ["resize.completed"], "mode": "once"}},
        }
    }
    assert described["eventIndex"] == {"resize.completed": [{"flowId": "image-pipeline", "step": "thumbnail", **place}]}
    assert [(p["code"], p["line"]) for p in described["problems"]] == [("import_failed", 1)]


@pytest.mark.spec("000-11.2", "000-11.9")
def test_the_registry_contains_no_functions_and_no_secrets(memory: Any) -> None:
    @flow("f", emits=["x"], key=lambda i: "secret", input_schema={"type": "object"})
    async def begin() -> None: ...

    @step(on="x", when=lambda e: True, map=lambda e: e.data)
    async def listener() -> None: ...

    from penstock import App

    app = App("sqlite:///nowhere.db?key=s3cret", handlers=[begin, listener])
    text = json.dumps(app.describe())
    assert "s3cret" not in text
    workers = {w["exportName"]: w for w in json.loads(text)["workers"]}
    assert workers["begin"]["inputSchema"] == {"type": "object"}
    assert workers["listener"]["flow"]["subscriptionsRef"]["exportName"] == "listener"
