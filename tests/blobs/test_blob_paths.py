"""A key never leaves the base path, whatever it is, and by whichever way it comes."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pytest

from http_server import Serve
from penstock import App
from penstock.errors import BadArgument, BlobUnavailable

TARGETS = ("etc/passwd", "x", "secret.txt", "windows/win.ini")
UPS = (
    *("..", ".", "...", "../..", "../../..", "..\\", "..\\..", "%2e%2e", "%2E%2E", "%252e%252e", "..%2f", "..%5c"),
    *("..%00", "..;", "..%c0%af", "%c0%ae%c0%ae", "．．", "‥", ".%2e", "%2e.", ".. ", " ..", "..\t", "..\n", "..\x00"),
    *("~", "~root", "$HOME", "${HOME}", "`id`", "|id", "C:", "C:\\", "\\\\host\\share", "\\\\?\\C:", "//host", "/"),
    *("file:", "file://", "s3:/", "http://host", "\u202e", "\ufeff", "\u2215..\u2215", "a\\..\\..", "a/.git", ".ssh"),
)
WHOLE = (
    *("", "/", "//", ".", "..", "./", "../", "a/", "/a", "a//b", "a/./b", "a/../b", "a/b/..", "a/b/.", "..a", ".a"),
    *("a/.b", "a\x00", "\x00", "a\nb", "a b", "a\\b", "a%2fb", "a?b", "a#b", "a*b", 'a"b', "a'b", "a<b", "a>b", "a|b"),
    *("a:b", "é", "\ud800", "a" * 513, "/".join("a" * 21), "con:", "a~1", "~/a", "%", "%00", "&", "a;b", "a,b"),
)
CORPUS = tuple(dict.fromkeys([*WHOLE, *(f"{up}/{target}" for up in UPS for target in TARGETS)]))


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.spec("000-3.41")
async def test_no_key_of_the_corpus_leaves_the_base(tmp_path: Path) -> None:
    assert len(CORPUS) >= 200
    (tmp_path / "secret.txt").write_text("s3cr3t")
    async with App(":memory:", handlers=(), blob_url=f"file://{tmp_path}/base/blobs") as app:
        for key in CORPUS:
            calls = (app.blobs.put(key, b"x"), app.blobs.get(key), app.blobs.info(key), app.blobs.delete(key))
            for call in (*calls, app.blobs.url(key), app.blobs.list(after=key)):
                with pytest.raises(BadArgument):
                    await call
            if not key.startswith("a") and key != "":  # the start of a good key is a good prefix
                with pytest.raises(BadArgument):
                    await app.blobs.list(key)
    assert files_in(tmp_path) == {"secret.txt"}


async def test_no_address_of_the_corpus_leaves_the_base(tmp_path: Path, serve: Serve) -> None:
    """As it is, and escaped once and twice. A server may read some of them as another key: also that stays inside."""
    (tmp_path / "secret.txt").write_text("s3cr3t")
    async with App(":memory:", handlers=(), blob_url=f"file://{tmp_path}/base/blobs") as app, serve(app) as client:
        for key in CORPUS:
            text = key.encode("utf-8", "replace").decode()
            for path in {quote(text, safe=""), quote(quote(text, safe=""), safe=""), quote(text, safe="/%.;:~$&'*,|")}:
                for method in ("GET", "PUT", "DELETE"):
                    answer = await client.request(
                        method, f"/api/_blobs/{path}", content=b"x" if method == "PUT" else None
                    )
                    assert b"s3cr3t" not in answer.content, (method, path)
                    assert answer.status_code < 500, (method, path)
    assert files_in(tmp_path) - {"secret.txt"} <= {f"base/blobs/{name}" for name in files_in(tmp_path / "base/blobs")}
    assert all(name.startswith(("nq/files/", "nq/records/")) for name in files_in(tmp_path / "base/blobs"))
    assert (tmp_path / "secret.txt").read_text() == "s3cr3t"


@pytest.fixture
def serve() -> Serve:
    from http_server import serve_app

    return serve_app


async def test_a_link_that_leads_out_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("s3cr3t")
    async with App(":memory:", handlers=(), blob_url=f"file://{tmp_path}/base") as app:
        await app.blobs.put("ok", b"")
        os.symlink(tmp_path / "outside", tmp_path / "base/nq/files/link")
        os.symlink(tmp_path / "outside/secret", tmp_path / "base/nq/files/file")
        for call in (app.blobs.get("link/secret"), app.blobs.put("link/new", b"x"), app.blobs.get("file")):
            with pytest.raises(BlobUnavailable, match="symbolic link"):
                await call
        with pytest.raises(BlobUnavailable, match="symbolic link"):
            await app.blobs.delete("link/secret")
    assert files_in(tmp_path / "outside") == {"secret"}
