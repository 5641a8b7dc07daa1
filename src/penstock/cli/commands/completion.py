"""`penstock completion bash|zsh|fish`."""

from __future__ import annotations

import gc
from typing import Literal

from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import print_json, print_text


def completion(shell: Literal["bash", "zsh", "fish"], /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Print a completion script for a shell.

    bash: penstock completion bash > ~/.local/share/bash-
    completion/completions/penstock. zsh: write it to a file _penstock in a folder
    of $fpath. fish: penstock completion fish >
    ~/.config/fish/completions/penstock.fish.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from ..command_table import build_parser

    # It parses the source of every command. CPython 3.11 sometimes failed here with "AST constructor recursion depth
    # mismatch". The cause is not proved; a garbage collection that runs Python code during the parse would explain it.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        script = build_parser().generate_completion(prog_name="penstock", shell=shell)
    finally:
        if was_enabled:
            gc.enable()
    print_json({"shell": shell, "script": script}) if common.json else print_text(script)
    return 0
