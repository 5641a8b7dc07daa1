"""The length of the suites: `PENSTOCK_FAULTS=full`, set by `make faults`, runs them at full length."""

import os
from pathlib import Path

FULL = os.environ.get("PENSTOCK_FAULTS") == "full"
FAULTS_DIR = Path(__file__).parent.parent  # the working directory of `python -m faultkit.…`
