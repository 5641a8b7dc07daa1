"""Blobs over HTTP and the command line: roles, redaction, signed URLs, large bodies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from http_server import serve_app
from penstock import App
from penstock.client import Client, SyncClient
from penstock.errors import BadArgument, BlobCorrupt, ConfigError, UnknownBlob
from penstock.testing.clock import FakeClock

MB = 2**20
SECRETS = b'{"password": "p4ss", "list": [{"token": "t0k"}], "n": 1}'


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


async def test_the_client_puts_streams_and_deletes(blob_url: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(12):  # more than a body of JSON may have
            yield b"x" * MB

    async with (
        App(":memory:", handlers=(), blob_url=blob_url) as app,
        serve_app(app) as http,
        Client(str(http.base_url)) as client,
    ):
        put = await client.blobs.put("big/one.bin", chunks())
        assert (put.size, put.sha256) == (12 * MB, (await app.blobs.info("big/one.bin")).sha256)
        assert len(await client.blobs.get("big/one.bin")) == 12 * MB
        await client.blobs.put("a.txt", "text", content_type="text/x-note")
        info = await client.blobs.info("a.txt")
        assert info == await app.blobs.info("a.txt")
        assert (info.content_type, info.size) == ("text/x-note", 4)
        assert [one.key for one in await client.blobs.list(limit=1)] == ["a.txt"]
        assert [one.key for one in await client.blobs.list(after="a.txt")] == ["big/one.bin"]
        assert await client.blobs.delete("a.txt")
        with pytest.raises(UnknownBlob, match=r"'a\.txt'"):
            await client.blobs.get("a.txt")
        with pytest.raises(BadArgument, match="invalid blob key"):
            await client.blobs.put("../a", b"")


async def test_the_sync_client(tmp_path: Path) -> None:
    async with App(":memory:", handlers=(), blob_url="memory:") as app, serve_app(app) as http:

        def use() -> bytes:
            with SyncClient(str(http.base_url)) as client:
                client.blobs.put("a", [b"x", b"y"])
                return b"".join(client.blobs.stream("a"))

        assert await asyncio.to_thread(use) == b"xy"


async def test_roles_and_redaction(tmp_path: Path) -> None:
    async with App(":memory:", handlers=(), blob_url=f"file://{tmp_path}/b") as app, serve_app(app) as http:
        tokens = {role: bearer((await app.tokens.add(role, role))[1]) for role in ("viewer", "operator", "admin")}
        await app.blobs.put("a/conf.json", SECRETS)
        await app.blobs.put("notes.txt", b"plain")

        async def get(role: str, path: str) -> httpx.Response:
            return await http.get(path, headers=tokens[role])

        assert (await http.get("/api/_blobs")).status_code == 401
        assert (await get("viewer", "/api/_blobs")).status_code == 200
        assert (await get("viewer", "/api/_blob_info/a/conf.json")).json()["size"] == len(SECRETS)
        assert (await get("viewer", "/api/_blobs/notes.txt")).status_code == 403
        for method in ("PUT", "DELETE"):
            assert (await http.request(method, "/api/_blobs/x", headers=tokens["viewer"])).status_code == 403
        assert (await http.post("/api/_blob_urls", json={"key": "x"}, headers=tokens["viewer"])).status_code == 403
        shown = await get("operator", "/api/_blobs/a/conf.json")
        assert shown.json() == {"password": "[redacted]", "list": [{"token": "[redacted]"}], "n": 1}
        assert (await get("operator", "/api/_blobs/a/conf.json?reveal=true")).status_code == 403
        assert (await get("admin", "/api/_blobs/a/conf.json?reveal=true")).content == SECRETS
        plain = await get("operator", "/api/_blobs/notes.txt")
        assert plain.content == b"plain"
        assert plain.headers["content-disposition"] == "attachment; filename*=utf-8''notes.txt"
        assert plain.headers["x-content-type-options"] == "nosniff"
        await http.put("/api/_blobs/n", content=b"1", headers=tokens["operator"])
        audit = [one.data for one in await app.events.read("nq:audit:log")]
        assert {"put_blob"} == {one["action"] for one in audit if one["path"] == "/api/_blobs/n"}


async def test_a_large_json_blob_is_for_admins(tmp_path: Path) -> None:
    async with App(":memory:", handlers=(), blob_url="memory:") as app, serve_app(app) as http:
        operator, admin = [bearer((await app.tokens.add(role, role))[1]) for role in ("operator", "admin")]  # type: ignore[arg-type]
        await app.blobs.put("big.json", b'"' + b"x" * (11 * MB) + b'"')
        await app.blobs.put("wrong.json", b'{"password": "p4ss"')  # no JSON
        assert (await http.get("/api/_blobs/big.json", headers=operator)).status_code == 403
        assert len((await http.get("/api/_blobs/big.json", headers=admin)).content) == 11 * MB + 2
        assert b"p4ss" not in (await http.get("/api/_blobs/wrong.json", headers=operator)).content


@pytest.mark.spec("000-3.41")
async def test_signed_urls_expire_and_allow_nothing_else() -> None:
    clock = FakeClock()
    async with App(":memory:", handlers=(), blob_url="memory:", clock=clock) as app, serve_app(app) as http:
        await app.tokens.add("ada", "admin")  # so that nothing else is open
        await app.blobs.put("a/b.json", SECRETS)
        await app.blobs.put("other", b"other")
        url = await app.blobs.url("a/b.json", expires="10m")
        answer = await http.get(url)
        assert (answer.status_code, answer.content) == (200, SECRETS)
        for wrong in (url.replace("a/b.json", "other"), url[:-1] + "x", url.replace("expires=1", "expires=2")):
            assert (await http.get(wrong)).status_code == 403
        assert (await http.put(url, content=b"x")).status_code == 403
        assert (await http.get("/api/blobs/other")).status_code == 400
        write = await app.blobs.url("new", expires="10m", method="PUT")
        assert (await http.put(write, content=b"[1]", headers={"content-type": "text/plain"})).json()["size"] == 3
        assert (await http.get(write)).status_code == 403
        assert (await app.blobs.info("new")).content_type == "text/plain"
        clock.advance("9m59s")
        assert (await http.get(url)).status_code == 200
        clock.advance("1s")
        gone = await http.get(url)
        assert (gone.status_code, gone.json()["error"]["code"]) == (403, "bad_blob_url")
        assert "expired" in gone.json()["error"]["message"]


async def test_all_processes_on_a_store_share_the_secret(shared: Callable[..., Any], tmp_path: Path) -> None:
    options: dict[str, Any] = {"blob_url": f"file://{tmp_path}/b", "public_url": "https://ops.example.com/"}
    async with shared(**options) as one, shared(**options) as two:
        first, second = await asyncio.gather(one.blobs.url("a"), two.blobs.url("a"))
        assert first.startswith("https://ops.example.com/api/blobs/a?expires=")
        for app in (one, two):
            for url in (first, second):
                query = httpx.URL(url).params
                await app.blobs._view.check_url("GET", "a", int(query["expires"]), query["signature"])


async def test_signed_urls_can_be_off_and_have_bounds() -> None:
    async with App(":memory:", handlers=(), blob_url="memory:", blob_signed_urls="off") as app, serve_app(app) as http:
        with pytest.raises(ConfigError, match="blob_signed_urls"):
            await app.blobs.url("a")
        assert (await http.get("/api/blobs/a?expires=1&signature=x")).status_code == 409
    async with App(":memory:", handlers=(), blob_url="memory:") as app:
        for expires in ("0s", "8d", "1ms"):
            with pytest.raises(BadArgument, match="expires"):
                await app.blobs.url("a", expires=expires)
        with pytest.raises(BadArgument, match="method"):
            await app.blobs.url("a", method="DELETE")  # type: ignore[arg-type]


@pytest.mark.spec("000-3.41")
async def test_a_bucket_signs_its_own_urls(s3_url: str) -> None:
    async with App(":memory:", handlers=(), blob_url=s3_url) as app, httpx.AsyncClient() as http:
        await app.blobs.put("a/b.csv", b"1,2")
        answer = await http.get(await app.blobs.url("a/b.csv", expires="1m"))
        assert (answer.content, answer.headers["content-type"]) == (b"1,2", "text/csv")
        url = await app.blobs.url("new", method="PUT")
        assert (await http.put(url, content=b"new")).status_code == 200
        assert await app.blobs.get("new") == b"new"
        assert "X-Amz-Expires=900" in url


async def test_a_body_that_breaks_off_replaces_nothing(tmp_path: Path) -> None:
    async with App(":memory:", handlers=(), blob_url=f"file://{tmp_path}/b") as app, serve_app(app) as http:
        await app.blobs.put("key", b"old")
        _, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        writer.write(b"PUT /api/_blobs/key HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n" + b"x" * 10)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await http.get("/health")).status_code == 200
        assert await app.blobs.get("key") == b"old"


async def test_a_damaged_answer_is_found_by_the_client() -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"wrong", headers={"x-content-sha256": "0" * 64})

    async with Client("http://server", transport=httpx.MockTransport(answer)) as client:
        with pytest.raises(BlobCorrupt, match="damaged"):
            await client.blobs.get("a")


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> Iterator[Callable[..., tuple[int, bytes, str]]]:
    """Return a function that calls the command line in an empty folder with a store."""
    from penstock.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_BLOB_URL", "file:blobs")
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///p.db")

    def run(*args: str) -> tuple[int, bytes, str]:
        code = main(["blobs", *args])
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    asyncio.run(_make_store())
    yield run


async def _make_store() -> None:
    async with App("sqlite:///p.db", handlers=()):
        pass


def test_the_command_line(command: Callable[..., tuple[int, bytes, str]], tmp_path: Path) -> None:
    content = bytes(range(256)) * 10
    (tmp_path / "in.bin").write_bytes(content)
    assert command("put", "a/x.csv", "in.bin")[1] == b"a/x.csv has 2,560 bytes.\n"
    assert json.loads(command("put", "b", "in.bin", "--content-type", "text/x", "--json")[1])["contentType"] == "text/x"
    assert command("get", "a/x.csv")[1] == content
    code, out, _ = command("get", "a/x.csv", "out.bin", "--json")
    assert (code, json.loads(out)["size"], (tmp_path / "out.bin").read_bytes()) == (0, 2560, content)
    assert [json.loads(line)["key"] for line in command("list", "--json")[1].splitlines()] == ["a/x.csv", "b"]
    assert b"text/csv" in command("list", "a/")[1]
    assert json.loads(command("info", "b", "--json")[1])["size"] == 2560
    assert command("url", "b", "--expires", "1h")[1].startswith(b"/api/blobs/b?expires=")
    assert command("delete", "b", "--yes")[0] == 0
    for args in (("info", "b"), ("get", "b"), ("get", "b", "gone.bin"), ("delete", "b", "--yes")):
        code, _, err = command(*args)
        assert (code, "no blob 'b'" in err) == (2, True), args
    assert not (tmp_path / "gone.bin").exists()
    assert not list(tmp_path.glob("*.part"))
    assert "no file 'nowhere'" in command("put", "c", "nowhere")[2]
