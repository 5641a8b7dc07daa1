"""The shop example runs on every store; an environment variable chooses the store."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from penstock.cli import main

SHOP = Path(__file__).parents[2] / "examples" / "shop"


@pytest.mark.spec("000-16.5", "000-19.3")
def test_the_shop_runs_on_the_store_of_the_environment(
    shared_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", shared_url)
    monkeypatch.setenv("SHOP_PACE", "0.005")
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    monkeypatch.chdir(SHOP)
    for order, status in (("order", "completed"), ("undeliverable", "compensated")):
        assert main(["run", "shop", "--input", f"@{order}.json", "--key", order]) == (status != "completed")
        capsys.readouterr()
        assert main(["runs", "show", order, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["status"] == status
