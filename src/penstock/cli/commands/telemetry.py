"""`penstock telemetry export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App as Commands
from cyclopts import Parameter

from ...core.errors import ConfigError
from ...telemetry.export import DEFAULT_DOCS, write_files
from ..options import COMMON_DEFAULTS, CommonOptions
from ..tables import print_result

telemetry = Commands(name="telemetry", help="Write the dashboard for Grafana and the alert rules for Prometheus.")
DOCS_HELP = "Start of the links to runbooks, such as https://docs.example.com/penstock."


@telemetry.command(name="export")
def export_files(
    folder: Annotated[Path, Parameter(help="Folder to write to; it is created.")] = Path("telemetry"),
    /,
    *,
    docs: Annotated[str, Parameter(help=DOCS_HELP)] = DEFAULT_DOCS,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Write grafana-dashboard.json and prometheus-rules.yaml.

    They show what 'penstock serve' answers at /api/_metrics. Existing files are replaced.
    """
    try:
        written = write_files(folder, docs)
    except OSError as problem:
        raise ConfigError(f"cannot write to {folder}: {problem.strerror}; choose another folder") from None
    names = [str(path) for path in written]
    print_result("\n".join(f"Wrote {name}" for name in names), {"files": names}, json=common.json)
    return 0
