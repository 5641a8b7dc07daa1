"""The options after the `?` of a store's URL; unknown ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import App
from penstock.app import store_urls as backend
from penstock.app.store_urls import is_writable, readable_url, shown_url, sqlite_path
from penstock.core.errors import ConfigError, SettingError, StoreUnavailable


@pytest.mark.parametrize("option", ["foo=bar", "mode=rw", "mode", "mode=ro&timeout=5"])
async def test_an_unknown_sqlite_option_is_refused(tmp_path: Path, option: str) -> None:
    app = App(f"sqlite:///{tmp_path}/shop.db?{option}", handlers=())
    with pytest.raises(
        SettingError,
        match=r"unknown option ('foo'|mode=rw|mode=|'timeout') in a SQLite URL; the only option is mode=ro",
    ):
        await app.open()
    assert not list(tmp_path.iterdir())


def test_a_question_mark_in_a_file_name() -> None:
    assert sqlite_path("sqlite:///what%3F.db") == "what?.db"
    assert sqlite_path("sqlite:///shop.db?mode=ro") == sqlite_path("sqlite:///shop.db?") == "shop.db"


async def test_a_read_only_store_refuses_a_worker(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    async with App(url, handlers=()):
        pass
    async with App(f"{url}?mode=ro", handlers=()) as app:
        assert await app.runs.list() == []
        with pytest.raises(
            ConfigError, match=r"a worker cannot use .*shop\.db\?mode=ro, which is read-only; remove \?mode=ro"
        ):
            await app.workers.run()


def test_readable_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shop.db"
    url = f"sqlite:///{path}"
    locked = {str(path)}
    monkeypatch.setattr(backend.os, "access", lambda place, _: str(place) not in locked)
    assert readable_url(url) == url  # there is none
    path.touch()
    assert readable_url(url) == f"{url}?mode=ro"
    assert readable_url(f"{url}?mode=ro") == f"{url}?mode=ro"
    locked = {str(tmp_path)}
    assert not is_writable(str(path))  # the log would have to be created
    for ending in ("-wal", "-shm"):
        Path(f"{path}{ending}").touch()
    assert is_writable(str(path))
    locked = {f"{path}-wal"}
    assert not is_writable(str(path))
    for other in ("redis://localhost", "sqlite://:memory:", ":memory:"):
        assert readable_url(other) == other
    assert readable_url("postgresql://localhost/shop") == "postgresql://localhost/shop?migrate=no"


@pytest.mark.parametrize("url", ["postgresql://ann:hush@host/shop", "postgresql://ann:hush@host/shop?schema=a"])
def test_messages_do_not_show_what_a_reading_command_adds(url: str) -> None:
    assert shown_url(readable_url(url)) == url.replace("hush", "***")
    assert shown_url("sqlite:///shop.db?mode=ro") == "sqlite:///shop.db"


@pytest.mark.parametrize("options", ["", "?mode=ro"])
async def test_a_folder_is_not_a_store(tmp_path: Path, options: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"is a folder, not a file; name a file in it, such as .*/penstock\.db"):
        async with App(f"sqlite:///{tmp_path}{options}", handlers=[]):
            pass


@pytest.mark.parametrize("port", ["99999", "65536", "0", "abc", "-5"])
@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:PORT/0",
        "rediss://ann:secret@[::1]:PORT/0",
        "redis+sentinel://127.0.0.1:26379,127.0.0.1:PORT/main",
        "postgresql://ann:secret@127.0.0.1:PORT/shop",
        "postgresql://[::1]:PORT/shop",
        "postgresql://127.0.0.1:5432,127.0.0.1:PORT/shop",
        "postgresql:///shop?host=127.0.0.1&port=PORT",
    ],
)
async def test_invalid_ports_are_refused(url: str, port: str) -> None:
    with pytest.raises(SettingError, match=f"^'{port}' is not a port") as problem:
        await App(url.replace("PORT", port), handlers=()).open()
    assert "secret" not in str(problem.value)


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
@pytest.mark.parametrize("password", ["sec/ret", "77777?ret"])
async def test_a_password_that_looks_like_a_port_is_not_shown(scheme: str, password: str) -> None:
    with pytest.raises(
        SettingError, match=r"^(what stands|the text) after the host is not a port.* %2F (or|and)"
    ) as problem:
        await App(f"{scheme}://ann:{password}@127.0.0.1/0", handlers=()).open()
    for part in ("sec/", "sec ", "'sec'", "ret@", "77777"):
        assert part not in str(problem.value)


async def test_an_invalid_postgres_url_is_refused() -> None:
    with pytest.raises(SettingError, match=r"invalid Postgres URL .*; use postgresql://") as problem:
        await App("postgresql://ann:secret@[::1/shop", handlers=()).open()
    assert "secret" not in str(problem.value)


async def test_an_error_names_every_host() -> None:
    with pytest.raises(StoreUnavailable, match=r"postgresql://127\.0\.0\.1:1,127\.0\.0\.1:2/shop"):
        await App("postgresql://ann:secret@127.0.0.1:1,127.0.0.1:2/shop", handlers=()).open()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://127.0.0.1:PORT/0", "is not a port between 1 and 65535"),
        ("postgresql://127.0.0.1:PORT/shop", "is not a port; use 1 to 65535"),
        ("redis://127.0.0.1/PORT", "invalid database"),
        ("postgresql://127.0.0.1/shop?pool=PORT", "pool must be a number of connections from 1 to 10,000"),
        ("sqlite:///shop.db%00PORT", "has no file name"),
        ("sqlite:///shop.db\0", "url must not contain a NUL character"),
        ("sqlite:///shop.db\ud800", "url must be valid text"),
    ],
)
async def test_a_number_of_thousands_of_digits_is_refused_and_shortened(url: str, message: str) -> None:
    with pytest.raises(SettingError, match=message) as problem:
        await App(url.replace("PORT", "9" * 3_900), handlers=()).open()
    assert len(str(problem.value)) < 400
