"""Plays seeds from the command line: `python -m faultkit.simulate --first 1 --count 500 [--mutant name]`.

One seed again, with its story: `python -m faultkit.simulate --first 4711 --count 1`.
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
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of strings keep their order, or a seed is no seed
        os.execve(
            sys.executable,
            [sys.executable, "-m", "faultkit.simulate", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )

    from . import sim

    if options.mutant:
        from . import mutants

        mutants.apply(options.mutant)
    sim.prepare()
    if options.digests:
        print(json.dumps([sim.play(seed).digest for seed in range(options.first, options.first + options.count)]))
        return
    print(json.dumps(sim.play_many(options.first, options.count, stop_at=options.stop_at), indent=1))


if __name__ == "__main__":
    main()
