"""Progress of a long run: each minute one line with how far it is, what has been running longest and what has failed since the
last line; at the end, the files that took longest."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

INTERVAL_S = 60.0
SHOWN_RUNNING = 3
SHOWN_FILES = 40
PLUGIN = "test-progress"


class Progress:
    """What has run, what is running and since when."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._start = now()
        self._running: dict[str, float] = {}
        self._per_file: Counter[str] = Counter()
        self._failed: list[str] = []
        self._finished = 0
        self._total = 0

    def expect(self, total: int) -> None:
        self._total = total

    def begin(self, test: str) -> None:
        self._running[test] = self._now()

    def end(self, test: str) -> None:
        began = self._running.pop(test, None)
        if began is not None:
            self._finished += 1
            self._per_file[test.partition("::")[0]] += self._now() - began

    def fail(self, test: str) -> None:
        self._failed.append(test)

    def line(self) -> str:
        """Return one line for a person who wonders whether anything still happens."""
        now = self._now()
        minutes, seconds = divmod(int(now - self._start), 60)
        percent = 100 * self._finished // self._total if self._total else 0
        # Another thread starts and ends tests meanwhile: a copy stands still.
        longest = sorted(dict(self._running).items(), key=lambda pair: pair[1])[:SHOWN_RUNNING]
        running = ", ".join(f"{test} ({now - began:.0f} s)" for test, began in longest) or "nothing"
        text = f"[{minutes}:{seconds:02}] {percent}%, {self._finished} of {self._total} tests; running: {running}"
        failed, self._failed = self._failed, []  # each is named once
        return f"{text}; failed: {', '.join(failed)}" if failed else text

    def slowest_files(self) -> list[str]:
        """Return the files that took longest, all processes added up."""
        return [f"{seconds:6.1f} s  {file}" for file, seconds in self._per_file.most_common(SHOWN_FILES)]

    @property
    def duration_s(self) -> float:
        return self._now() - self._start


class Reporter:
    """Print the progress while tests run, from a thread: it is wanted most when one test takes minutes."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._out = os.dup(1)  # pytest points 1 elsewhere while a test runs
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._print, name=PLUGIN, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        os.close(self._out)

    def _print(self) -> None:
        while not self._over.wait(INTERVAL_S):
            with suppress(OSError):  # nobody reads any more
                os.write(self._out, f"\n{self.progress.line()}\n".encode())

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self.progress.expect(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.progress.expect(len(ids))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.progress.begin(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.progress.end(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.progress.fail(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.progress.duration_s > INTERVAL_S:
            terminalreporter.section("slowest files, in seconds of one process")
            for line in self.progress.slowest_files():
                terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")  # the controller reports, not its workers
    if not is_worker and not config.option.collectonly:  # tools read what a collection prints
        config.pluginmanager.register(Reporter(Progress()), PLUGIN)


def pytest_unconfigure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.unregister(name=PLUGIN) if config.pluginmanager.has_plugin(PLUGIN) else None
    if isinstance(reporter, Reporter):
        reporter.stop()
