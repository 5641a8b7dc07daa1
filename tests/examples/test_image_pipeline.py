"""The image pipeline: a Python step in a child process and a TypeScript step in Node, in one flow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from node_programs import node
from penstock.testing import TestApp

RED, BLUE = (255, 0, 0), (0, 0, 255)
PIPELINE = Path(__file__).parents[2] / "examples" / "image-pipeline"


@pytest.mark.spec("000-8.18", "000-8.6", "000-5.6")
async def test_a_picture_passes_both_languages(url: str, tmp_path: Path) -> None:
    workers = shutil.copytree(PIPELINE / "workers", tmp_path / "workers")
    picture = tmp_path / "tree.png"
    drawn = Image.new("RGB", (80, 40), "red")
    drawn.paste("blue", (40, 0, 80, 40))
    drawn.save(picture)
    async with TestApp(url, workers, node=node()) as app:
        assert app.registry.problems == ()
        run = await app.run_flow("image-pipeline", {"file": str(picture), "width": 40})
        thumb = tmp_path / "tree.thumb.ppm"
        assert run.result == {"ok": True, "file": str(thumb), "side": 20}
        with Image.open(thumb) as square:  # the middle of the picture
            assert (square.size, square.getpixel((2, 10)), square.getpixel((17, 10))) == ((20, 20), RED, BLUE)
        assert [kind for kind, _ in await app.emitted(run.id)] == [
            "resize.requested", "resize.completed", "thumbnail.completed",
        ]  # fmt: skip
        assert run.state == {f"thumb:{run.id}": {"file": str(thumb)}}


async def test_a_file_that_is_no_picture_fails(tmp_path: Path) -> None:
    workers = shutil.copytree(PIPELINE / "workers", tmp_path / "workers")
    (tmp_path / "x.png").write_bytes(b"GIF89a\n\n\n")
    async with TestApp(dir=workers, node=node()) as app:
        run = await app.run_flow("image-pipeline", {"file": str(tmp_path / "x.png"), "width": 4})
        assert (run.status, "cannot identify image file" in str(run.error)) == ("failed", True)
