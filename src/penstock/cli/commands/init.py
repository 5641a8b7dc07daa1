"""`penstock init`."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ..errors import UsageError
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import print_json, print_text

TEMPLATE = "template"
TYPESCRIPT = "template_ts"  # instead of the Python worker files
PATTERNS = "patterns"

Template = Literal["api-call", "approval", "compensation", "entity", "fan-out", "live-output", "schedule", "webhook"]


def init(
    dir: str = ".",
    /,
    *,
    ts: Annotated[bool, Parameter(negative="", help="Write the worker files in TypeScript.")] = False,
    template: Annotated[Template | None, Parameter(help="Add the files of a common pattern instead.")] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Create an example project: a small flow and a job, tests, a settings file and a README.

    With --template, add the worker files of a common pattern and their test instead.
    Existing files are never overwritten.

    Parameters
    ----------
    dir
        The folder; created if it does not exist.
    """
    root = Path(dir)
    files = _project_files(ts) if template is None else _pattern_files(template, ts)
    existing = [name for name in files if (root / name).exists()]
    if existing:
        raise UsageError(f"{root / existing[0]} already exists and is not overwritten; choose another folder")
    _write(root, files)
    if common.json:
        print_json({"dir": str(root), "files": list(files)})
        return 0
    cd = "" if dir == "." else f"cd {dir} && "
    if template is None:
        print_text(f"Created a project in {root.resolve()}:", *(f"  {name}" for name in files))
        print_text(f'Next: {cd}penstock run welcome --input \'{{"name": "Ada"}}\', then penstock dev.')
    else:
        print_text(f"Created in {root.resolve()}:", *(f"  {name}" for name in files))
        print_text(f"Next: change them to your needs, and run their test: {cd}pytest")
    return 0


def _project_files(is_typescript: bool) -> dict[str, bytes]:
    files = _files(_folder(TEMPLATE))
    if is_typescript:
        kept = {name: text for name, text in files.items() if not name.startswith("workers/")}
        files = kept | _files(_folder(TYPESCRIPT))
    return files


def _pattern_files(name: str, is_typescript: bool) -> dict[str, bytes]:
    """Return the worker files of a pattern, and its test, which is the same for both languages."""
    language = "typescript" if is_typescript else "python"
    folder = _folder(PATTERNS, name, language)
    if not folder.is_dir():
        raise UsageError(f"the template {name!r} is written in Python only; leave out --ts")
    return _files(folder) | _files(_folder(PATTERNS, name, "tests"), "tests/")


def _folder(*names: str) -> Traversable:
    return resources.files(__package__).joinpath(*names)


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
