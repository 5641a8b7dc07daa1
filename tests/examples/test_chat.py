"""The chat example: a conversation larger than what a store keeps of one value, on every store."""

from __future__ import annotations

from pathlib import Path

from penstock.testing import TestApp

WORKERS = Path(__file__).parents[2] / "examples" / "chat" / "workers"


async def test_a_conversation_grows_and_is_archived(url: str, tmp_path: Path) -> None:
    async with TestApp(url, WORKERS, blob_url=f"file://{tmp_path}/blobs") as app:
        view = await app.run_flow("chat", "What is new?", key="first")
        assert view.result["key"] == "transcripts/first.txt"
        text = await app.blobs.get("transcripts/first.txt")
        assert (len(text), text[:18]) == (view.result["size"], b"user: What is new?")
        assert text.count(b"assistant: assistant says") == 10
        sizes = [file.stat().st_size for file in (tmp_path / "blobs").rglob("values/*")]
        assert 32_768 < sum(sizes) < 2.5 * len(text)  # each message about once, not in each turn again
