"""`penstock completion bash|zsh|fish`."""

from __future__ import annotations

from typing import Literal

from .options import USUAL_PLACE, Common
from .output import print_json


def completion(shell: Literal["bash", "zsh", "fish"], /, *, common: Common = USUAL_PLACE) -> int:
    """Print the shell's completion script.

    bash: penstock completion bash > ~/.local/share/bash-completion/completions/penstock. zsh: write it to a file
    _penstock in a folder of $fpath. fish: penstock completion fish > ~/.config/fish/completions/penstock.fish.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from .commands import commands

    script = commands().generate_completion(prog_name="penstock", shell=shell)
    print_json({"shell": shell, "script": script}) if common.json else print(script)
    return 0
