"""Messages of BullMQ and Kafka carry traces: in, from what produced them, and out, with events that are sent."""

from __future__ import annotations

import json
from typing import Any

from bullmq import Queue
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from test_spec_names import Topics

import redis_server
from penstock import App, job
from penstock.core.trace_context import current_trace, join_trace, read_carrier
from penstock.messaging.bullmq import BullMQ
from penstock.messaging.targets import AddJob
from penstock.ports.bridge import Message
from penstock.telemetry.opentelemetry import OpenTelemetry
from penstock.testing.until import until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TIMEOUT_S = 30


@job(queue="mail")
async def send(_: Any) -> None: ...


def make_listener() -> tuple[OpenTelemetry, InMemorySpanExporter]:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return OpenTelemetry(provider), spans


def parents(spans: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span.parent for span in spans.get_finished_spans()}


async def test_a_job_of_bullmq_continues_the_trace_of_its_producer() -> None:
    listener, spans = make_listener()
    url = redis_server.url()
    queue = Queue("orders", {"connection": url})
    await queue.add("paid", {"urn": "a"}, {"tm": json.dumps({"traceparent": PARENT})})
    await queue.close()
    bridge = BullMQ(url, consume={"orders": AddJob("mail")}, poll="20ms")
    async with (
        App(":memory:", handlers=[send], bridges=[bridge], listeners=[listener]) as app,
        app.workers.background(),
    ):
        await until(lambda: "process mail" in parents(spans), TIMEOUT_S)
    found = parents(spans)["enqueue mail"]
    assert (found.trace_id, found.span_id) == (int(PARENT[3:35], 16), int(PARENT[36:52], 16))


async def test_bullmq_gets_the_trace_of_what_is_sent() -> None:
    """As BullMQ's own telemetry writes it: JSON of a carrier in the option `tm`."""
    listener, spans = make_listener()
    url = redis_server.url()
    bridge = BullMQ(url, produce={"mail.sent": "letters"}, poll="20ms")
    queue = Queue("letters", {"connection": url})
    async with App(":memory:", bridges=[bridge], handlers=(), listeners=[listener]) as app:
        with join_trace(PARENT):
            await bridge.produce("letters", "paid", {"urn": "a", "payload": 1}, id="produced")
        await bridge.produce("letters", "paid", {"urn": "a", "payload": 1}, id="untraced")
        async with app.workers.background():
            await app.emit("mail.sent", {"n": 1})
            await until(lambda: _has_jobs(queue, 3), TIMEOUT_S)
        found = {job.id: job.opts.get("tm") for job in await queue.getJobs(["waiting"])}
    await queue.close()
    assert json.loads(found.pop("produced")) == {"traceparent": PARENT}
    assert found.pop("untraced") is None
    [emitted] = [span for span in spans.get_finished_spans() if span.name == "emit mail.sent"]
    assert f"{emitted.context.span_id:016x}" in next(iter(found.values()))


async def _has_jobs(queue: Queue, count: int) -> bool:
    return len(await queue.getJobs(["waiting"])) == count


async def test_kafka_carries_a_trace_in_and_out() -> None:
    listener, spans = make_listener()
    system, seen = Topics(), []
    system.create("orders")
    system.create("letters")

    async def take(message: Message) -> None:
        seen.append(current_trace.get())

    bridge = system.make(consume={"orders": AddJob("mail")}, produce={"mail.sent": "letters"})
    async with system.make(group="reader") as client:
        await client.consume("letters", take)
        app = App(":memory:", handlers=[send], bridges=[bridge], listeners=[listener])
        async with app, app.workers.background():
            with join_trace(PARENT):
                await client.produce("orders", "paid", {"urn": "a", "payload": 1})
            await until(lambda: "process mail" in parents(spans), TIMEOUT_S)
            await app.emit("mail.sent", {"n": 1})
            await until(lambda: seen, TIMEOUT_S)
    system.stop()
    found = parents(spans)["enqueue mail"]
    assert (found.trace_id, found.span_id) == (int(PARENT[3:35], 16), int(PARENT[36:52], 16))
    emitted = next(span for span in spans.get_finished_spans() if span.name == "emit mail.sent")
    assert seen[0] is not None
    assert f"{emitted.context.span_id:016x}" in seen[0]


def test_what_is_no_carrier_has_no_trace() -> None:
    assert read_carrier(f'{{"traceparent": "{PARENT}"}}') == PARENT
    for bad in (None, "", "{", "[]", "7", {"traceparent": "00-1-2-3"}, {"traceparent": PARENT.upper()}, [PARENT]):
        assert read_carrier(bad) is None
