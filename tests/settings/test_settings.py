"""Settings: which source wins, which values are refused with which message, and what is never shown."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import App
from penstock.app.store_urls import mask, open_store
from penstock.core.clock import SystemClock
from penstock.core.errors import SettingError, UnknownRun
from penstock.settings import SettingOptions, Settings, list_names
from penstock.stores.sqlite import SqliteStore

SOURCES = ["tool", "toml", "env", "argument"]  # each over those before it


def load(folder: Path, values: dict[str, Any], name: str = "lease") -> Settings:
    """Load settings with the values of one name from these sources."""
    if "tool" in values:
        (folder / "pyproject.toml").write_text(f"[tool.penstock]\n{name} = {_toml(values['tool'])}\n")
    if "toml" in values:
        (folder / "penstock.toml").write_text(f"{name} = {_toml(values['toml'])}\n")
    env = {f"PENSTOCK_{name.upper()}": str(values["env"])} if "env" in values else {}
    return Settings.load({name: values.get("argument")}, env, folder)


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


@pytest.mark.parametrize("count", range(len(SOURCES) + 1))
def test_later_sources_win(tmp_path: Path, count: int) -> None:
    values = {source: f"{number + 1}m" for number, source in enumerate(SOURCES[:count])}
    settings = load(tmp_path, values)
    assert settings.lease == (count * 60_000 or 30_000)
    assert (
        settings.source("lease")
        == [
            "default",
            "[tool.penstock] lease",
            "penstock.toml lease",
            "environment variable PENSTOCK_LEASE",
            "argument 'lease'",
        ][count]
    )


def test_sources_are_merged_per_setting(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.penstock]\nlease = "1m"\nqueues = ["a", "b"]\nlog-format = "json"\n'
    )
    (tmp_path / "penstock.toml").write_text('lease = "2m"\nconcurrency = 3\n')
    settings = Settings.load({"threads": 7}, {"PENSTOCK_CONCURRENCY": "4", "HOME": "/root"}, tmp_path)
    assert (settings.lease, settings.concurrency, settings.threads) == (120_000, 4, 7)
    assert (settings.queues, settings.log_format) == (("a", "b"), "json")


def test_an_argument_of_none_counts_as_not_set(tmp_path: Path) -> None:
    assert load(tmp_path, {"env": "5s", "argument": None}).lease == 5000


def test_files_of_the_current_folder_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock.toml").write_text('log = "debug"\n')
    assert Settings.load().log == "debug"
    assert App(":memory:", handlers=[]).settings.log == "debug"


@pytest.mark.parametrize("source", SOURCES)
def test_an_unknown_name_is_refused_with_the_nearest_one(tmp_path: Path, source: str) -> None:
    where = {
        "tool": r"\[tool.penstock\] leese",
        "toml": "penstock.toml leese",
        "env": "environment variable PENSTOCK_LEESE",
        "argument": "argument 'leese'",
    }[source]
    with pytest.raises(SettingError, match=rf"^unknown setting 'leese', read from {where}; did you mean 'lease'\?"):
        load(tmp_path, {source: "5s"}, "leese")


def test_an_unknown_name_without_a_near_match_lists_all_settings(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError,
        match="known settings: alert_interval, alert_webhook, alerts, allowed_origins, blob_grace, blob_signed_urls, blob_threshold, blob_url, buffer_limit, call_concurrency, concurrency, cpu_shares, dir",
    ):
        load(tmp_path, {"toml": 1}, "qqqqqqqq")


def test_an_app_refuses_an_unknown_setting() -> None:
    with pytest.raises(SettingError, match="did you mean 'lease'"):
        App(":memory:", handlers=[], leese="5s")  # type: ignore[call-arg]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("lease", "soon", "invalid duration 'soon'"),
        ("lease", "1ms", "must be at least 500ms, got 1ms"),
        ("lease", "never", "cannot be switched off"),
        ("concurrency", "many", "must be a whole number of at least 1, got 'many'"),
        ("concurrency", "0", "at least 1"),
        ("max_crashes", "-1", "at least 0"),
        ("log", "loud", "must be 'debug', 'info'"),
        ("log_format", "xml", "must be 'pretty' or 'json', got 'xml'"),
        ("queue_names", "folder", "must be 'filename' or 'directory', got 'folder'"),
        ("namespace", "a:b", "namespace"),
        ("queues", "a b,c", "queue name"),
    ],
)
def test_a_bad_value_is_refused_with_its_source(
    tmp_path: Path, source: str, name: str, value: str, expected: str
) -> None:
    with pytest.raises(SettingError, match=expected) as problem:
        load(tmp_path, {source: value}, name)
    word = {"tool": "[tool.penstock]", "toml": "penstock.toml", "env": "PENSTOCK_", "argument": "argument"}[source]
    assert word in str(problem.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", True),
        ("concurrency", 2.5),
        ("queues", 5),
        ("queues", [1, 2]),
        ("redact", {"a": 1}),
        ("lease", []),
    ],
)
def test_values_of_any_type_are_validated(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"^argument '{name}'"):
        Settings.load({name: value}, {}, tmp_path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("lease = \n")
    with pytest.raises(SettingError, match=r"cannot read penstock\.toml"):
        Settings.load({}, {}, tmp_path)
    (tmp_path / "penstock.toml").unlink()
    (tmp_path / "pyproject.toml").write_text("[tool]\npenstock = 3\n")
    with pytest.raises(SettingError, match=r"\[tool.penstock\] must be a table"):
        Settings.load({}, {}, tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 3\n")
    assert Settings.load({}, {}, tmp_path) == Settings()


def test_accepted_forms_of_values(tmp_path: Path) -> None:
    values = {
        "lease": timedelta(seconds=40),
        "grace": 2.5,
        "retain_runs": "never",
        "retain_jobs": "off",
        "redact": "iban, order.card.number,",
        "queues": ["a", "b"],
        "concurrency": "12",
    }
    settings = Settings.load(values, {}, tmp_path)
    assert (settings.lease, settings.grace, settings.concurrency) == (40_000, 2500, 12)
    assert (settings.retain_runs, settings.retain_jobs) == (None, None)
    assert (settings.redact, settings.queues) == (("iban", "order.card.number"), ("a", "b"))
    assert Settings.load({"redact": ()}, {}, tmp_path).redact == ()
    assert Settings.load({}, {"PENSTOCK_REDACT": ""}, tmp_path).redact == ()


def test_other_environment_variables_are_ignored(tmp_path: Path) -> None:
    assert Settings.load({}, {"PENSTOCK_DEBUG": "1", "PENSTOCK_FAULTS": "full"}, tmp_path) == Settings()


def test_every_setting_is_an_argument_of_app() -> None:
    assert {*SettingOptions.__annotations__, "url", "dir"} == set(list_names())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://ann:hunter2@host:6379/0", "redis://ann:***@host:6379/0"),
        ("redis://:hunter2@host/0", "redis://:***@host/0"),
        ("redis://ann:hunter2@hunter2@host/0", "redis://ann:***@host/0"),
        ("redis://ann:hunter2[@host", "redis://ann:***@host"),
        ("postgres://host/db?user=ann&password=hunter2&x=1", "postgres://host/db?user=ann&password=***&x=1"),
        ("sqlite:///shop.db", "sqlite:///shop.db"),
        (":memory:", ":memory:"),
        ("http://host:80/a@b", "http://host:80/a@b"),
    ],
)
def test_passwords_of_urls_are_masked(url: str, shown: str) -> None:
    assert mask(url) == shown
    assert "hunter2" not in repr(Settings(url=url))


def test_a_store_that_cannot_be_opened_is_named_without_its_password() -> None:
    for url in ("mysql://ann:hunter2@host", "mysql://ann:hunter2[@host"):
        with pytest.raises(SettingError, match="unsupported store URL") as problem:
            open_store(url, clock=SystemClock(), namespace="nq")
        assert "hunter2" not in str(problem.value)


async def test_an_unknown_run_is_reported_without_a_password(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "a.db"))
    async with App("postgresql://ada:hunter2@nowhere/shop?sslpassword=hunter2", handlers=[], store=store) as app:
        with pytest.raises(UnknownRun, match=r"ada:\*\*\*@nowhere/shop\?sslpassword=\*\*\*") as problem:
            await app.runs.get("nope")
        assert "hunter2" not in str(problem.value)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("pyproject.toml", "tool = 3", r"pyproject.toml: \[tool\] must be a table, got 3"),
        ("pyproject.toml", "[tool]\npenstock = []", r"pyproject.toml: \[tool.penstock\] must be a table, got \[\]"),
        ("penstock.toml", f"threads = {'9' * 5_000}", "cannot read penstock.toml"),
        ("penstock.toml", f"threads = {'9' * 30}", "threads must be at most 1,000,000,000, got 9999"),
        ("penstock.toml", f"threads = '{'9' * 5_000}'", "threads must be at most 1,000,000,000, got '9999"),
        ("penstock.toml", "threads = " + "[" * 5_000, "cannot read penstock.toml: it is nested too deeply"),
        ("penstock.toml", "url = 3", "url must be a string, got 3"),
        ("penstock.toml", "namespace = 3", "invalid namespace 3"),
        ("penstock.toml", r'redact = ["\u0000"]', "redact must not contain a NUL character"),
    ],
)
def test_a_file_with_odd_values_is_refused(tmp_path: Path, file: str, text: str, message: str) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(SettingError, match=message) as problem:
        Settings.load(env={}, folder=tmp_path)
    assert len(str(problem.value)) < 400
