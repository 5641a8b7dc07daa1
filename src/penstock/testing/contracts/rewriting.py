"""Asks pytest to explain failing asserts of the contracts, which it otherwise does only for test files.

Imported before the contracts are, since a module that is already imported stays as it is.
"""

from pathlib import Path

import pytest

_HERE = Path(__file__)
pytest.register_assert_rewrite(
    *(f"{__package__}.{file.stem}" for file in _HERE.parent.glob("*.py") if file.stem not in ("__init__", _HERE.stem))
)
