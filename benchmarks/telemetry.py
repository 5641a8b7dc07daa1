"""What OpenTelemetry costs: steps per second without listeners, and with spans and metrics of the SDK, alternating.

python -m benchmarks.telemetry [--rounds 5] [--count 3000] [--against SRC] [--instructions [--only MODE …]]

Each reading is a process of its own with a store in a new file: it starts COUNT runs of two steps, then a worker
completes them. The spans go through a BatchSpanProcessor to an exporter that encodes them for OTLP and drops the bytes.
`--against` adds readings of another version of Penstock without listeners: what tracing costs when nobody traces.

`--instructions` counts instructions per run of two steps, without its start, with callgrind on one thread: they do not
depend on the load of the machine. The modes "by hand" have no listener: the handlers make the same spans themselves,
with the same attributes, and record the same durations. The difference to "off" is what the SDK itself costs. "1%"
records the durations of sampled attempts only, "1% of all" those of all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src"


def make_flow() -> list[Any]:
    """Return a flow of two steps."""
    from penstock import Context, flow, step

    @flow("order", emits=["paid"])
    async def order(n: int, ctx: Context) -> None:
        ctx.emit("paid", n)

    @step(flow="order", on="paid")
    async def ship(n: int) -> int:
        return n

    return [order, ship]


def make_listener(sampled: float, is_light: bool = False) -> Any:
    """Return the listener, with a provider as an application sets it up."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    from penstock.telemetry.opentelemetry import OpenTelemetry

    class Encode(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            encode_spans(spans).SerializeToString()
            return SpanExportResult.SUCCESS

    provider = TracerProvider(ParentBased(TraceIdRatioBased(sampled)))
    provider.add_span_processor(BatchSpanProcessor(Encode()))
    metrics = MeterProvider([InMemoryMetricReader()])
    return OpenTelemetry(provider, metrics, durations="sampled") if is_light else OpenTelemetry(provider, metrics)


async def execute(mode: str, count: int) -> None:
    """Print the steps per second of one reading: by the clock, and by the processor time of the process."""
    from penstock import App

    listeners = {"off": [], "on": [1.0], "1%": [0.01]}[mode]
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"listeners": [make_listener(share) for share in listeners]}
        async with App(f"sqlite:///{folder}/penstock.db", handlers=make_flow(), **options) as app:
            assert app.registry.fingerprint  # it reads every module that is imported: not a cost of steps
            runs = await asyncio.gather(*(app.start("order", n) for n in range(count)))
            wall, cpu = time.perf_counter(), time.process_time()
            report = await app.workers.run_until_idle(concurrency=50)
            assert report.idle
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            assert (await app.runs.get(runs[-1])).status == "completed"
    print(json.dumps({"wall": 2 * count / wall, "cpu": 2 * count / cpu}))


COUNTS = (100, 300)
MODES = ("off", "listener", "1%", "1% of all", "on", "by hand", "1% by hand")


def spans_by_hand(listener: Any, metrics_of: Any) -> Any:
    """Return a function that makes the span of an attempt as an application would."""
    from opentelemetry import trace

    tracer, duration = listener._tracer, metrics_of.create_histogram("messaging.process.duration", "s")

    def work(n: int, job: str) -> None:
        attributes = {
            "messaging.system": "penstock",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "default",
            "messaging.message.id": job,
            "messaging.message.conversation_id": job,
            "messaging.client.id": "worker",
            "penstock.job.name": "order",
            "penstock.attempt": n,
            "penstock.run": job,
            "penstock.flow": "order",
            "penstock.step": "order",
        }
        labels = {name: attributes[name] for name in list(attributes)[:2]} | {"penstock.outcome": "completed"}
        kind = trace.SpanKind.CONSUMER
        with tracer.start_as_current_span("process default", kind=kind, attributes=attributes) as span:
            span.set_attribute("penstock.outcome", "completed")
        duration.record(0.001, labels)

    return work


async def execute_inline(mode: str, count: int, has_worker: bool) -> None:
    """Start runs and work them off on one thread, with a clock that callgrind does not outrun."""
    from benchmarks.step_cost import SLOWDOWN, START_MS
    from penstock import App, Context, flow, step
    from penstock.core.clock import SystemClock
    from penstock.testing.threadless_sqlite import InlineDatabase, InlineStore

    class SlowClock(SystemClock):
        def now_ms(self) -> int:
            return START_MS + int(time.monotonic() * 1000 / SLOWDOWN)

    share = None if mode in ("off", "listener") else 0.01 if mode.startswith("1%") else 1.0
    listener = make_listener(share, mode == "1%") if share is not None else None
    by_hand = spans_by_hand(listener, listener._meter) if "by hand" in mode and listener is not None else None

    @flow("order", emits=["paid"])
    async def order(n: int, ctx: Context) -> None:
        if by_hand is not None:
            by_hand(n, ctx.job_id)
        ctx.emit("paid", n)

    @step(flow="order", on="paid")
    async def ship(n: int, ctx: Context) -> int:
        if by_hand is not None:
            by_hand(n, ctx.job_id)
        return n

    listeners = [lambda _: None] if mode == "listener" else [listener] if listener and by_hand is None else []
    loop = asyncio.get_running_loop()
    loop.time = lambda: time.monotonic() / SLOWDOWN  # type: ignore[method-assign]
    store = InlineStore(InlineDatabase(), clock=SlowClock())
    async with App(store=store, handlers=[order, ship], listeners=listeners) as app:
        runs = []
        for n in range(count):
            if by_hand is not None:
                by_hand(n, "start")
            runs.append(await app.start(order, n))
        if has_worker:
            async with app.workers.background(concurrency=50):
                await app.result(runs[-1])


def count_instructions(source: Path, mode: str) -> float:
    """Return the instructions per run of two steps, in thousands: the differences leave out imports and the start."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-m"]
    paths = os.pathsep.join((str(source), str(SOURCE.parent)))
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "0"}

    def count(runs: int, phase: str) -> int:
        done = subprocess.run(
            [*command, "benchmarks.telemetry", "--inline", mode, str(runs), phase],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        found = re.search(r"Collected\s*:\s*(\d+)", done.stderr)
        if done.returncode or found is None:
            raise SystemExit(done.stderr[-2000:])
        return int(found[1])

    few, many = COUNTS
    whole, starts = (count(many, phase) - count(few, phase) for phase in ("worker", "starts"))
    return (whole - starts) / (many - few) / 1000


def print_instructions(source: Path, modes: list[str]) -> None:
    base = 0.0
    for mode in modes:
        found = count_instructions(source, mode)
        base = base or found
        share = f"the rate is {base / found:.3f} of {modes[0]}"
        print(f"{mode:10} {found:8,.0f} thousand instructions a run: {share}", flush=True)


def read(source: Path, mode: str, count: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--execute", mode, str(count)]
    environment = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.telemetry", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--against", type=Path, help="the src folder of another version")
    parser.add_argument("--instructions", action="store_true", help="count instructions under callgrind")
    parser.add_argument("--only", action="append", choices=MODES, help="count only this mode; the first is the base")
    parser.add_argument("--inline", nargs=3, metavar=("MODE", "COUNT", "PHASE"), help=argparse.SUPPRESS)
    parser.add_argument("--execute", nargs=2, metavar=("MODE", "COUNT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.execute:
        asyncio.run(execute(args.execute[0], int(args.execute[1])))
        return
    if args.inline:
        asyncio.run(execute_inline(args.inline[0], int(args.inline[1]), args.inline[2] == "worker"))
        return
    if args.instructions:
        print_instructions(args.against or SOURCE, args.only or list(MODES))
        return
    modes = [*([("before", args.against, "off")] if args.against else []), ("off", SOURCE, "off")]
    modes += [("on, all sampled", SOURCE, "on"), ("on, 1 % sampled", SOURCE, "1%")]
    readings: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in modes}
    for n in range(args.rounds):
        for name, source, mode in modes if n % 2 == 0 else modes[::-1]:
            readings[name].append(read(source, mode, args.count))
            last = readings[name][-1]
            print(
                f"round {n + 1}  {name:16} {last['wall']:8,.0f} steps/s  {last['cpu']:8,.0f} steps per CPU second",
                flush=True,
            )
    base = {kind: statistics.median(one[kind] for one in readings["off"]) for kind in ("wall", "cpu")}
    for name, found in readings.items():
        middle = {kind: statistics.median(one[kind] for one in found) for kind in ("wall", "cpu")}
        shares = f"{middle['wall'] / base['wall']:.3f} and {middle['cpu'] / base['cpu']:.3f} of off"
        print(f"median   {name:16} {middle['wall']:8,.0f} steps/s  {middle['cpu']:8,.0f} per CPU second: {shares}")


if __name__ == "__main__":
    main()
