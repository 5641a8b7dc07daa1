"""`penstock check` replays handlers that run in a process."""

from __future__ import annotations

from pathlib import Path

from checked_handlers import changed, checked

from penstock.testing import TestApp


async def test_a_check_replays_handlers_in_a_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/penstock.db"
    async with TestApp(url, handlers=[checked], process_pool=1) as app:
        await app.start("checked")
        await app.settle()
        assert (await app.runs.preflight()).problems == []
    async with TestApp(url, handlers=[changed], process_pool=1) as app:
        report = await app.runs.preflight()
        assert report.broken
        assert {problem.call for problem in report.problems} >= {"bill#1"}
