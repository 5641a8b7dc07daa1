"""Blob stores of each kind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3_server import KEYS, make_bucket, run_s3

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """Return the address of an S3 server."""
    with run_s3() as address:
        yield address


@pytest.fixture
def s3_url(s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an empty bucket."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return make_bucket(s3, f"bucket{next(_numbers)}")


@pytest.fixture(params=["memory", "file", "s3"])
def blob_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty blob store of each kind."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3_url"))
    return "memory:" if request.param == "memory" else f"file://{tmp_path}/blobs"
