"""Error groups: dead letters that failed in the same way are counted, listed, redriven and discarded together."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import flow, job
from penstock.core.errors import UnknownJob
from penstock.jobs.error_groups import normalize, sign_error


class Declined(Exception):
    code = "declined"


def charge(n: int) -> None:
    raise Declined(f"card {n} of customer cus_9f8e7d6c{n} was declined after {n}.5 s")


@job(queue="pay", retry=1)
async def pay(n: int) -> None:
    if n % 4 == 3:
        raise ValueError(f"no such order: {n}")
    charge(n)


@flow("order", queue="pay", retry=1)
async def order(n: int) -> None:
    charge(n)


async def fail_jobs(app: Any, *numbers: int) -> None:
    async with app.workers.background():
        for n in numbers:
            await app.enqueue(pay, n, key=f"pay-{n}")
        for n in numbers:
            await app.wait_for_state(f"pay-{n}", "failed")


async def test_letters_that_failed_alike_are_one_group(app: Any) -> None:
    async with app(pay, order) as mine:
        await fail_jobs(mine, 0, 1, 2, 3)
        async with mine.workers.background():
            await mine.run_to_end(order, 8)
        first, second = await mine.dead_letters.groups()
        assert (first.count, first.queue, first.error, first.code) == (4, "pay-dlq", "Declined", "declined")
        assert first.message == "card # of customer # was declined after # s"
        assert first.frame == "jobs/test_error_groups.py:charge"
        assert first.first_at <= first.last_at
        assert (second.count, second.error, second.message) == (1, "ValueError", "no such order: #")
        assert [group.id for group in await mine.dead_letters.groups("pay")] == [first.id, second.id]
        assert await mine.dead_letters.groups("other") == []
        (found,) = await mine.dead_letters.list("pay", group=second.id)
        assert (found[1].original_job_id, found[1].group) == ("pay-3", second.id)
        page = await mine.dead_letters.list("pay", group=first.id, limit=2)
        rest = await mine.dead_letters.list("pay", group=first.id, after=page[-1][0])
        assert len({id for id, _ in page + rest}) == 4


async def test_a_group_is_redriven_and_discarded_as_a_whole(app: Any) -> None:
    async with app(pay) as mine:
        await fail_jobs(mine, 0, 1, 3)
        first, second = await mine.dead_letters.groups()
        assert await mine.dead_letters.discard_group(second.id) == 1
        assert [group.id for group in await mine.dead_letters.groups()] == [first.id]
        result = await mine.dead_letters.redrive_group(first.id)
        assert sorted(result.sent) == ["pay-0.dlq", "pay-1.dlq"]
        assert await mine.dead_letters.groups() == []
        with pytest.raises(UnknownJob, match="penstock dlq groups"):
            await mine.dead_letters.redrive_group(first.id)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 17 not found", "order 18 not found"),
        ("run 0195c2a8-7d3e-7b6a-9c1d-2f4e5a6b7c8d failed", "run 0195c2a8-aaaa-7b6a-9c1d-2f4e5a6b7c8e failed"),
        ("<Order object at 0x7f3a>", "<Order object at 0x7f3b>"),
        ("cus_9f8e7d6c1 is gone", "cus_8e7d6c1aa is gone"),
        ("timeout after 1.5 s at 12:30:01", "timeout after 30 s at 9:00:59"),
        ("two\nlines  1", "two lines 2"),
    ],
)
def test_messages_without_numbers_and_ids(one: str, other: str) -> None:
    assert normalize(one) == normalize(other)


def test_other_words_are_another_group() -> None:
    assert normalize("connection refused") != normalize("connection reset")
    assert len(normalize("word " * 1000)) <= 200
    here = sign_error({"name": "E", "message": "m", "frames": [{"file": "/a/b/c.py", "function": "f", "line": 3}]})
    there = sign_error({"name": "E", "message": "m", "frames": [{"file": "/x/b/c.py", "function": "f", "line": 9}]})
    assert here == there
    assert here.group == there.group != sign_error({"name": "E", "message": "m"}).group
    assert len(here.group) == 12
