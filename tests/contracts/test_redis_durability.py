"""`doctor` on Redis warns of settings with which a killed server loses acknowledged work."""

from __future__ import annotations

from pathlib import Path

import pytest

import redis_server
from penstock import App
from penstock.app import diagnosis
from penstock.cli import main
from penstock.core.errors import StoreError
from penstock.stores.redis import server_checks


class FakeClient:
    """Answers INFO and CONFIG GET; a setting that is None is refused, as managed Redis does."""

    topology = "redis://fake"

    def __init__(self, aof: bool, appendfsync: str | None) -> None:
        self._aof = aof
        self._fsync = appendfsync

    async def call(self, *command: str) -> object:
        if command[0] == "INFO":
            return f"redis_version:6.2.14\r\naof_enabled:{int(self._aof)}\r\nmaxmemory_policy:noeviction\r\n".encode()
        if self._fsync is None:
            raise StoreError("unknown command CONFIG")
        return [command[2].encode(), {"appendfsync": self._fsync}.get(command[2], "no").encode()]


@pytest.mark.parametrize(
    ("aof", "fsync", "text"),
    [
        (True, "always", None),
        (True, "everysec", "appendfsync is everysec, so a killed Redis can lose acknowledged work"),
        (True, "no", "appendfsync is no"),
        (True, None, "could not be checked, because CONFIG GET is refused"),
        (False, "everysec", None),
    ],
)
async def test_the_warning(aof: bool, fsync: str | None, text: str | None) -> None:
    facts = await server_checks.describe(FakeClient(aof, fsync))  # type: ignore[arg-type]
    if text is None:
        assert facts["warnings"] == []
    else:
        (warning,) = facts["warnings"]
        assert text in warning


@pytest.fixture
def everysec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the server of the tests look as if it had an AOF that is synced every second."""
    describe = server_checks._warnings
    facts = {"aof_enabled": "1", "appendfsync": "everysec"}
    monkeypatch.setattr(server_checks, "_warnings", lambda _facts: describe(facts))


async def test_a_warning_is_not_a_failed_check(everysec: None) -> None:
    async with App(redis_server.url(), handlers=()) as app:
        found = {check.name: check for check in await diagnosis.diagnose(app)}
    assert (found["durability"].ok, found["durability"].is_warning) == (True, True)
    assert "warnings" not in found["store"].detail


def test_the_command_shows_it(
    everysec: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workers").mkdir()
    main(["doctor", "--url", redis_server.url()])
    shown = capsys.readouterr().out
    assert "! durability" in shown
    assert "set it to always if acknowledged must mean durable" in shown
