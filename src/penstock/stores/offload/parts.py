"""Parts of values. Where a value is cut depends on its bytes: values with the same beginning have the same parts.

A value is stored whole until another one has parts of it, such as a conversation that has grown by a message. From then
on each part exists once.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

import msgspec

from .units import LargeValue

MIN_PART_BYTES = 4 * 1024
PARTS_PER_DOUBLING = 16  # parts grow with their distance from the start: a value that doubles gets so many more
MIN_HEAD_BYTES = 256  # of the first part: a counter before the messages changes with each of them
MIN_SHARED = 0.25  # of a value that is stored in parts
MAX_SEEN = 50_000
_WINDOW_BYTES = 48
_CANDIDATE = re.compile(rb'[ ,"\n0A]')  # JSON, prose, hex and base64 have one every few bytes
_CHOSEN = 64  # one candidate of so many, by a hash of the bytes before it, ends a part


def cut(data: bytes) -> list[bytes]:
    """Return the parts of a value."""
    parts, start = [], 0
    while (end := _find_end(data, start)) < len(data):
        parts.append(data[start:end])
        start = end
    return [*parts, data[start:]]


def _find_end(data: bytes, start: int) -> int:
    """Return where the part that begins at `start` ends. What comes after that place has no influence on it."""
    size = max(MIN_PART_BYTES, 1 << (start // PARTS_PER_DOUBLING).bit_length() - 1) if start else MIN_HEAD_BYTES
    last = start + 2 * size
    for found in _CANDIDATE.finditer(data, start + size // 2, last):
        end = found.end()
        if crc32(data[end - _WINDOW_BYTES : end]) % _CHOSEN == 0:
            return end
    return min(last, len(data))


class Plan(msgspec.Struct):
    """What a unit's large values are stored as."""

    objects: list[LargeValue]
    digests: dict[str, tuple[str, ...]]  # the objects of each value
    seen: list[str]  # digests of parts, once the objects are stored

    def name(self, names: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """Return the names of each value's objects, by its digest."""
        return {digest: tuple(names[one] for one in objects) for digest, objects in self.digests.items()}


class SeenParts:
    """The parts of values that this process has stored or read."""

    def __init__(self) -> None:
        self._digests: OrderedDict[str, None] = OrderedDict()

    def add(self, digests: Iterable[str]) -> None:
        """Remember parts that are in the blob store."""
        for digest in digests:
            self._digests[digest] = None
            self._digests.move_to_end(digest)
        while len(self._digests) > MAX_SEEN:
            self._digests.popitem(last=False)

    def add_value(self, data: bytes) -> None:
        """Remember the parts of a value that was read whole."""
        self.add(map(_digest, cut(data)))

    def plan(self, values: Sequence[LargeValue]) -> Plan:
        """Decide which values are stored in parts: those that share enough with earlier ones."""
        plan = Plan([], {}, [])
        for value in values:
            parts = [LargeValue(_digest(part), part, value.owners) for part in cut(value.data)]
            plan.seen += [part.digest for part in parts]
            shared = sum(len(part.data) for part in parts if part.digest in self._digests)
            is_known = value.digest in self._digests  # it exists whole
            is_split = not is_known and len(parts) > 1 and shared >= MIN_SHARED * len(value.data)
            stored = parts if is_split else [value]
            plan.seen += [one.digest for one in stored]
            plan.objects += stored
            plan.digests[value.digest] = tuple(one.digest for one in stored)
        return plan


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
