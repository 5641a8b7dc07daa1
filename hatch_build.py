"""Build hook: put the built console into the wheel. Node comes from the wheel that pyproject.toml requires.

`PENSTOCK_CONSOLE=skip` leaves the console out, `PENSTOCK_CONSOLE=require` fails the build where it cannot be built.
Without either, a machine that cannot reach the packages of Node builds a wheel without the console and prints so.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ConsoleHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the console to a wheel. An editable install builds it when it is needed: `make console`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wish = os.environ.get("PENSTOCK_CONSOLE", "")
        if self.target_name != "wheel" or version == "editable" or wish == "skip":
            return
        sys.path.insert(0, str(Path(self.root) / "console"))
        import build as console

        try:
            build_data["force_include"][str(console.build())] = "penstock/http/console_files"
        except console.CannotBuild as problem:
            if wish == "require":
                raise
            self.app.display_warning(f"This wheel has no console: {problem}")
