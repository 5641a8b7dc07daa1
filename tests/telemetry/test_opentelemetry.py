"""OpenTelemetry: one trace from a start through steps, attempts, durable calls, waits, children and HTTP."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from penstock import App, Context, flow, job, step
from penstock.core.errors import ConfigError
from penstock.core.trace_context import current_trace
from penstock.dags import node
from penstock.entities import States, Transition, entity
from penstock.telemetry.logging import AttemptFilter
from penstock.telemetry.opentelemetry import OpenTelemetry
from penstock.testing.until import until


class Recorder:
    """Spans and metrics in memory."""

    def __init__(self, sampler: Sampler = ALWAYS_ON, **options: Any) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider(sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.listener = OpenTelemetry(self.provider, MeterProvider([self.reader]), **options)

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        found = self.exporter.get_finished_spans()
        return [span for span in found if name is None or span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Return whether a span is a child of another one, in the same trace."""
    return (
        span.parent is not None
        and span.parent.span_id == parent.context.span_id
        and span.context.trace_id == parent.context.trace_id
    )


@flow("order", emits=["paid"])
async def order(n: int, ctx: Context) -> None:
    await ctx.run("charge", lambda: n)
    ctx.emit("paid", n)


@step(flow="order", on="paid")
def ship(n: int, ctx: Any) -> int:
    return ctx.run("label", lambda: n + 1)


@job(queue="mail", retry={"attempts": 2, "backoff": {"type": "fixed", "delayMs": 1}})
async def send(n: int) -> int:
    if n < 0:
        raise ValueError("no such address")
    return n


async def test_a_run_is_one_trace(app: Any, recorder: Recorder) -> None:
    async with app(order, ship, listeners=[recorder.listener]) as a, a.workers.background(name="w1"):
        run = await a.start("order", 7)
        assert await a.result(run, timeout=20) == 8
        await until(lambda: len(recorder.spans("process default")) == 2)
    start = recorder.one("start order")
    first, second = sorted(recorder.spans("process default"), key=lambda span: span.start_time or 0)
    assert start.parent is None
    assert is_child(first, start)
    assert is_child(second, first)  # the step that emitted the event
    assert is_child(recorder.one("run charge"), first)
    assert is_child(recorder.one("run label"), second)
    assert first.attributes is not None
    assert dict(first.attributes) == {
        "messaging.system": "penstock",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": f"{run}.order.1",
        "messaging.message.conversation_id": run,
        "messaging.client.id": "w1",
        "penstock.job.name": "order",
        "penstock.attempt": 1,
        "penstock.run": run,
        "penstock.flow": "order",
        "penstock.step": "order",
        "penstock.outcome": "completed",
    }
    assert (first.kind, start.kind) == (trace.SpanKind.CONSUMER, trace.SpanKind.PRODUCER)


async def test_attempts_of_a_job_are_spans_of_one_trace(app: Any, recorder: Recorder) -> None:
    async with app(send, listeners=[recorder.listener]) as a, a.workers.background():
        await a.wait_for_state(await a.enqueue("mail", -1), "failed")
        await until(lambda: len(recorder.spans("process mail")) == 2)
    enqueue, attempts = recorder.one("enqueue mail"), recorder.spans("process mail")
    assert all(is_child(one, enqueue) for one in attempts)
    assert [one.attributes["penstock.outcome"] for one in attempts] == ["retrying", "failed"]
    assert [one.attributes["penstock.attempt"] for one in attempts] == [1, 2]
    for one in attempts:
        assert one.status.status_code is trace.StatusCode.ERROR
        assert one.attributes["error.type"] == "ValueError"
        (event,) = one.events
        assert event.attributes["exception.message"] == "no such address"
        assert "raise ValueError" in event.attributes["exception.stacktrace"]


async def test_a_replayed_call_makes_no_second_span(app: Any, recorder: Recorder) -> None:
    @flow("ask", emits=[])
    async def ask(_: Any, ctx: Context) -> Any:
        await ctx.run("before", lambda: 1)
        answer = await ctx.wait.event("answered")
        await ctx.run("after", lambda: 2)
        return answer.data

    async with app(ask, listeners=[recorder.listener]) as a, a.workers.background():
        run = await a.start("ask")
        await until(lambda: recorder.spans("process default"))
        await a.emit("answered", 7)
        assert await a.result(run, timeout=20) == 7
        await until(lambda: len(recorder.spans("process default")) == 2)
    suspended, resumed = recorder.spans("process default")
    assert [one.attributes["penstock.outcome"] for one in (suspended, resumed)] == ["suspended", "completed"]
    assert is_child(recorder.one("run before"), suspended)
    assert is_child(recorder.one("run after"), resumed)
    assert suspended.context.trace_id == resumed.context.trace_id
    links = {link.context.span_id for link in resumed.links}
    assert links == {recorder.one("emit answered").context.span_id, suspended.context.span_id}


async def test_a_fired_trigger_is_a_link(app: Any, recorder: Recorder) -> None:
    tokens: list[str] = []

    @flow("approve", emits=[])
    async def approve(_: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("approval")
        tokens.append(trigger.token)
        return await trigger.wait()

    async with app(approve, listeners=[recorder.listener]) as a, a.workers.background():
        run = await a.start("approve")
        await until(lambda: recorder.spans("process default"))
        await a.waits.fire(tokens[0], {"ok": True})
        assert await a.result(run, timeout=20) == {"ok": True}
        await until(lambda: len(recorder.spans("process default")) == 2)
    resumed = recorder.spans("process default")[1]
    assert recorder.one("fire approval").context.span_id in {link.context.span_id for link in resumed.links}


async def test_children_and_launches_join_the_trace(app: Any, recorder: Recorder) -> None:
    @flow("parent", emits=[])
    async def parent(_: Any, ctx: Context) -> Any:
        await ctx.enqueue("mail", 1)
        return await ctx.call("child", 5)

    @flow("child", queue="small", emits=[])
    async def child(n: int) -> int:
        return n

    async with app(parent, child, send, listeners=[recorder.listener]) as a, a.workers.background():
        assert await a.result(await a.start("parent"), timeout=20) == 5
        await until(lambda: len(recorder.spans("process default")) == 2 and recorder.spans("process mail"))
    first = recorder.spans("process default")[0]
    assert is_child(recorder.one("process small"), first)
    assert is_child(recorder.one("process mail"), first)
    assert len({span.context.trace_id for span in recorder.spans()}) == 1


async def test_dags_and_entities_join_the_trace(app: Any, recorder: Recorder) -> None:
    @node("double", queue="nodes")
    async def double(input: Any) -> int:
        return int(input) * 2

    @entity("light")
    class Light:
        states = States("off", idles=["off", "on"], finals=["broken"], failed="bad")
        transitions = (
            Transition("flip", "off", "on"),
            Transition("flip", "on", "off"),
            Transition("break", "on", "broken"),
        )

    async with app(double, Light, listeners=[recorder.listener]) as a, a.workers.background():
        await a.dags.register(
            {"id": "d", "nodes": [{"id": "a", "type": "double"}, {"id": "b", "type": "double", "inputs": ["a"]}]}
        )
        assert await a.result(await a.start("d", 1), timeout=20) == 4
        await until(lambda: len(recorder.spans("process nodes")) == 2)
        await a.entities.emit("light:1", "flip")
        await a.entities.emit("light:1", "flip")
        await until(lambda: len(recorder.spans("process default")) == 2)
    first, second = sorted(recorder.spans("process nodes"), key=lambda span: span.start_time or 0)
    assert is_child(first, recorder.one("start d"))
    assert is_child(second, first)
    emits, handled = recorder.spans("emit flip"), recorder.spans("process default")
    assert {one.parent.span_id for one in handled} == {one.context.span_id for one in emits}


async def test_spans_of_the_application_are_parents_and_children(app: Any, recorder: Recorder) -> None:
    tracer = recorder.provider.get_tracer("mine")

    @job(queue="own")
    def work(_: Any) -> None:
        with tracer.start_as_current_span("inside"):
            pass

    async with app(work, listeners=[recorder.listener]) as a, a.workers.background():
        with tracer.start_as_current_span("request"):
            id = await a.enqueue("own")
        await a.jobs.result(id, timeout=20)
        await until(lambda: recorder.spans("process own"))
    assert is_child(recorder.one("enqueue own"), recorder.one("request"))
    assert is_child(recorder.one("inside"), recorder.one("process own"))
    assert recorder.one("enqueue own").attributes["messaging.message.id"] == id


async def test_another_process_continues_the_trace(shared: Any) -> None:
    here, there = Recorder(), Recorder()
    async with shared(send, listeners=[here.listener]) as a, shared(send, listeners=[there.listener]) as b:
        id = await a.enqueue("mail", 1)
        async with b.workers.background():
            await b.jobs.result(id, timeout=20)
            await until(lambda: there.spans("process mail"))
    assert is_child(there.one("process mail"), here.one("enqueue mail"))


async def test_a_trace_passes_a_worker_that_does_not_trace(memory: Any, recorder: Recorder) -> None:
    """Its jobs keep the `traceparent` of their cause."""

    @job(queue="relay")
    async def relay(_: Any, ctx: Context) -> None:
        await ctx.enqueue("mail", 1)

    async with memory(relay, send) as a, a.workers.background():
        token = current_trace.set("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        await a.jobs.result(await a.enqueue("relay"), timeout=20)
        current_trace.reset(token)
        (mail,) = await a.jobs.list("mail", states=["waiting", "active", "completed"])
        row = await a.store.job(mail.id)
        assert row is not None
        assert json.loads(row.opts)["trace"] == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_log_records_have_the_ids_of_the_trace(memory: Any, recorder: Recorder) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    handler.addFilter(AttemptFilter())

    @job(queue="logs")
    async def work(_: Any) -> None:
        logging.getLogger("mine").warning("hello")

    logger = logging.getLogger("mine")
    logger.addHandler(handler)
    try:
        async with memory(work, listeners=[recorder.listener]) as a, a.workers.background():
            await a.jobs.result(await a.enqueue("logs"), timeout=20)
            await until(lambda: recorder.spans("process logs"))
    finally:
        logger.removeHandler(handler)
    span = recorder.one("process logs").context
    (record,) = records
    assert (record.trace_id, record.span_id) == (f"{span.trace_id:032x}", f"{span.span_id:016x}")


async def test_metrics(memory: Any, recorder: Recorder) -> None:
    async with memory(send, listeners=[recorder.listener]) as a, a.workers.background():
        for id in await a.jobs.enqueue_many("mail", range(3)):
            await a.jobs.result(id, timeout=20)
        await until(lambda: len(recorder.spans("process mail")) == 3)
    found = recorder.metrics()
    (sent,), (consumed,) = found["messaging.client.sent.messages"], found["messaging.client.consumed.messages"]
    (process,) = found["messaging.process.duration"]
    assert (sent.value, consumed.value, process.count) == (3, 3, 3)
    assert dict(process.attributes) == {
        "messaging.system": "penstock",
        "messaging.destination.name": "mail",
        "messaging.operation.name": "process",
        "penstock.outcome": "completed",
    }
    assert found["penstock.commit.units"][0].value >= 4
    (attempts,) = found["penstock.attempts"]
    assert (attempts.value, dict(attempts.attributes)["penstock.outcome"]) == (3, "completed")


@pytest.mark.parametrize("is_sampled", [True, False])
async def test_durations_of_sampled_attempts_only(memory: Any, is_sampled: bool) -> None:
    recorder = Recorder(durations="sampled", sampler=ALWAYS_ON if is_sampled else ALWAYS_OFF)
    async with memory(send, listeners=[recorder.listener]) as a, a.workers.background():
        await a.jobs.result(await a.enqueue(send, 1), timeout=20)
        await until(lambda: "penstock.attempts" in recorder.metrics())
    assert ("messaging.process.duration" in recorder.metrics()) == is_sampled
    with pytest.raises(ConfigError, match="durations must be"):
        Recorder(durations="some")


async def test_spans_that_are_not_sampled_stay_unsampled(memory: Any) -> None:
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    exporter, provider = InMemorySpanExporter(), TracerProvider(ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    seen: list[str | None] = []

    @job(queue="q")
    async def work(_: Any) -> None:
        seen.append(current_trace.get())

    async with memory(work, listeners=[OpenTelemetry(provider)]) as a, a.workers.background():
        await a.jobs.result(await a.enqueue("q"), timeout=20)
    assert exporter.get_finished_spans() == ()
    assert seen[0] is not None
    assert int(seen[0][-2:], 16) & 1 == 0  # the flag "sampled"


def test_without_the_setting_nothing_is_imported() -> None:
    code = "import sys, penstock, penstock.app.app, penstock.worker.worker; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


async def test_the_setting_uses_the_global_provider(memory: Any) -> None:
    async with memory(send, opentelemetry="on") as a:
        assert isinstance(a._tracer, OpenTelemetry)


def test_one_tracer() -> None:
    with pytest.raises(ConfigError, match="can have one tracer, but 2 of its listeners"):
        App(":memory:", handlers=[send], listeners=[OpenTelemetry(), OpenTelemetry()])


def test_the_extra_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "penstock.telemetry.opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install 'penstock\[otel\]'"):
        App(":memory:", handlers=[send], opentelemetry="on")
