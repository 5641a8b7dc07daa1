"""What specification 002 asks of the page "Kafka or BullMQ"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "messaging.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.spec("002-8.2")
def test_the_differences_are_a_table() -> None:
    """Each feature of the specification's table has a row, or is in one."""
    rows = [row for row in section("The differences").splitlines() if row.startswith("|")]
    assert [cell.strip() for cell in rows[0].strip("|").split("|")] == ["", "BullMQ", "Kafka"]
    text = "\n".join(rows).lower()
    for feature in ("server", "order", "retr", "dead letter", "priority", "delay", "id", "scale", "finished messages"):
        assert feature in text, feature
    assert all(row.count("|") == 4 for row in rows)


@pytest.mark.spec("002-8.1")
def test_the_guide_moves_definition_registration_and_producers() -> None:
    guide = section("From one to the other")
    namespace: dict[str, object] = {}
    code = re.search(r"```python\n# definition.py\n(.*?)```", guide, re.DOTALL)
    assert code is not None
    exec(code.group(1), namespace)
    from penstock import App
    from penstock.messaging.bullmq import BullMQ
    from penstock.messaging.kafka import Kafka

    (before,) = App(":memory:", handlers=[namespace["with_kafka"]])._entity_bridges
    (after,) = App(":memory:", handlers=[namespace["with_bullmq"]])._entity_bridges
    assert (type(before), type(after)) == (Kafka, BullMQ)
    steps = [line for line in guide.splitlines() if re.match(r"\d\. ", line)]
    assert len(steps) == 5
    assert "queue.add(name, {urn, payload})" in guide, "what producers in Node call"
