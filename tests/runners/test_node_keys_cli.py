"""Commands that are workers themselves call the functions of TypeScript configs, and work on what the keys start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli import main

BILL = """
export const config = { flow: { id: 'bill', role: 'main' }, idempotencyKey: (input) => `bill-${input.order}` }
export default async (input) => input.cents
"""
MAIL = """
export const config = { idempotencyKey: (input) => input.to }
export default async (input) => `mailed ${input.to}`
"""
STARTER = """
from penstock import flow

@flow("starter", emits=[])
async def starter(order, ctx):
    ctx.enqueue("mail", {"to": "eve"})
    return await ctx.call("bill", {"order": order, "cents": 4})
"""


def test_a_key_is_evaluated_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workers = tmp_path / "workers"
    workers.mkdir()
    for name, text in (("bill.ts", BILL), ("mail.ts", MAIL), ("starter.py", STARTER)):
        (workers / name).write_text(text)
    place = ["--url", f"sqlite:///{tmp_path}/cli.db", "--dir", str(workers), "--json"]
    assert main(["run", "bill", "--input", '{"order": "cli", "cents": 5}', *place]) == 0
    run = json.loads(capsys.readouterr().out)
    assert (run["id"], run["result"]) == ("bill-cli", 5)
    assert main(["run", "starter", "--input", '"own"', *place]) == 0
    assert json.loads(capsys.readouterr().out)["result"] == 4
    assert main(["jobs", "show", "eve", *place]) == 0
    assert json.loads(capsys.readouterr().out)["result"] == "mailed eve"
    assert main(["jobs", "execute", "mail", "--input", '{"to": "line"}', *place]) == 0
    assert '"job":"line"' in capsys.readouterr().out
