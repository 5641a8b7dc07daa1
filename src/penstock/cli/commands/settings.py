"""`penstock settings`."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from ...app.store_urls import mask
from ...core.durations import format_ms
from ...core.redaction import REDACTED
from ...settings import Settings, list_names
from ..options import COMMON_DEFAULTS, CommonOptions
from ..session import build_store_app, is_server_url
from ..tables import print_rows


def settings(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Print every setting and where its value comes from. Passwords are hidden."""
    found = Settings.load({"url": common.url, "dir": common.dir})
    if is_server_url(common):
        shown = asyncio.run(_ask(common))
        print_rows(shown, ("setting", "value", "source"), json=common.json, empty="")
        return 0
    rows = [_row(found, name, common.json) for name in list_names()]
    print_rows(rows, ("setting", "value", "source"), json=common.json, empty="")
    return 0


async def _ask(common: CommonOptions) -> list[dict[str, Any]]:
    async with build_store_app(common) as app:
        return await cast("Any", app).list_settings()  # type: ignore[no-any-return]


def _row(found: Settings, name: str, json: bool) -> dict[str, Any]:
    value: Any = getattr(found, name)
    if name == "url":
        value = mask(value)
    elif name in ("token", "alert_webhook"):
        value = REDACTED if value else value
    elif isinstance(value, tuple):
        value = list(value) if json else ", ".join(value)
    elif name.startswith(("lease", "grace", "heartbeat", "retain_", "alert_interval")) and not json:
        value = "never" if value is None else format_ms(value)
    elif name.startswith("keep_") and value is None and not json:
        value = "all"
    return {"setting": name, "value": value, "source": found.source(name)}
