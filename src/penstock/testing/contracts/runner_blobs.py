"""The third part of the runner contract: blobs."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from ..test_app import TestApp


class RunnerBlobs:
    """Cases of RunnerContract."""

    async def test_blob_is_put_read_and_deleted(self, app: TestApp) -> None:
        text = "Zoë;1\n"
        [put, content, info, deleted] = (await app.run_flow("blobs", text)).result
        data = text.encode()
        facts = ["runner/a.csv", len(data), "text/csv", hashlib.sha256(data).hexdigest()]
        assert (put, content, info, deleted) == (facts, text, facts, [True, False])

    async def test_blob_goes_in_parts_both_ways(self, app: TestApp) -> None:
        [size, sha256, parts] = (await app.run_flow("blob-streams")).result
        data = b"".join(letter * 600_000 for letter in (b"a", b"b", b"c"))
        assert (size, sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert parts > 1
        assert await app.blobs.get("runner/large") == data

    @pytest.mark.parametrize(
        ("kind", "name", "code"),
        [
            ("missing", "UnknownBlob", "unknown_blob"),
            ("key", "BadArgument", "bad_argument"),
            ("expires", "BadArgument", "bad_argument"),
            ("chunks", "ValueError", None),
        ],
    )
    async def test_blob_error_reaches_the_handler(self, app: TestApp, kind: str, name: str, code: str | None) -> None:
        assert (await app.run_flow("blob-errors", kind)).result == [name, code]
        assert [blob.key for blob in await app.blobs.list()] == []

    async def test_signed_url_of_a_blob(self, app: TestApp) -> None:
        assert "/api/blobs/runner/a.csv?" in (await app.run_flow("blob-url")).result

    async def test_blob_is_put_once_inside_a_durable_call(self, app: TestApp, trace: Any) -> None:
        view = await app.run_flow("blob-in-call", {"trace": trace.path})
        assert (view.result, trace.text()) == ("runner/a.txt", "put\n")
        assert await app.blobs.get("runner/a.txt") == b"1"

    async def test_another_branch_goes_on_while_one_waits(self, app: TestApp, trace: Any) -> None:
        """The step suspends after the blob was put, not before: a request that is no durable call is waited for."""
        run = await app.start("blob-branches", {"trace": trace.path})
        await app.settle()
        assert (await app.runs.get(run)).status == "waiting"
        assert trace.text() == "put\n"
        assert await app.blobs.get("runner/branch") == b"x" * 700_000
        await app.emit("runner.go")
        assert (await app.finish(run)).result == ["runner.go", "found none"]
