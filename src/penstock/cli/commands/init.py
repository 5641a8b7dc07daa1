"""`penstock init`."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..errors import UsageError
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import print_json, print_text

TEMPLATE = "template"
TYPESCRIPT = "template_ts"  # instead of the Python worker files


def init(
    dir: str = ".",
    /,
    *,
    ts: Annotated[bool, Parameter(negative="", help="Write the flow and the job in TypeScript.")] = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Create an example project: a small flow and a job, tests, a settings file and a README.

    Existing files are never overwritten.

    Parameters
    ----------
    dir
        The folder; created if it does not exist.
    """
    root = Path(dir)
    files = _files(resources.files(__package__).joinpath(TEMPLATE))
    if ts:
        kept = {name: text for name, text in files.items() if not name.startswith("workers/")}
        files = kept | _files(resources.files(__package__).joinpath(TYPESCRIPT))
    existing = [name for name in files if (root / name).exists()]
    if existing:
        raise UsageError(f"{root / existing[0]} already exists and is not overwritten; choose another folder")
    _write(root, files)
    if common.json:
        print_json({"dir": str(root), "files": list(files)})
        return 0
    print_text(f"Created a project in {root.resolve()}:", *(f"  {name}" for name in files))
    cd = "" if dir == "." else f"cd {dir} && "
    print_text(f'Next: {cd}penstock run welcome --input \'{{"name": "Ada"}}\', then penstock dev.')
    return 0


def _files(folder: Traversable, above: str = "") -> dict[str, bytes]:
    """Return the files of the template by path, without the `.txt` that keeps tools from taking them for our code."""
    found: dict[str, bytes] = {}
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir():
            found |= _files(item, f"{above}{item.name}/")
        else:
            found[f"{above}{item.name.removesuffix('.txt')}"] = item.read_bytes()
    return found


def _write(root: Path, files: dict[str, bytes]) -> None:
    try:
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:  # another process may have created it meanwhile
                file.write(content)
    except OSError as problem:
        raise UsageError(f"cannot write {problem.filename or root}: {problem.strerror}") from None
