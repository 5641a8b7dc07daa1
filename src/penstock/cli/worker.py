"""`penstock worker`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from cyclopts import Parameter

from .. import __version__
from ..app import App
from ..app.backend import mask
from ..core.errors import ConfigError
from .mistakes import warn
from .options import Common
from .report import print_json
from .session import working_app
from .stopping import on_stop


def worker(
    *,
    queues: Annotated[list[str] | None, Parameter(negative="", help="Only these queues: `a,b`, or repeated.")] = None,
    concurrency: Annotated[int | None, Parameter(help="Handlers at once; else PENSTOCK_CONCURRENCY, else 10.")] = None,
    common: Common = Common(),
) -> int:
    """Work on queues until stopped (Ctrl-C or SIGTERM).

    Running handlers are given time to finish (PENSTOCK_GRACE); what does not is given back for another worker.
    """
    return asyncio.run(_work(queues, concurrency, common))


async def _work(queues: list[str] | None, concurrency: int | None, common: Common) -> int:
    app = App_with(common, queues, concurrency)
    async with app:
        about = _about(app)
        if not about["queues"]:
            raise ConfigError(f"there is nothing to work on: no flow, step or job was found in {app.settings.dir!r}")
        working = asyncio.create_task(app.run_worker())
        with on_stop(lambda: _stop(app)):
            await asyncio.sleep(0)
            if not working.done():
                print_json(about) if common.json else print(_summary(about), flush=True)
            await working
    return 0
