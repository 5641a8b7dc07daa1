"""Values that grow: a conversation whose beginning was stored before stores its new end only."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock import job
from penstock.blobs.memory import MemoryObjects
from penstock.stores.offload import parts
from penstock.stores.offload.parts import cut
from penstock.stores.offload.sweep import ValueSweeper

Chat = dict[str, Any]


def talk(turns: int, chars: int) -> list[Chat]:
    """Return a conversation after each of its turns. A counter in front of the messages changes too."""
    rng = random.Random(7)
    messages = [
        {"role": ("user", "assistant")[n % 2], "content": rng.randbytes(chars // 2).hex()} for n in range(turns)
    ]
    return [{"turn": n, "messages": messages[: n + 1]} for n in range(turns)]


async def stored_bytes(objects: MemoryObjects) -> int:
    return sum(one.size for one in await objects.list("values/", limit=100_000))


async def store(a: Any, chats: list[Chat]) -> tuple[int, int, int]:
    """Enqueue jobs with them. Return the sizes of the last one, of all, and of what is stored."""
    for n, chat in enumerate(chats):
        await a.enqueue("chats", chat, key=f"turn-{n}")
    sizes = [len(json.dumps(chat, separators=(",", ":"))) for chat in chats]
    return sizes[-1], sum(sizes), await stored_bytes(a.store._objects)


async def test_a_growing_conversation_stores_about_its_final_size(memory: Callable[..., Any]) -> None:
    chats = talk(100, 5000)
    async with memory(blobs=MemoryObjects()) as a:
        final, total, stored = await store(a, chats)
        assert (stored < 2.6 * final, total > 45 * final) == (True, True), (stored, final, total)


async def test_without_shared_parts_it_stores_their_sum(
    memory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the test above."""
    monkeypatch.setattr(parts, "MIN_SHARED", 2.0)
    async with memory(blobs=MemoryObjects()) as a:
        final, _, stored = await store(a, talk(100, 5000))
        assert stored > 45 * final


async def test_shared_parts_are_read_whole_and_live_as_long_as_one_value(app: Callable[..., Any]) -> None:
    chats = talk(12, 20_000)
    async with app(blobs=MemoryObjects(), blob_grace="1h") as a:
        final, total, stored = await store(a, chats)
        assert stored < 4 * final < total
        sweeper = ValueSweeper(a.store._inner, a.store._objects, a.store.clock, a._runtime.new_unit_id, -1)
        for n in (*range(6), 11):
            await a.jobs.remove(f"turn-{n}")
        await a.store.trim("nq:queue:chats", keep=0)
        await sweeper.sweep_all()
        a.store._values._cache.clear()
        for n in range(6, 11):
            assert (await a.jobs.get(f"turn-{n}")).input == chats[n]
        for n in range(6, 11):
            await a.jobs.remove(f"turn-{n}")
        assert (await sweeper.sweep_all())["values"] > 0
        assert await stored_bytes(a.store._objects) == 0


async def test_another_process_shares_parts_of_what_it_has_read(shared: Callable[..., Any]) -> None:
    """A worker gets a conversation and returns a longer one."""
    chats = talk(4, 50_000)

    @job(queue="chats")
    async def answer(chat: Chat) -> Chat:
        return chats[len(chat["messages"])]

    objects = MemoryObjects()
    async with shared(answer, blobs=objects) as first, shared(answer, blobs=objects) as second:
        await first.enqueue("chats", chats[0])
        await first.enqueue("chats", chats[1])
        id = await first.enqueue(answer, chats[2])
        before = await stored_bytes(objects)
        async with second.workers.background():
            assert await second.jobs.result(id, timeout=20) == chats[3]
        assert await stored_bytes(objects) - before < 1.5 * 50_000 + 3 * 50_000  # of the first two jobs' results too


@pytest.mark.parametrize("kind", ["messages", "text", "no candidates", "small"])
def test_what_follows_a_part_does_not_change_it(kind: str) -> None:
    rng = random.Random(kind)
    make = {
        "messages": lambda: json.dumps([{"n": n, "text": rng.randbytes(90).hex()} for n in range(3000)]).encode(),
        "text": lambda: json.dumps(" ".join(rng.randbytes(3).hex() for _ in range(50_000))).encode(),
        "no candidates": lambda: b"x" * 400_000,
        "small": lambda: b'{"a":1}',
    }[kind]
    data = make()
    whole = cut(data)
    assert b"".join(whole) == data
    for size in (len(data) // 3, len(data) // 2, len(data) - 1):
        shorter = cut(data[:size])
        shared = [one for one, other in zip(shorter, whole, strict=False) if one == other]
        assert len(shared) >= len(shorter) - 3, (len(shorter), len(shared))
    assert max(map(len, whole)) <= max(8192, len(data) // 8)
