"""How long the suites are: `PENSTOCK_FAULTS=full`, which `make faults` sets, makes them long."""

import os
from pathlib import Path

FULL = os.environ.get("PENSTOCK_FAULTS") == "full"
HERE = Path(__file__).parent.parent  # where `python -m faultkit.…` is run
