"""Worker processes that a test starts, kills, stops and continues by their pid, never by name."""

from __future__ import annotations

import signal
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.testing.faults import EffectLog

from .fork_server import start


class WorkerProcess:
    """One worker process. It imports everything at once and works after `begin`."""

    def __init__(self, arguments: list[str], env: dict[str, str], log: Path) -> None:
        self._log = log.open("ab")
        self.process = start("worker_process", *arguments, env=env, has_stdout=False, stderr=self._log)

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    @property
    def is_alive(self) -> bool:
        return bool(self.process.poll() is None)

    def begin(self) -> None:
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the process is already dead

    def send(self, what: signal.Signals) -> None:
        if self.is_alive:
            self.process.send_signal(what)

    def end(self, what: signal.Signals = signal.SIGKILL) -> None:
        self.send(what)
        self.process.wait(timeout=30)
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # the line was not read
        self._log.close()


class Fleet:
    """The worker processes of one test, and the files they write. `spares` have imported everything and stand by."""

    def __init__(self, url: str, folder: Path, *, lease: str = "1s", max_crashes: int = 1_000_000, spares: int = 0,
                 arguments: tuple[str, ...] = (), step_ms: int = 60) -> None:  # fmt: skip
        self.effects = EffectLog(folder / "effects.jsonl")
        self.acks = folder / "acks.txt"
        self.receipts = folder / "receipts.txt"
        self.started = folder / "started.txt"
        self.log = folder / "workers.log"
        self._arguments = [url, "--acks", str(self.acks), "--receipts", str(self.receipts), *arguments]
        self._env = {
            "PENSTOCK_LEASE": lease,
            "PENSTOCK_MAX_CRASHES": str(max_crashes),
            "FAULTKIT_EFFECTS": str(self.effects.path),
            "FAULTKIT_STARTED": str(self.started),
            "FAULTKIT_STEP_MS": str(step_ms),
        }
        self._spares = [self._load() for _ in range(spares)]
        self._keep = spares
        self.working: list[WorkerProcess] = []

    def _load(self) -> WorkerProcess:
        return WorkerProcess(self._arguments, self._env, self.log)

    def start_worker(self) -> WorkerProcess:
        """Let one more process work."""
        worker = self._spares.pop(0) if self._spares else self._load()
        worker.begin()
        self.working.append(worker)
        while len(self._spares) < self._keep:
            self._spares.append(self._load())
        return worker

    def kill(self, worker: WorkerProcess) -> None:
        """Kill a worker process with SIGKILL."""
        worker.end(signal.SIGKILL)
        self.working.remove(worker)

    def acknowledged(self) -> set[str]:
        """Return the runs that worker processes started and whose start was acknowledged."""
        return set(self.acks.read_text().split()) if self.acks.exists() else set()

    def count_logged(self, text: str) -> int:
        """Return how often a text is in the logs of the worker processes."""
        return self.log.read_text(errors="replace").count(text) if self.log.exists() else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in (*self.working, *self._spares):
            worker.end()
