"""A dead letter of a compensated run can be redriven: the run starts again, because its steps are undone."""

from __future__ import annotations

from typing import Any

from penstock import Permanent, flow, step


def move(broken: list[bool]) -> list[Any]:
    @flow("move", emits=["packed"], compensation="unpack")
    async def pack(input: Any, ctx: Any) -> None:
        ctx.emit("packed", input)

    @step(on="packed", queue="trucks")
    async def drive(input: Any) -> Any:
        if broken[0]:
            raise Permanent("no truck")
        return {"arrived": input}

    @step(flow="move")
    async def unpack(input: Any) -> None: ...

    return [pack, drive, unpack]


async def test_redriving_starts_the_run_again(app: Any) -> None:
    broken = [True]
    async with app(*move(broken)) as a, a.workers.background():
        run, status = await a.run_to_end("move", {"to": "Ulm", "password": "x"}, tags={"kind": "big"})
        assert status == "compensated"
        ((id, _),) = await a.dead_letters.list("trucks")
        broken[0] = False
        done = await a.dead_letters.redrive(id)
        assert done.refused == {}
        new = f"{run}.again"
        assert done.sent == {id: f"{new}.pack.1"}
        assert await a.result(new, timeout=20) == {"arrived": {"to": "Ulm", "password": "x"}}
        assert await a.dead_letters.list("trucks") == []
        assert [row.id for row in await a.runs.list(tags={"kind": "big"})] == [new, run]
        assert (await a.runs.get(run)).status == "compensated"


async def test_another_input_is_refused(app: Any) -> None:
    async with app(*move([True])) as a, a.workers.background():
        run, _ = await a.run_to_end("move", 1)
        ((id, _),) = await a.dead_letters.list("trucks")
        done = await a.dead_letters.redrive(id, input=2)
        assert done.sent == {}
        assert f"penstock runs replay {run}" in done.refused[id]
        assert len(await a.dead_letters.list("trucks")) == 1
