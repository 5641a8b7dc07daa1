"""`penstock fire TOKEN`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from cyclopts import Parameter

from .options import USUAL_PLACE, Common
from .parse import read_input
from .session import looking_app
from .tables import done


def fire(
    token: str,
    /,
    *,
    payload: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Sent with it: JSON, @FILE, -.")] = None,
    common: Common = USUAL_PLACE,
) -> int:
    """Fire a trigger by its token, or by its URL: the step that waits for it goes on. A token works once.

    Parameters
    ----------
    token
        What the step was given for whoever is to fire it.
    """
    value = read_input(payload, "--payload")
    run = asyncio.run(_fire(common, token, value))
    done(f"Fired; run {run} goes on.", {"run": run, "payload": value}, json=common.json)
    return 0


async def _fire(common: Common, token: str, payload: Any) -> str:
    async with looking_app(common) as app:
        return await app.waits.fire(token, payload)
