"""`penstock fire TOKEN`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from cyclopts import Parameter

from ..options import COMMON_DEFAULTS, CommonOptions
from ..parse import read_input
from ..session import build_store_app
from ..tables import print_result


def fire(
    token: str,
    /,
    *,
    data: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help="Data for the waiting step: JSON, @FILE or -.")
    ] = None,
    sign: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="Sign the data with the secret in the trigger's environment variable."
        ),
    ] = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Fire a trigger by its token or its URL; the waiting step resumes. A token works once.

    Parameters
    ----------
    token
        The trigger's token, or its URL.
    """
    value = read_input(data, "--data")
    run = asyncio.run(_fire(common, token, value, sign))
    print_result(f"Fired. Run {run} resumes.", {"run": run, "data": value}, json=common.json)
    return 0


async def _fire(common: CommonOptions, token: str, data: Any, sign: bool) -> str:
    async with build_store_app(common) as app:
        signature = await app.waits.sign(token, data) if sign else None
        return await app.waits.fire(token, data, signature=signature, source="cli")
