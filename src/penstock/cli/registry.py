"""`penstock registry`."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout

from .options import USUAL_PLACE, Common
from .output import print_json, unicode_out
from .session import working_app


def registry(*, common: Common = USUAL_PLACE) -> int:
    """Print all that was found in the worker files, and what is wrong with it, as JSON.

    With --json it is on one line.
    """
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        found = working_app(common).describe()
    if common.json:
        print_json(found)
    else:
        print(json.dumps(found, indent=2, ensure_ascii=not unicode_out()))
    return 0
