"""`penstock registry`."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout

from ...core.text import escape_json
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import has_unicode_output, print_json, print_text
from ..session import build_worker_app


def registry(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Print everything found in the worker files, including problems, as JSON.

    With --json, on one line.
    """
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        found = build_worker_app(common).describe()
    if common.json:
        print_json(found)
    else:
        print_text(escape_json(json.dumps(found, indent=2, ensure_ascii=not has_unicode_output())))
    return 0
