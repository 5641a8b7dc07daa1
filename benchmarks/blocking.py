"""Jobs whose `def` handlers block for 5 ms: Penstock beside Dramatiq, two processes of eight threads each, on Redis.

    python -m benchmarks.blocking [--n 4000] [--rounds 3]

Both workers start with a full queue. The rate is that of the handlers' ends, without the first and the last tenth.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import servers
from .peers import command

PROCESSES, THREADS, BLOCKED_S = 2, 8, 0.005
_COUNT = struct.Struct("q")
_HANDLERS = Path(__file__).parent / "contenders" / "blocking_handlers.py"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blocking", description=__doc__)
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rates: dict[str, list[float]] = {"penstock": [], "dramatiq": []}
    with tempfile.TemporaryDirectory() as folder, servers.open_target("redis", Path(folder)) as target:
        for round in range(args.rounds):
            for engine in sorted(rates, reverse=bool(round % 2)):
                rates[engine].append(_measure(engine, target.reset(), args.n))
                print(f"{engine}: {rates[engine][-1]:,.0f}/s", flush=True)
    ratios = [ours / theirs for ours, theirs in zip(rates["penstock"], rates["dramatiq"], strict=True)]
    print(f"Penstock / Dramatiq: {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
    print(f"of the maximum of {PROCESSES * THREADS / BLOCKED_S:,.0f}/s: "
          f"{statistics.median(rates['penstock']) * BLOCKED_S / PROCESSES / THREADS:.2f}")  # fmt: skip


def _measure(engine: str, url: str, n: int) -> float:
    python = command("redis") if engine == "dramatiq" else [sys.executable]
    with tempfile.NamedTemporaryFile() as counts:
        counts.write(bytes(_COUNT.size * PROCESSES))
        counts.flush()
        call = [*python, str(_HANDLERS), engine, url, counts.name]
        subprocess.run([*call, "add", str(n)], check=True)
        workers = [subprocess.Popen([*call, "work", str(k)]) for k in range(PROCESSES)]
        try:
            return _rate(Path(counts.name), n)
        finally:
            for one in workers:
                one.kill()
                one.wait()


def _rate(counts: Path, n: int) -> float:
    seen: list[tuple[float, int]] = []
    deadline = time.monotonic() + 60
    while not seen or seen[-1][1] < n:
        assert time.monotonic() < deadline, f"only {seen[-1][1]} of {n} jobs were done"
        done = sum(value for (value,) in _COUNT.iter_unpack(counts.read_bytes()))
        seen.append((time.perf_counter(), done))
        time.sleep(0.01)
    start = next(one for one in seen if one[1] >= n / 10)
    end = next(one for one in seen if one[1] >= n * 9 / 10)
    return (end[1] - start[1]) / (end[0] - start[0])


if __name__ == "__main__":
    main()
