"""Traces leave and enter the process: HTTP, the client, Python and Node children, and OTLP over a socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from http_server import Serve, serve_app
from penstock import job
from penstock.client import Client
from penstock.telemetry.opentelemetry import OpenTelemetry
from penstock.testing import TestApp
from penstock.testing.until import until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@job(queue="mail")
async def send(n: int) -> int:
    return n


@job(queue="child", runner="process")
def in_child(_: Any) -> str:
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}-{context.span_id:016x}"


@pytest.fixture
def serve() -> Serve:
    return serve_app


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def listener(spans: InMemorySpanExporter) -> OpenTelemetry:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return OpenTelemetry(provider)


def by_name(spans: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span for span in spans.get_finished_spans()}


async def test_a_request_continues_the_trace_of_its_header(
    memory: Any, serve: Serve, spans: InMemorySpanExporter, listener: OpenTelemetry
) -> None:
    async with memory(send, listeners=[listener]) as a, a.workers.background(), serve(a) as client:
        answer = await client.post("/api/_queue/mail/jobs", json={"input": 1}, headers={"traceparent": PARENT})
        assert answer.status_code < 300, answer.text
        await until(lambda: "process mail" in by_name(spans))
        assert (await client.get("/api/_job/none", headers={"traceparent": "nonsense"})).status_code == 404
    found = by_name(spans)
    request, enqueue, process = found["POST /api/_queue/{queue}/jobs"], found["enqueue mail"], found["process mail"]
    assert (request.context.trace_id, request.parent.span_id) == (int(PARENT[3:35], 16), int(PARENT[36:52], 16))
    assert enqueue.parent.span_id == request.context.span_id
    assert process.parent.span_id == enqueue.context.span_id
    assert request.kind is trace.SpanKind.SERVER
    assert request.attributes["http.response.status_code"] == answer.status_code
    missing = next(span for name, span in found.items() if name.startswith("GET /api/_job/"))
    assert missing.parent is None
    assert missing.attributes["http.response.status_code"] == 404


async def test_the_client_sends_the_trace_of_its_caller(
    memory: Any, serve: Serve, spans: InMemorySpanExporter, listener: OpenTelemetry
) -> None:
    tracer = TracerProvider().get_tracer("mine")
    async with memory(send, listeners=[listener]) as a, serve(a) as client, Client(str(client.base_url)) as remote:
        with tracer.start_as_current_span("caller") as caller:
            await remote.enqueue("mail", 1)
    request = next(span for span in spans.get_finished_spans() if span.name.startswith("POST "))
    assert request.parent.span_id == caller.get_span_context().span_id


async def test_a_python_child_has_the_span_of_the_attempt_as_its_parent(
    memory: Any, spans: InMemorySpanExporter, listener: OpenTelemetry
) -> None:
    async with memory(in_child, listeners=[listener]) as a, a.workers.background():
        seen = await a.jobs.result(await a.enqueue("child"), timeout=60)
        await until(lambda: "process child" in by_name(spans))
    span = by_name(spans)["process child"].context
    assert seen == f"{span.trace_id:032x}-{span.span_id:016x}"


async def test_a_typescript_handler_has_the_traceparent(
    tmp_path: Path, spans: InMemorySpanExporter, listener: OpenTelemetry
) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "relay.ts").write_text(
        "import { defineFunction } from 'penstock'\n"
        "export default defineFunction({ queue: 'relay' }, async (input, ctx) => {\n"
        "  await ctx.run('look', () => 1)\n"
        "  await ctx.enqueue('mail', 1)\n"
        "  return ctx.traceparent\n"
        "})\n"
    )
    (tmp_path / "workers" / "mail.py").write_text(
        "from penstock import job\n\n@job(queue='mail')\nasync def send(n: int) -> int:\n    return n\n"
    )
    async with TestApp(dir=tmp_path / "workers", listeners=[listener]) as app:
        seen = await app.run_job("relay", None)
        await until(lambda: "process mail" in by_name(spans))
    found = by_name(spans)
    relay = found["process relay"].context
    assert seen == f"00-{relay.trace_id:032x}-{relay.span_id:016x}-{seen[-2:]}"
    assert found["run look"].parent.span_id == relay.span_id
    assert found["process mail"].parent.span_id == relay.span_id


class _Receiver(BaseHTTPRequestHandler):
    """Takes spans as an OpenTelemetry collector does: POST /v1/traces, protobuf."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        request = ExportTraceServiceRequest.FromString(body)
        self.server.received += [  # type: ignore[attr-defined]
            (resource.resource, span)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def collector() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    server.received = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


async def test_spans_arrive_at_an_otlp_receiver(memory: Any, collector: ThreadingHTTPServer) -> None:
    provider = TracerProvider()
    exporter = OTLPSpanExporter(f"http://127.0.0.1:{collector.server_port}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    async with memory(send, listeners=[OpenTelemetry(provider)]) as a, a.workers.background():
        await a.jobs.result(await a.enqueue("mail", 1), timeout=20)
    provider.shutdown()  # flushes
    received = {span.name: span for _, span in collector.received}  # type: ignore[attr-defined]
    assert received["process mail"].parent_span_id == received["enqueue mail"].span_id
    assert received["process mail"].trace_id == received["enqueue mail"].trace_id
    names = {attribute.key for attribute in received["process mail"].attributes}
    assert {"messaging.system", "messaging.destination.name", "penstock.outcome"} <= names
