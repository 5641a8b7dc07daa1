"""Writes docs/reference/cli.md from the help of the commands: `python docs/generate_cli.py`. A test compares."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from cyclopts import App
from rich.console import Console

from penstock.cli.commands import build_parser

PAGE = Path(__file__).parent / "reference" / "cli.md"
WIDTH = 100
HEAD = """# Command line

The help of every command, as `penstock COMMAND --help` prints it. `docs/generate_cli.py` writes this page: change the
command, then run that.

Exit codes: 0 all is well, 1 the run did not complete, 2 there is something for you to mend, 70 a bug of ours, 130
interrupted. Settings that no option sets are [environment variables or lines in a file](../settings.md).

What goes wrong is said on stderr: a sentence with its [code](../errors.md). With `--json` it is one line of JSON there,
with the same exit code, while stdout has nothing, or an answer that is whole:

```json
{"error": {"code": "unknown_flow", "message": "there is no flow 'gret': did you mean 'greet'?"}}
```

`hint` is there too if there is something to try, and `traceback` with `--debug`. Warnings and the log are other lines
of stderr; `PENSTOCK_LOG_FORMAT=json` makes [those](../logging.md) JSON as well.

The common options below may also stand before the command: `penstock --url redis://localhost --json runs`. What a run,
a job, an event or a trigger is given may be called `--input`, `--payload` or `--data` with every command that takes one
of them.
"""


def page() -> str:
    """The whole page. What every command takes is shown once."""
    helps = {" ".join(words): _help(words) for words in _all()}
    panels = [_common(text) for text in helps.values()]
    shared = next((panel for panel in panels if panel), "")
    sections = [f"## {words}\n\n```text\n{_without(text, shared)}\n```\n" for words, text in helps.items()]
    return "\n".join([HEAD, f"Nearly every command also takes:\n\n```text\n{shared.strip()}\n```\n", *sections])


def _all() -> Iterator[list[str]]:
    """The words every command is called by, in the order of the table of commands."""
    yield ["penstock"]
    yield from _below(build_parser(), ["penstock"])


def _below(parent: App, words: list[str]) -> Iterator[list[str]]:
    for name in parent:
        if not name.startswith("-") and parent[name].show:
            yield [*words, name]
            yield from _below(parent[name], [*words, name])


def _help(words: list[str]) -> str:
    shown = io.StringIO()
    console = Console(file=shown, width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    build_parser().help_print(words[1:], console=console)
    return "\n".join(line.rstrip() for line in shown.getvalue().strip().splitlines())


def _common(text: str) -> str:
    found = re.search(r"\n╭─ Common options ─.*?╯", text, flags=re.S)
    return found[0] if found else ""


def _without(text: str, shared: str) -> str:
    return text.replace(shared, "") if shared else text


def main() -> None:
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), "utf-8")
    sys.stdout.write(f"{PAGE.name} is written\n")


if __name__ == "__main__":
    main()
