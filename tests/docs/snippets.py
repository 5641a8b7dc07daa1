"""Reading the fenced blocks of a page.

- A ```python block whose first line is `# some/file.py`, or a ```ts block with `// some/file.ts`, is written to that file; others are executed, in one namespace.
- `<!-- file: some/file.json -->` on the line before a ```json block names its file.
- In a ```console block, lines beginning with `$ ` are run and what follows is compared with what they print.
- `<!-- not run: why -->` on the line before a block leaves it out. A block of another language is only read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

_FENCE = re.compile(r"^( *)```(\w*)\s*$")
_NOT_RUN = re.compile(r"<!-- not run: (?P<why>.+?) -->")
_SAVED_AS = re.compile(r"<!-- file: (\S+) -->")
_FILE = re.compile(r"^(?:#|//) ([\w./-]+\.(?:py|json|ts))$")


@dataclass
class Command:
    """A command at a prompt and the output shown after it."""

    text: str
    line: int
    shown: list[str] = field(default_factory=list)


@dataclass
class Block:
    """A fenced block of a page."""

    language: str
    line: int
    text: str
    not_run: str | None = None
    saved_as: str | None = None

    @property
    def file(self) -> str | None:
        """Return the file name in the first line of the block, if it has one."""
        if self.saved_as is not None:
            return self.saved_as
        found = _FILE.match(self.text.partition("\n")[0])
        return found[1] if found else None

    def commands(self) -> list[Command]:
        commands: list[Command] = []
        for number, line in enumerate(self.text.splitlines(), self.line + 1):
            if line.startswith("$ "):
                commands.append(Command(line[2:], number))
            elif commands and commands[-1].text.endswith("\\"):
                commands[-1].text += "\n" + line
            elif commands:
                commands[-1].shown.append(line)
        return commands


def blocks_of(page: Path) -> list[Block]:
    """Return every fenced block of a page, in order."""
    blocks: list[Block] = []
    inside: Block | None = None
    before = indent = ""
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is not None:
            if fence and not fence[2]:
                blocks.append(inside)
                inside = None
            else:
                inside.text += line.removeprefix(indent) + "\n"
        elif fence:
            reason = _NOT_RUN.search(before)
            indent = fence[1]
            named = _SAVED_AS.search(before)
            inside = Block(fence[2], number, "", reason["why"] if reason else None, named[1] if named else None)
        if line.strip():
            before = line
    return blocks


_VARYING = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\b\d{13}-(\d+)"), r"<ms>-\1"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT[\d:.]+Z"), "<time>"),
    (re.compile(r"\b\d\d:\d\d:\d\d\.\d{3}\b"), "<time>"),
    (re.compile(r"\b\d+(\.\d+)? (ms|s)\b"), "<span>"),
    (re.compile(r'"(duration|delayMs)": ?\d+'), r'"\1": <span>'),
    (re.compile(r"[ \t]+"), " "),
)


def normalize(text: str) -> str:
    """Return a line without ids, times, durations and the padding that depends on them."""
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return text.strip()


def matches(shown: list[str], output: list[str]) -> bool:
    """Return whether the page shows this output; a line `...` stands for any number of lines."""
    want = [normalize(line) for line in shown if line.strip()]
    have = [normalize(line) for line in output if line.strip()]
    return _match(want, have)


def _match(want: list[str], have: list[str]) -> bool:
    if not want:
        return not have
    if want[0] == "...":
        return any(_match(want[1:], have[n:]) for n in range(len(have) + 1))
    return bool(have) and _line(want[0], have[0]) and _match(want[1:], have[1:])


def _line(want: str, have: str) -> bool:
    parts = [re.escape(part) for part in want.split("…")]
    return re.fullmatch(".*".join(parts), have) is not None
