"""Nothing that reads text takes more than linear time: every pattern and every function of a text, at two lengths.

Patterns and functions are found in the package, so a new one is covered. The tests compare the processor time for 8 KB
with that for 64 KB: eight times as much is linear, sixty-four times as much is quadratic.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from itertools import pairwise
from typing import Any

import pytest
from attacks import parsers, patterns, texts, texts_against

from penstock.cli.argv import split_command_line
from penstock.cli.command_table import build_parser
from penstock.cli.parse import read_ago, read_tags
from penstock.core.events import Streams
from penstock.core.ids import check_name
from penstock.core.json_match import contains
from penstock.core.near_match import did_you_mean
from penstock.core.options import rename_keys
from penstock.core.payload import pack, to_plain
from penstock.core.redaction import Redactor
from penstock.core.text import check_text
from penstock.handlers.options import read_rate_limit
from penstock.schedules.spec import make_spec
from penstock.settings import Settings

SIZES = (1024, 8 * 1024, 64 * 1024)
MAX_RATIO = 30
SHORTEST_S = 0.0003  # a shorter measurement proves nothing
PATTERNS = patterns()


def is_linear(work: Callable[[Any], object], build: Callable[[int], Any], sizes: Sequence[int] = SIZES) -> bool:
    """Return whether eight times as much text takes less than MAX_RATIO times as long, up to 64 KB. A pause of the
    machine is no proof: only what is slow several times in a row is slow."""
    return all(_is_linear_between(work, build(short), build(long)) for short, long in pairwise(sizes))


def _is_linear_between(work: Callable[[Any], object], short: Any, long: Any) -> bool:
    return any(_measure(work, long) <= max(_measure(work, short), SHORTEST_S) * MAX_RATIO for _ in range(3))


def _measure(work: Callable[[Any], object], text: Any) -> float:
    start = time.thread_time()
    work(text)
    return time.thread_time() - start


def _search(pattern: re.Pattern[str]) -> Callable[[str], object]:
    return lambda text: pattern.sub("", text)


@pytest.mark.parametrize("where", PATTERNS)
def test_patterns(where: str) -> None:
    pattern, is_searched = PATTERNS[where]
    work = _search(pattern) if is_searched else pattern.fullmatch
    slow = next((build.__doc__ for build in texts_against(pattern) if not is_linear(work, build)), None)
    assert slow is None, f"{where} is not linear for {slow}"


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", (512, 4096)),
        (r".+\..+\.[0-9]{1,9}", (64, 512)),  # it is cubic: more would take minutes
        (r"\beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]{8,}){1,4}", (2048, 16384)),
    ],
)
def test_a_slow_pattern_is_found(text: str, sizes: tuple[int, int]) -> None:
    pattern = re.compile(text)
    assert not all(is_linear(_search(pattern), build, sizes) for build in texts_against(pattern))


REDACTOR = Redactor(Settings().redact)
PARSERS: dict[str, Callable[[str], object]] = {
    **parsers(),
    "redact_text": REDACTOR.redact_text,
    "redact_json": lambda text: REDACTOR.redact_json(pack([text, {text[:100]: text}], limit=10**6)),
    "cron": lambda text: make_spec(cron=text),
    "zone": lambda text: make_spec(every="1m", tz=text),
    "near match": lambda text: did_you_mean(text, [f"{text}y", text[1:]]),
    "near match of many": lambda text: did_you_mean(text[:90], [f"{text[:80]}{n}" for n in range(len(text) // 128)]),
    "option names": lambda text: rename_keys({text: 1}, {"queue"}, "options"),
    "settings": lambda text: Settings.load({"url": text}, env={}),
    "variables": lambda text: Settings.load(env={f"PENSTOCK_{text}": text}),
    "rate limit": lambda text: read_rate_limit(text, None),
    "tags": lambda text: read_tags([text]),
    "times": lambda text: read_ago(text, "--since"),
    "streams": Streams().check,
    "names": lambda text: check_name(text, "name"),
    "texts": lambda text: check_text(text, "text"),
    "command line": lambda text: split_command_line([text, f"--{text}", text], build_parser()),
}


@pytest.mark.parametrize("name", PARSERS)
def test_parsers(name: str) -> None:
    def parse(text: str) -> None:
        with suppress(Exception):
            copy_context().run(PARSERS[name], text)  # some set a context variable

    slow = next((build.__doc__ for build in texts(name) if not is_linear(parse, build)), None)
    assert slow is None, f"{name} is not linear for {slow}"


@pytest.mark.parametrize("item", [1, "a", {"a": 1}, [1], {"a": {"b": [1]}}, [[[]]]], ids=str)
def test_matching_takes_a_bounded_number_of_steps(item: Any) -> None:
    """Arrays of objects are compared item by item, up to a limit; scalars are looked up."""

    def build(size: int) -> list[Any]:
        return [item] * (size // len(pack(item)))

    assert is_linear(lambda value: contains([*value, None], [*value, "nothing"]), build)
    assert is_linear(lambda value: contains(value, [*value, {"a": 2}]), build)
    assert is_linear(lambda value: contains({"a": value}, {"a": [*value, [2]]}), build)


def test_a_payload_costs_no_more_for_long_keys() -> None:
    assert is_linear(lambda size: to_plain({"k" * size: [1] * size}), lambda size: size)
