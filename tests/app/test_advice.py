"""Likely mistakes: the call is carried out, and one warning is logged."""

from __future__ import annotations

import pytest

from penstock import App, flow, job
from penstock.app.advice import log


@job(queue="mail")
async def send(mail: dict) -> None: ...


@job(queue="pictures", name="resize")
async def resize(picture: dict) -> None: ...


@flow("shop", queue="orders")
async def shop(order: dict) -> None: ...


HANDLERS = (send, resize, shop)


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("WARNING", log.name)
    return caplog


@pytest.mark.parametrize(
    ("queue", "name", "expected"),
    [
        ("male", None, "queue 'male' has no handler in this process; did you mean 'mail'?"),
        ("zzz", None, "queue 'zzz' has no handler in this process; known queues: mail, pictures"),
        ("orders", None, "queue 'orders' has no handler in this process; known queues: mail, pictures"),
        (
            "pictures",
            None,
            "the handlers of queue 'pictures' process only jobs with their own name; pass name=, one of: resize",
        ),
        ("pictures", "rezise", "job 'rezise' in queue 'pictures' has no handler in this process; did you mean"),
    ],
)
async def test_a_queue_without_a_worker(
    warned: pytest.LogCaptureFixture, queue: str, name: str | None, expected: str
) -> None:
    async with App(":memory:", handlers=HANDLERS) as app:
        id = await app.enqueue(queue, {}, name=name)
        assert (await app.jobs.get(id)).queue == queue
        assert expected in warned.text
        warned.clear()
        await app.enqueue(queue, {}, name=name)
        assert warned.text == ""


async def test_a_schedule_without_a_worker(warned: pytest.LogCaptureFixture) -> None:
    async with App(":memory:", handlers=HANDLERS) as app:
        await app.schedules.add("x", queue="male", every="5m")
    assert "did you mean 'mail'?" in warned.text


async def test_no_warning_about_queues_of_other_workers(warned: pytest.LogCaptureFixture, tmp_path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    async with App(url, handlers=[send]) as app, app.workers.background():
        await app.jobs.result(await app.enqueue("mail", {}), timeout=20)
    async with App(url, handlers=[resize]) as other:
        await other.enqueue("mail", {})
    async with App(url, handlers=()) as producer:
        await producer.enqueue("anything", {})
    assert warned.text == ""


async def test_a_key_with_another_input(warned: pytest.LogCaptureFixture) -> None:
    async with App(":memory:", handlers=HANDLERS) as app:
        await app.start(shop, {"id": 7, "token": "secret-1"}, key="o-7")
        await app.start(shop, {"id": 7, "token": "secret-1"}, key="o-7")
        assert warned.text == ""
        await app.start(shop, {"id": 8}, key="o-7")
        assert "run 'o-7' already exists with a different input; the new input is ignored" in warned.text
        assert (await app.runs.get("o-7")).input["id"] == 7
