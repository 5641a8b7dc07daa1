"""Run seeds of the simulation: `python -m faultkit.simulate --first 1 --count 500 [--mutant name]`.

Run one seed again: `python -m faultkit.simulate --first 4711 --count 1`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--stop-at", type=int, default=5)
    parser.add_argument("--mutant")
    parser.add_argument("--digests", action="store_true")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of strings must not vary
        os.execve(
            sys.executable,
            [sys.executable, "-m", "faultkit.simulate", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )

    from . import simulation

    if options.mutant:
        from . import mutants

        mutants.apply(options.mutant)
    simulation.prepare()
    if options.digests:
        seeds = range(options.first, options.first + options.count)
        print(json.dumps([simulation.run_seed(seed).digest for seed in seeds]))
        return
    print(json.dumps(simulation.run_seeds(options.first, options.count, stop_at=options.stop_at), indent=1))


if __name__ == "__main__":
    main()
