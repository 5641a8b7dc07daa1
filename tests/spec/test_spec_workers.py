"""The worker files and configs in the specifications run as written, with TypeScript as Python dicts.

`test_spec_blocks.py` lists every code block of the five documents and the test that proves it.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Await, Context, Permanent, RateLimited, Retry, flow, job, step
from penstock.cli import main
from penstock.core.clock import to_iso
from penstock.core.errors import DefinitionError
from penstock.testing import TestApp
from penstock.testing.clock import FakeClock

Workers = Callable[..., TestApp]
SECOND, HOUR, DAY = 1000, 3_600_000, 86_400_000


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes worker files and returns their folder."""
    root = tmp_path / "workers"

    def write(**files: str) -> Path:
        root.mkdir(exist_ok=True)
        for name, text in files.items():
            (root / f"{name}.py").write_text(textwrap.dedent(text))
        return root

    return write


@pytest.fixture
def workers(url: str, folder: Callable[..., Path]) -> Workers:
    """Return a function that returns an App with worker files, on every store."""
    return lambda **files: TestApp(url, dir=folder(**files))


CREATE_ORDER = """
    config = {
        'step': 'create-order',
        'queue': 'orders',
        'retryPolicy': {'attempts': 3, 'backoff': {'type': 'exponential', 'delayMs': 1000}},
        'emits': ['order.created'],
    }

    def handle(input, ctx):
        order = {'id': input['id'], 'total': 12, 'requiresPayment': input.get('requiresPayment', True)}
        ctx.emit({'kind': 'order.created', 'data': {'orderId': order['id'], **order}})
        return {'orderId': order['id']}
"""
WAIT_FOR_PAYMENT = """
    config = {
        'step': 'wait-for-payment',
        'queue': 'payments',
        'subscriptions': [
            {
                'eventKind': 'order.created',
                'when': lambda event, ctx: event.data['requiresPayment'] is True,
                'map': lambda event: {'orderId': event.data['orderId'], 'amount': event.data['total']},
            }
        ],
        'await': {
            'type': 'event',
            'eventKind': 'payment.confirmed',
            'where': lambda event, ctx: event.data['orderId'] == ctx.input['orderId'],
            'timeout': 24 * 60 * 60 * 1000,
            'onTimeout': 'cancel-order',
        },
        'emits': ['order.paid', 'payment.timeout'],
    }

    def handle(input, ctx):
        ctx.logger.info(f"Payment confirmed for order {input['orderId']}")
        ctx.emit({'kind': 'order.paid', 'data': {'orderId': input['orderId']}})
        return {'paid': True, 'orderId': input['orderId']}
"""
FULFILL_ORDER = """
    config = {
        'step': 'fulfill-order',
        'queue': 'fulfillment',
        'subscriptions': [{'eventKind': 'order.paid', 'map': lambda event: {'orderId': event.data['orderId']}}],
        'emits': ['order.fulfilled'],
    }

    def handle(input, ctx):
        ctx.emit({'kind': 'order.fulfilled', 'data': {'orderId': input['orderId']}})
        return {'fulfilled': True}
"""
CANCEL_ORDER = """
    config = {'step': 'cancel-order', 'queue': 'orders'}

    def handle(input, ctx):
        return {'cancelled': input['orderId']}
"""
ORDER = {
    "create": CREATE_ORDER,
    "pay": WAIT_FOR_PAYMENT,
    "fulfill": FULFILL_ORDER,
    "cancel": CANCEL_ORDER,
}


# Separated step configs, 003 §6.5


@pytest.mark.spec("003-8.1", "003-8.2", "003-8.3", "003-8.4")
async def test_separated_steps_form_a_flow_named_after_the_first(workers: Workers) -> None:
    async with workers(**ORDER) as app:
        assert app.registry.problems == ()
        assert list(app.registry.flows) == ["create-order"], "the step that onTimeout names starts no flow"
        run = await app.start("create-order", {"id": 7})
        await app.settle()
        await app.emit("payment.confirmed", {"orderId": 8})
        await app.settle()
        assert "fulfill-order" not in (await app.runs.get(run)).steps, "another order was paid"
        await app.emit("payment.confirmed", {"orderId": 7})
        view = await app.finish(run)
        assert (view.status, view.result) == ("completed", {"fulfilled": True})
        assert view.steps["wait-for-payment"].result == {"paid": True, "orderId": 7}
        assert {event.kind for event in await app.events.read_all(f"nq:flow:{run}")} >= {
            "order.paid",
            "order.fulfilled",
        }
        assert [row.name for row in await app.queues.list()] == ["fulfillment", "orders", "payments"]


@pytest.mark.spec("003-8.5", "003-8.6")
async def test_the_timeout_of_an_await_is_in_milliseconds(workers: Workers) -> None:
    async with workers(**ORDER) as app:
        start = app.time.now_ms()
        view = await app.run_flow("create-order", {"id": 7})
        assert (view.result, app.time.now_ms() - start) == ({"cancelled": 7}, DAY)


async def test_a_condition_that_is_not_met_starts_nothing(workers: Workers) -> None:
    async with workers(**ORDER) as app:
        view = await app.run_flow("create-order", {"id": 7, "requiresPayment": False})
        assert (view.result, list(view.steps)) == ({"orderId": 7}, ["create-order"])


@pytest.mark.spec("003-8.10")
async def test_a_step_is_part_of_every_flow_that_emits_what_it_listens_to(workers: Workers) -> None:
    def make(step: str, on: str, emits: str) -> str:
        listens = f"'subscriptions': [{{'eventKind': '{on}'}}]," if on else ""
        return f"""
            config = {{'step': '{step}', 'queue': '{step}', {listens} 'emits': ['{emits}']}}

            def handle(input, ctx):
                ctx.emit({{'kind': '{emits}', 'data': {{'orderId': 1, 'total': 2, 'requiresPayment': True}}}})
        """

    files = {
        "sign_up": make("create-subscription", "", "order.created"),
        "activate": make("activate-subscription", "order.paid", "subscription.active"),
        "refund": make("initiate-refund", "", "refund.initiated"),
        "approve": make("wait-for-approval", "refund.initiated", "approval.granted"),
        "process": make("process-refund", "approval.granted", "refund.done"),
    }
    async with workers(**ORDER, **files) as app:
        assert app.registry.problems == ()
        steps = {name: set(flow.steps) for name, flow in app.registry.flows.items()}
        paid = {"wait-for-payment", "cancel-order", "fulfill-order", "activate-subscription"}
        assert steps == {
            "create-order": {"create-order", *paid},
            "create-subscription": {"create-subscription", *paid},
            "initiate-refund": {"initiate-refund", "wait-for-approval", "process-refund"},
        }
        assert (await app.run_flow("initiate-refund")).status == "completed"


# The first step of a flow of its own


def test_a_decorated_step_with_a_queue_needs_no_flow() -> None:
    @step(queue="orders", emits=["placed"])
    async def place(order: Any, ctx: Context) -> None: ...

    @step(on="placed", queue="parcels", compensation="unpack")
    async def pack(order: Any) -> None: ...

    @step(queue="parcels")
    async def unpack(undo: Any) -> None: ...

    registry = TestApp(handlers=[place, pack, unpack]).registry
    assert (registry.problems, list(registry.flows), list(registry.flows["place"].steps)) == (
        (),
        ["place"],
        ["place", "pack", "unpack"],
    )


def test_a_decorated_step_without_a_queue_and_without_events_is_reported() -> None:
    @step()
    async def forgotten() -> None: ...

    (problem,) = TestApp(handlers=[forgotten]).registry.problems
    assert problem.code == "unreachable_step"


def test_two_flows_of_one_name_are_reported(folder: Callable[..., Path]) -> None:
    taken = "config = {'flow': {'id': 'create-order', 'role': 'main'}}\ndef handle(): ..."
    registry = TestApp(dir=folder(create=CREATE_ORDER, taken=taken)).registry
    assert [problem.code for problem in registry.problems] == ["duplicate_flow"]


# `where`


def test_where_takes_the_event_or_the_event_and_the_ctx() -> None:
    for where in (lambda event: True, lambda event, ctx: True, lambda event, ctx, limit=5: True):
        Await("event", "paid", where=where)
    with pytest.raises(DefinitionError, match=r"must be named ctx, got 'input'; the step's input is ctx\.input"):
        Await("event", "paid", where=lambda event, input: True)
    with pytest.raises(DefinitionError, match=r"must take \(event\) or \(event, ctx\), got \(\)"):
        Await("event", "paid", where=lambda: True)

    async def late(event: Any) -> bool:
        return True

    with pytest.raises(DefinitionError, match="got an async function"):
        Await("event", "paid", where=late)  # type: ignore[arg-type]


@pytest.mark.spec("003-8.4")
async def test_where_gets_the_run_of_the_step(kit: Any) -> None:
    seen: list[Any] = []

    def where(event: Any, ctx: Any) -> bool:
        seen.append((ctx.input, ctx.run_id, ctx.flow, ctx.step, ctx.n, ctx.correlation_id))
        return True

    @flow("ship", step="send", wait=Await("event", "paid", where=where))
    async def ship(order: Any) -> str:
        return "shipped"

    async with kit(ship) as app:
        run = await app.start(ship, 7, correlation_id="c-1")
        await app.settle()
        await app.emit("paid")
        assert (await app.finish(run)).result == "shipped"
        assert seen == [(7, run, "ship", "send", 1, "c-1")]


# Numbers: milliseconds in a config, seconds in Python

NUMBERS = """
    queue = 'numbers'
    config = {{
        'flow': {{'id': 'numbers', 'role': 'main'}},
        'timeout': 1500,
        'rateLimit': {{'max': 5, 'duration': 2000}},
        'schedule': {{'every': 60_000}},
        'await': {wait},
    }}
    def handle(): return 4000
"""


@pytest.mark.spec("003-8.5", "003-8.8")
@pytest.mark.parametrize("delay", ["5000", "'5s'", "lambda result: result + 1000"])
async def test_numbers_in_a_config_are_milliseconds(folder: Callable[..., Path], delay: str) -> None:
    wait = f"{{'type': 'time', 'delay': {delay}}}"
    async with TestApp(dir=folder(numbers=NUMBERS.format(wait=wait))) as app:
        handler = app.registry.flow("numbers").definition.entry.handler
        assert (handler.timeout_ms, handler.rate and handler.rate.duration_ms) == (1500, 2000)
        assert app.registry.schedules["numbers"][0].every_ms == 60_000
        start = app.time.now_ms()
        await app.run_flow("numbers")
        assert app.time.now_ms() - start == 5000


async def test_numbers_in_python_are_seconds(memory: Any) -> None:
    @flow("numbers", timeout=1.5, rate_limit={"max": 5, "duration": 2}, wait={"type": "time", "delay": 5})
    async def numbers() -> None: ...

    handler = memory(numbers).registry.flow("numbers").definition.entry.handler
    assert (handler.timeout_ms, handler.rate.duration_ms, handler.wait.describe()["delay"]) == (1500, 2000, 5000)


def test_a_mapping_with_camel_case_keys_has_milliseconds_also_in_a_decorator(memory: Any) -> None:
    @flow("ship", wait={"type": "event", "eventKind": "paid", "timeout": 86_400_000})
    async def ship() -> None: ...

    wait = memory(ship).registry.flow("ship").definition.entry.handler.wait
    assert wait.describe() == {"type": "event", "eventKind": "paid", "timeout": DAY}


# `handler`


@pytest.mark.spec("003-8.9")
@pytest.mark.parametrize("handler", ["work", "'work'", "'more:work'"])
async def test_the_handler_of_a_config_is_used(folder: Callable[..., Path], handler: str) -> None:
    root = folder(
        named=f"def work(input): return input + 1\n\nconfig = {{'step': 'named', 'queue': 'q', 'handler': {handler}}}",
    )
    (root.parent / "more.py").write_text("def work(input): return input + 1\n")
    async with TestApp(dir=root) as app:
        assert app.registry.problems == ()
        assert (await app.run_flow("named", 1)).result == 2


@pytest.mark.spec("003-8.9")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("config = {'handler': 'wrok'}\ndef work(): ...", "did you mean 'work'"),
        ("config = {'handler': 'nowhere:work'}", "No module named 'nowhere'"),
        ("config = {'handler': 7}", "config.handler must be a function or the name of one"),
        ("def work(): ...\ndef handle(): ...\nconfig = {'handler': work}", "remove one of them"),
        (
            "from penstock import job\n@job()\ndef work(): ...\nconfig = {'handler': work}",
            "is defined twice: by its decorator and as config.handler",
        ),
    ],
)
def test_a_handler_that_cannot_be_used_is_reported(folder: Callable[..., Path], text: str, expected: str) -> None:
    (root := folder()).joinpath("bad.py").write_text(text)
    (problem,) = TestApp(dir=root).registry.problems
    assert expected in str(problem)


# Diagrams as data, 003 §6.5

DIAGRAM = {
    "nodes": [
        {"id": "create-order", "type": "step", "emits": ["order.created"], "subscriptions": []},
        {"id": "cancel-order", "type": "step", "emits": [], "subscriptions": []},
        {
            "id": "wait-for-payment",
            "type": "await-step",
            "await": {"type": "event", "eventKind": "payment.confirmed", "timeout": DAY},
            "emits": ["order.paid", "payment.timeout"],
            "subscriptions": [{"eventKind": "order.created", "when": "event.data['requiresPayment'] is True"}],
        },
        {
            "id": "fulfill-order",
            "type": "step",
            "emits": ["order.fulfilled"],
            "subscriptions": [{"eventKind": "order.paid"}],
        },
    ],
    "edges": [
        {
            "from": "create-order",
            "to": "wait-for-payment",
            "label": "order.created",
            "type": "emit",
            "condition": "event.data['requiresPayment'] is True",
        },
        {"from": "wait-for-payment", "to": "fulfill-order", "label": "order.paid", "type": "emit"},
        {"from": "wait-for-payment", "to": "cancel-order", "label": "timeout 1d", "timeout": DAY},
        {
            "from": "wait-for-payment",
            "to": "wait-for-payment",
            "label": "⏱ payment.confirmed",
            "type": "await",
            "timeout": DAY,
        },
    ],
}


@pytest.mark.spec("003-9.1", "003-9.2", "003-9.3")
def test_a_diagram_as_data(folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    root = folder(**ORDER)
    found = TestApp(dir=root).flows.diagram("create-order")
    for part in ("nodes", "edges"):
        key = json.dumps
        assert sorted(found[part], key=key) == sorted(DIAGRAM[part], key=key)
    assert main(["diagram", "create-order", "--json", "--dir", str(root)]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_conditions_in_a_diagram() -> None:
    def is_heavy(event: Any) -> bool:
        """Return whether a parcel is heavy."""
        return bool(event.data > 9)

    def is_odd(event: Any) -> bool:
        odd = event.data % 2
        return bool(odd)

    @flow("mail", emits=["parcel"])
    async def mail() -> None: ...

    whens: list[Any] = [is_heavy, is_odd, {"to": "us"}, lambda e: e.data == 1, lambda e: e.data == 2]
    steps = [step(on="parcel", name=f"s{n}", when=when)(_nothing()) for n, when in enumerate(whens)]
    edges = TestApp(handlers=[mail, *steps]).flows.diagram(mail)["edges"]
    assert [edge["condition"] for edge in edges] == [
        "bool(event.data > 9)",
        "is_odd",
        '{"to":"us"}',
        "e.data == 1",
        "e.data == 2",
    ]


def _nothing() -> Callable[..., Any]:
    async def nothing() -> None: ...

    return nothing


# `map` with options, and the streams of subscriptions, 000 §14

OPTIONS = """
    config = {{'flow': {{'id': 'many', 'role': 'main', 'emits': ['item']}}}}

    def handle(items, ctx):
        for item in items:
            ctx.emit({{'kind': 'item', 'data': item}})
"""
LISTENER = """
    config = {{
        'step': 'take',
        'queue': 'take',
        'mode': '{mode}',
        'subscriptions': [{{'eventKind': 'item', 'map': lambda event: {{'data': event.data['id'], 'opts': {opts}}}}}],
    }}

    def handle(input, ctx):
        if input == 'bad':
            raise ValueError('bad')
        return [input, ctx.attempt]
"""


@pytest.mark.spec("000-8.10")
@pytest.mark.parametrize(
    ("mode", "opts", "taken"),
    [
        ("once", "{}", ["a"]),
        ("once", "{'jobId': event.data['id']}", ["a", "b"]),
        ("each", "{'jobId': event.data['id']}", ["a", "b"]),
        ("each", "{'jobId': event.data['id'], 'dedupe': False}", ["a", "a", "b"]),
        ("once", "{'dedupe': False}", ["a", "a", "b"]),
        ("each", "{'dedupe': True}", ["a"]),
    ],
)
async def test_job_id_and_dedupe_of_a_map(workers: Workers, mode: str, opts: str, taken: list[str]) -> None:
    async with workers(main=OPTIONS.format(), take=LISTENER.format(mode=mode, opts=opts)) as app:
        run = await app.start("many", [{"id": "a"}, {"id": "a"}, {"id": "b"}])
        assert (await app.finish(run)).status == "completed"
        started = [e for e in await app.events.read_all(f"nq:flow:{run}") if e.kind == "step.completed"]
        assert sorted(e.data["result"][0] for e in started if e.step == "take") == taken


@pytest.mark.spec("000-8.10")
async def test_delay_priority_and_attempts_of_a_map(workers: Workers) -> None:
    opts = "{'delay': 5000, 'priority': 3, 'attempts': 2}"
    async with workers(main=OPTIONS.format(), take=LISTENER.format(mode="each", opts=opts)) as app:
        start = app.time.now_ms()
        run = await app.start("many", [{"id": "bad"}])
        await app.settle()
        row = await app.store.job(f"{run}.take.1")
        assert row is not None
        assert (row.priority, row.due) == (3, start + 5000)
        assert (await app.finish(run)).status == "failed"
        failed = [e for e in await app.events.read_all(f"nq:flow:{run}") if e.kind == "step.failed"]
        assert [(e.meta["attempt"], e.meta["maxAttempts"], e.data["willRetry"]) for e in failed] == [
            (1, 2, True),
            (2, 2, False),
        ]
        letters = await app.dead_letters.list("take")
        await app.dead_letters.redrive(letters[0][0])
        await app.finish(run)
        failed = [e for e in await app.events.read_all(f"nq:flow:{run}") if e.kind == "step.failed"]
        assert failed[-1].meta["maxAttempts"] == 2, "a redriven job keeps its attempts"


@pytest.mark.parametrize(
    ("opts", "expected"),
    [
        ("{'jbId': 1}", "did you mean 'jobId'"),
        ("{'attempts': 0}", "attempts must be a whole number"),
        ("{'priority': -1}", "priority must be a whole number"),
        ("{'delay': 'soon'}", "invalid duration 'soon'"),
    ],
)
async def test_invalid_options_of_a_map_fail_the_step(folder: Callable[..., Path], opts: str, expected: str) -> None:
    async with TestApp(dir=folder(main=OPTIONS.format(), take=LISTENER.format(mode="each", opts=opts))) as app:
        view = await app.run_flow("many", [{"id": "a"}])
        assert (view.status, view.steps["take"].status) == ("failed", "failed")
        assert expected in str(view.steps["take"].error)


async def test_a_join_takes_no_job_id(memory: Any) -> None:
    @flow("main", emits=["item"])
    async def main_step(ctx: Context) -> None:
        ctx.emit("item", 1)

    @step(on="item", mode="all", map=lambda event: {"data": 1, "opts": {"jobId": "x"}})
    async def join(input: Any) -> None: ...

    async with memory(main_step, join) as app, app.workers.background():
        run, status = await app.run_to_end("main")
        assert status == "failed"
        assert "do not apply to a step with mode 'all'" in (await app.events_of(run, "step.failed"))[0].data["error"]


RULE = """
    config = {
        'flow': {
            'id': 'image-pipeline',
            'role': 'step',
            'step': 'thumbnail',
            'subscriptions': [
                {
                    'stream': lambda flowId, corrId: f'nq:flow:{flowId}',
                    'when': {'kind': ['resize.completed', 'crop.completed'], 'where': lambda e: e.data['ok']},
                    'map': lambda event: {'data': event.data['url']},
                }
            ],
        }
    }

    def handle(input):
        return input
"""


@pytest.mark.spec("000-8.11")
async def test_a_subscription_rule_with_a_stream_and_a_pattern(workers: Workers) -> None:
    resize = """
        config = {'flow': {'id': 'image-pipeline', 'role': 'main', 'emits': ['resize.completed', 'crop.completed']}}
        def handle(input, ctx):
            ctx.emit({'kind': 'resize.completed', 'data': {'ok': False, 'url': 'small'}})
            ctx.emit({'kind': 'crop.completed', 'data': {'ok': True, 'url': 'square'}})
    """
    async with workers(resize=resize, thumbnail=RULE) as app:
        assert app.registry.problems == ()
        assert (await app.run_flow("image-pipeline")).result == "square"


@pytest.mark.spec("000-8.11")
@pytest.mark.parametrize("stream", ["'global'", "'nq:global'", "'nq:events'", "lambda flow, corr: 'nq:events'"])
async def test_a_step_that_listens_to_the_global_stream_starts_a_run_for_each_event(
    folder: Callable[..., Path], stream: str
) -> None:
    text = f"""
        config = {{
            'step': 'audit',
            'queue': 'audits',
            'subscriptions': [{{
                'stream': {stream},
                'eventKind': 'order.paid',
                'map': lambda event: {{'data': event.data['id'], 'opts': {{'jobId': f"audit-{{event.data['id']}}"}}}},
            }}],
        }}
        def handle(input): return input
    """
    async with TestApp(dir=folder(audit=text)) as app:
        assert app.registry.problems == ()
        for id in (7, 7, 8):
            await app.emit("order.paid", {"id": id})
        await app.settle()
        assert sorted(row.id for row in await app.runs.list()) == ["audit-7", "audit-8"]
        assert (await app.finish("audit-7")).result == 7


@pytest.mark.spec("000-8.11")
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("{'subscriptions': [{'stream': 'nq:queue:mail', 'eventKind': 'a.b'}]}", "must be 'flow'"),
        ("{'subscriptions': [{'stream': lambda flow: f'nq:job:{flow}', 'eventKind': 'a.b'}]}", "must be 'flow'"),
        ("{'subscriptions': [{'stream': 'global', 'eventKind': 'a.b'}, {'eventKind': 'c.d'}]}", "use two steps"),
        (
            "{'flow': {'id': 'f', 'subscriptions': [{'stream': 'global', 'eventKind': 'a.b'}]}}",
            "starts a new run. Move it to start_on= of the @flow",
        ),
    ],
)
def test_a_stream_that_a_step_cannot_listen_to_is_reported(
    folder: Callable[..., Path], config: str, expected: str
) -> None:
    (problem,) = TestApp(dir=folder(bad=f"config = {config}\ndef handle(): ...")).registry.problems
    assert expected in str(problem)


# Registration by path, and import by module path


async def test_a_worker_file_is_registered_while_a_worker_runs(url: str, tmp_path: Path) -> None:
    file = tmp_path / "late.py"
    file.write_text("queue = 'late'\ndef handle(input): return input + 1\n")
    async with TestApp(url, handlers=[]) as app:
        assert app.register(file).queues() == ["late"]
        assert await app.run_job("late", 1) == 2
        file.write_text("queue = 'late'\ndef handle(input): return input + 10\n")
        app.reload()
        assert await app.run_job("late", 1) == 11
        app.register(file)
        assert app.registry.problems == ()


def test_a_file_that_cannot_be_registered_changes_nothing(tmp_path: Path) -> None:
    @job(queue="taken")
    async def taken() -> None: ...

    app = TestApp(handlers=[taken])
    before = app.registry
    (tmp_path / "broken.py").write_text("def handle(:")
    (tmp_path / "twin.py").write_text("queue = 'taken'\ndef handle(): ...")
    for name, expected in (
        ("broken.py", "cannot be imported"),
        ("twin.py", "is defined twice"),
        ("missing.py", "not found"),
    ):
        with pytest.raises(Exception, match=expected):
            app.register(tmp_path / name)
    assert app.registry is before


def test_a_new_file_in_the_folder_is_registered_once(folder: Callable[..., Path]) -> None:
    root = folder(one="def handle(): ...")
    app = TestApp(dir=root)
    folder(two="def handle(): ...")
    assert app.register(root / "two.py").queues() == ["one", "two"]
    assert app.reload().queues() == ["one", "two"]
    assert app.registry.problems == ()


@pytest.mark.spec("000-3.31")
async def test_worker_files_are_imported_by_module_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "shop_by_module" / "workers"
    (root / "image").mkdir(parents=True)
    for package in (root.parent, root, root / "image"):
        (package / "__init__.py").touch()
    (root / "_sizes.py").write_text("SIZE = 100\n")
    (root / "image" / "resize.py").write_text(
        "from .._sizes import SIZE\nfrom penstock import flow\n\n@flow('resize')\ndef resize(): return [SIZE, __name__]\n"
    )
    with pytest.raises(AssertionError):
        assert TestApp(dir=root).registry.problems == (), "a file of its own has no relative imports"
    async with TestApp(dir=root, import_mode="module") as app:
        assert app.registry.problems == ()
        assert (await app.run_flow("resize")).result == [100, "shop_by_module.workers.image.resize"]
        (root / "_sizes.py").write_text("SIZE = 2000\n")
        app.reload()
        assert (await app.run_flow("resize")).result[0] == 2000
    (root / "send-mail.py").write_text("def handle(): ...")
    (problem,) = TestApp(dir=root, import_mode="module").registry.problems
    assert "'send-mail' is not a Python name" in str(problem)


# Retries and errors, 003 §6.1


RETRIED = """
    config = {
        'flow': {'id': 'fetch', 'role': 'main', 'step': 'fetch_data'},
        'retryPolicy': {
            'attempts': 3,
            'backoff': {'type': 'exponential', 'delayMs': 1000, 'maxDelayMs': 60000, 'jitter': False},
            'retriableErrors': ['NetworkError', 'TimeoutError'],
        },
    }

    def handle(failures, ctx):
        if ctx.attempt <= failures:
            raise TimeoutError('Network timeout')
        return 'fetched'
"""


@pytest.mark.spec("003-2.8", "003-2.9")
async def test_the_events_of_a_retried_step(workers: Workers) -> None:
    async with workers(fetch=RETRIED) as app:
        start = app.time.now_ms()
        run = await app.start("fetch", 1)
        await app.finish(run)
        events = [e for e in await app.events.read_all(f"nq:flow:{run}") if e.kind.startswith("step.")]
        assert [e.kind for e in events] == [
            "step.started",
            "step.failed",
            "step.retry",
            "step.started",
            "step.completed",
        ]
        failed, retry = events[1:3]
        assert (failed.data["error"], failed.data["willRetry"]) == ("Network timeout", True)
        assert failed.data["nextRetryAt"] == to_iso(start + SECOND)
        assert (failed.meta["attempt"], failed.meta["maxAttempts"]) == (1, 3)
        assert failed.meta["backoff"] == {"type": "exponential", "delayMs": 1000}
        assert (retry.data["delayMs"], retry.meta["attempt"]) == (1000, 2)


async def test_an_error_outside_retriable_errors_is_final(workers: Workers) -> None:
    text = RETRIED.replace("TimeoutError('Network timeout')", "ValueError('Invalid input')")
    async with workers(fetch=text) as app:
        run = await app.start("fetch", 9)
        assert (await app.finish(run)).status == "failed"
        (failed,) = [e for e in await app.events.read_all(f"nq:flow:{run}") if e.kind == "step.failed"]
        assert (failed.data["willRetry"], "backoff" in failed.meta) == (False, False)


@pytest.mark.parametrize(
    ("attributes", "attempts", "waited"),
    [({"retriable": True, "retry_after": 5, "code": "NETWORK_TIMEOUT"}, 2, 5000), ({"retriable": False}, 1, 0)],
)
async def test_errors_that_decide_about_their_retry(
    kit: Any, attributes: dict[str, Any], attempts: int, waited: int
) -> None:
    @flow("calls", retry=2)
    async def calls() -> None:
        problem = RuntimeError("Network timeout")
        for name, value in attributes.items():
            setattr(problem, name, value)
        raise problem

    async with kit(calls) as app:
        start = app.time.now_ms()
        view = await app.run_flow("calls")
        assert (view.status, view.steps["calls"].attempt, app.time.now_ms() - start) == ("failed", attempts, waited)


@pytest.mark.parametrize(("problem", "attempts"), [(Permanent("no"), 1), (Retry("again", after="5s"), 2)])
async def test_the_same_with_errors_of_penstock(kit: Any, problem: Exception, attempts: int) -> None:
    @flow("calls", retry=2)
    async def calls() -> None:
        raise problem

    async with kit(calls) as app:
        assert (await app.run_flow("calls")).steps["calls"].attempt == attempts


# Waits inside a handler, 003 §6.2 and §6.4


async def test_a_step_waits_for_a_time(kit: Any) -> None:
    until = datetime(2025, 10, 30, 12, tzinfo=UTC)

    @flow("waits")
    async def my_step(ctx: Context) -> Any:
        ctx.log("Starting work...")
        await ctx.wait.time("5s")
        await ctx.wait.time(until)
        return {"done": True}

    async with kit(my_step, clock=FakeClock(int((until - timedelta(hours=1)).timestamp() * 1000))) as app:
        run = await app.start("waits")
        assert (await app.finish(run)).result == {"done": True}
        assert app.time.now_ms() == int(until.timestamp() * 1000)
        waits = [e.data for e in await app.events.read_all(f"nq:flow:{run}") if e.kind == "step.await.time"]
        resumed = [e.data for e in await app.events.read_all(f"nq:flow:{run}") if e.kind == "step.resumed"]
        assert (waits[1]["resumeAt"], resumed[0]["awaitDuration"]) == (to_iso(int(until.timestamp() * 1000)), 5000)


async def test_a_step_waits_for_an_event(kit: Any) -> None:
    @flow("approval")
    async def approval_step(input: Any, ctx: Context) -> Any:
        event = await ctx.wait.event("approval.granted", match={"orderId": input["orderId"]}, timeout="24h")
        return {"approved": event.data["approved"]}

    async with kit(approval_step) as app:
        run = await app.start("approval", {"orderId": 7})
        await app.advance("42s")
        await app.emit("approval.granted", {"orderId": 8, "approved": False})
        await app.emit("approval.granted", {"orderId": 7, "approved": True})
        assert (await app.finish(run)).result == {"approved": True}
        events = {e.kind: e.data for e in await app.events.read_all(f"nq:flow:{run}")}
        assert (events["step.await.event"]["eventKind"], events["step.await.event"]["timeout"]) == (
            "approval.granted",
            DAY,
        )
        assert events["step.resumed"]["awaitDuration"] == 42_000


async def test_a_step_waits_for_a_trigger(kit: Any) -> None:
    @flow("hook")
    async def webhook_step(input: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("order", type="webhook", timeout="7d")
        return {"id": trigger.id, "webhookData": await trigger.wait()}

    async with kit(webhook_step) as app:
        run = await app.start("hook", {"orderId": 7})
        await app.settle()
        await app.fire("order", {"paid": True})
        assert (await app.finish(run)).result["webhookData"] == {"paid": True}
        events = {e.kind: e.data for e in await app.events.read_all(f"nq:flow:{run}")}
        assert events["step.await.trigger"]["triggerType"] == "webhook"
        assert events["step.await.trigger"]["timeout"] == 7 * DAY


async def test_a_handler_catches_the_timeout_of_a_wait(kit: Any) -> None:
    @flow("patient")
    async def step_with_timeout(ctx: Context) -> Any:
        try:
            return await ctx.wait.event("data.ready", timeout="30s")
        except Exception as error:
            if getattr(error, "code", None) == "AWAIT_TIMEOUT":
                ctx.log.warning("Timed out waiting for event")
                return {"timedOut": True}
            raise

    async with kit(step_with_timeout) as app:
        run = await app.start("patient")
        assert (await app.finish(run)).result == {"timedOut": True}
        events = {e.kind: e.data for e in await app.events.read_all(f"nq:flow:{run}")}
        assert (events["step.await.timeout"]["awaitType"], events["step.await.timeout"]["duration"]) == (
            "event",
            30_000,
        )


async def test_a_step_retries_and_waits(kit: Any) -> None:
    calls: list[int] = []

    @flow("resilient", retry=3)
    async def resilient_step(ctx: Context) -> Any:
        async def fetch() -> str:
            calls.append(ctx.attempt)
            if len(calls) == 1:
                raise ConnectionError("no answer")
            return "data"

        data = await ctx.run("fetch", fetch)
        trigger = await ctx.wait.trigger("approval", timeout="24h")
        return {"data": data, "approval": await trigger.wait()}

    async with kit(resilient_step) as app:
        run = await app.start("resilient")
        await app.advance("1m")
        await app.fire("approval", "yes")
        assert (await app.finish(run)).result == {"data": "data", "approval": "yes"}
        kinds = [e.kind for e in await app.events.read_all(f"nq:flow:{run}") if e.kind.startswith("step.")]
        assert kinds == [
            "step.started",
            "step.failed",
            "step.retry",
            "step.started",
            "step.await.trigger",
            "step.resumed",
            "step.started",
            "step.completed",
        ]
        assert calls == [1, 2]


# Queues, 002 and 004


@pytest.mark.spec("002-3.11")
async def test_a_dead_letter_is_the_job_of_the_specification(kit: Any) -> None:
    @job(queue="order-events", name="order-created", retry=2)
    async def fails(data: Any) -> None:
        raise ValueError("broken")

    async with kit(fails) as app:
        id = await app.enqueue("order-events", {"urn": "o-1", "payload": 1}, name="order-created")
        await app.advance("1h")
        (row,) = await app.jobs.list("order-events-dlq", "waiting")
        assert row.name == "order-created-failed"
        (found,) = await app.dead_letters.list("order-events")
        letter = found[1]
        assert (letter.original_job_id, letter.original_job_name) == (id, "order-created")
        assert letter.original_data == {"urn": "o-1", "payload": 1}
        assert letter.error["message"] == "broken"
        assert "ValueError" in letter.error["stack"]
        assert letter.attempts_made == 2
        await app.advance("400d")
        assert len(await app.dead_letters.list("order-events")) == 1, "it is never removed"
        await app.dead_letters.redrive(found[0])
        await app.advance("1h")
        assert [one.original_job_name for _, one in await app.dead_letters.list("order-events")] == ["order-created"]


DEFAULT_OPTIONS = """
    queue = 'mail'
    config = {
        'retryPolicy': {'attempts': 3, 'backoff': {'type': 'exponential', 'delay': 30000, 'jitter': False}},
        'removeOnComplete': 1000,
        'removeOnFail': 5000,
    }

    def handle(input, ctx):
        raise ConnectionError('away')
"""


@pytest.mark.spec("002-5.6", "002-3.6")
async def test_the_default_job_options_retry_after_30_and_60_seconds(workers: Workers) -> None:
    async with workers(mail=DEFAULT_OPTIONS) as app:
        start = app.time.now_ms()
        await app.enqueue("mail")
        await app.advance("10m")
        failed = [e for e in await app.events.read_all("nq:queue:mail") if e.kind == "job.failed"]
        assert [int(e.id.partition("-")[0]) - start for e in failed] == [0, 30_000, 90_000]
        assert len(await app.dead_letters.list("mail")) == 1


async def test_a_rate_limit_and_an_answer_that_holds_the_queue(kit: Any) -> None:
    started: list[int] = []

    @job(queue="api", rate_limit={"max": 2, "duration": "1s"})
    async def call(n: int, ctx: Context) -> None:
        started.append(app.time.now_ms() - start)
        if n == 3 and len(started) == 4:
            raise RateLimited("10s")

    async with kit(call) as app:
        start = app.time.now_ms()
        for n in range(4):
            await app.enqueue("api", n)
        await app.advance("1m")
        assert started[:4] == [0, 0, 1000, 1000]
        assert len(started) == 5
        assert started[4] >= 11_000
