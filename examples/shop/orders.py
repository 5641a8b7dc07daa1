"""What an order is. Worker files may import what lies beside their folder."""

from __future__ import annotations

import os
from dataclasses import dataclass

# Seconds that a piece of pretended work takes; the tests make it shorter.
PACE = float(os.environ.get("SHOP_PACE", "0.2"))


@dataclass
class Line:
    """So many of one article, at a price in cents."""

    sku: str
    quantity: int
    price: int


@dataclass
class Order:
    """What a customer asks for."""

    id: str
    customer: str
    lines: list[Line]
    deliverable: bool = True  # no carrier goes to some addresses

    @property
    def total(self) -> int:
        return sum(line.quantity * line.price for line in self.lines)
