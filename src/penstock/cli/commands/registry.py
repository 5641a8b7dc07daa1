"""`penstock registry`."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import redirect_stdout
from typing import Any, cast

from ...core.text import escape_json
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import has_unicode_output, print_json, print_text
from ..session import build_store_app, build_worker_app, is_server_url


def registry(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Print everything found in the worker files, including problems, as JSON.

    With --json, on one line.
    """
    if is_server_url(common):
        found = asyncio.run(_ask(common))
    else:
        with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
            found = build_worker_app(common).describe()
    if common.json:
        print_json(found)
    else:
        print_text(escape_json(json.dumps(found, indent=2, ensure_ascii=not has_unicode_output())))
    return 0


async def _ask(common: CommonOptions) -> dict[str, Any]:
    async with build_store_app(common) as app:
        found: dict[str, Any] = await cast("Any", app).describe()
        return found
