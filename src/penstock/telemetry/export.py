"""The dashboard for Grafana and the alert rules for Prometheus that come with Penstock."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

DASHBOARD, RULES = "grafana-dashboard.json", "prometheus-rules.yaml"
NAMES = (DASHBOARD, RULES)
DOCS = "DOCS"  # in the rules: the address of the documentation
DEFAULT_DOCS = "docs"


def read_file(name: str, docs: str = DEFAULT_DOCS) -> str:
    """Return one of the files. `docs` is the start of the links to the runbooks."""
    text = (files("penstock.telemetry") / "files" / name).read_text("utf-8")
    return text.replace(f"runbook_url: {DOCS}/", f"runbook_url: {docs.rstrip('/')}/")


def write_files(folder: Path, docs: str = DEFAULT_DOCS) -> list[Path]:
    """Write the files to a folder and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / name for name in NAMES]
    for path in written:
        path.write_text(read_file(path.name, docs), "utf-8")
    return written
