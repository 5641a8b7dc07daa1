"""The image pipeline: a Python step in a child process and a TypeScript step in Node, in one flow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from node_programs import node
from penstock.testing import TestApp

PIPELINE = Path(__file__).parents[2] / "examples" / "image-pipeline"


@pytest.mark.spec("000-8.18", "000-8.6", "000-5.6")
async def test_a_picture_passes_both_languages(url: str, tmp_path: Path) -> None:
    workers = shutil.copytree(PIPELINE / "workers", tmp_path / "workers")
    picture = tmp_path / "tree.ppm"
    rows = [bytes(value for x in range(8) for value in (x, y, 0)) for y in range(4)]
    picture.write_bytes(b"P6\n8 4\n255\n" + b"".join(rows))
    async with TestApp(url, workers, node=node()) as app:
        assert app.registry.problems == ()
        run = await app.run_flow("image-pipeline", {"file": str(picture), "width": 4})
        thumb = tmp_path / "tree.thumb.ppm"
        assert run.result == {"ok": True, "file": str(thumb), "side": 2}
        assert thumb.read_bytes() == b"P6\n2 2\n255\n" + bytes([2, 0, 0, 4, 0, 0, 2, 2, 0, 4, 2, 0])
        assert [kind for kind, _ in await app.emitted(run.id)] == [
            "resize.requested", "resize.completed", "thumbnail.completed",
        ]  # fmt: skip
        assert run.state == {f"thumb:{run.id}": {"file": str(thumb)}}


async def test_a_file_that_is_no_picture_fails(tmp_path: Path) -> None:
    workers = shutil.copytree(PIPELINE / "workers", tmp_path / "workers")
    (tmp_path / "x.ppm").write_bytes(b"GIF89a\n\n\n")
    async with TestApp(dir=workers, node=node()) as app:
        run = await app.run_flow("image-pipeline", {"file": str(tmp_path / "x.ppm"), "width": 4})
        assert (run.status, "not a binary PPM picture" in str(run.error)) == ("failed", True)
