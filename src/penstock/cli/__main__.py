"""`python -m penstock.cli`."""

import sys

from . import run_program

if __name__ == "__main__":
    sys.exit(run_program())
