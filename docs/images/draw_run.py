"""Draws run.svg, the picture of the example shop: a real run of the shop, at three moments.

python docs/images/draw_run.py
"""

from __future__ import annotations

import asyncio
import io
import re
import tempfile
from pathlib import Path

from rich.console import Console

from penstock import App
from penstock.cli.run_view import RunPanel
from penstock.core.clock import from_iso
from penstock.core.events import Event
from penstock.core.payload import parse_json
from penstock.flows.reducer import reduce_flow

HERE = Path(__file__).resolve().parent
SHOP = HERE.parents[1] / "examples" / "shop"


class Moment:
    """A clock that shows the time of one event."""

    def __init__(self, event: Event) -> None:
        self._ms = from_iso(event.ts)

    def now_ms(self) -> int:
        return self._ms


async def run() -> list[Event]:
    order = parse_json((SHOP / "order.json").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        async with App(f"sqlite:///{folder}/shop.db", SHOP / "workers") as app, app.workers.background():
            id = await app.start("shop", order, key=order["id"])
            await app.runs.wait(id, timeout="1m")
            return await app.events.read_all(f"nq:flow:{id}")


def draw(events: list[Event]) -> str:
    console = Console(
        record=True, width=90, file=io.StringIO(), force_terminal=True, color_system="truecolor", legacy_windows=False
    )
    console.print("[green]$[/] penstock run shop --input @order.json --key order-2001", highlight=False)
    for event in moments(events):
        console.print(RunPanel(reduce_flow(e for e in events if e.seq <= event.seq), Moment(event)))
        console.print()
    svg = console.export_svg(title="the same run at three moments", unique_id="penstock-run")
    # Fonts are those of the reader: a picture asks nobody on the network for one.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S)


def moments(events: list[Event]) -> list[Event]:
    """The payment has failed for the second time; the parcel is half packed; all is done."""
    failed = [e for e in events if e.step == "charge" and e.kind == "step.retry"]
    packed = [e for e in events if e.step == "ship" and e.kind == "step.progress" and e.data == {"progress": 50}]
    return [failed[0], packed[0], events[-1]]


if __name__ == "__main__":
    (HERE / "run.svg").write_text(draw(asyncio.run(run())), "utf-8")
