"""What OpenTelemetry costs: steps per second without listeners, and with spans and metrics of the SDK, alternating.

python -m benchmarks.telemetry [--rounds 5] [--count 3000] [--against SRC]

Each reading is a process of its own with a store in a new file: it starts COUNT runs of two steps, then a worker
completes them. The spans go through a BatchSpanProcessor to an exporter that encodes them for OTLP and drops the bytes.
`--against` adds readings of another version of Penstock without listeners: what tracing costs when nobody traces.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
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


def make_listener(sampled: float) -> Any:
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
    return OpenTelemetry(provider, MeterProvider([InMemoryMetricReader()]))


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
    parser.add_argument("--execute", nargs=2, metavar=("MODE", "COUNT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.execute:
        asyncio.run(execute(args.execute[0], int(args.execute[1])))
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
