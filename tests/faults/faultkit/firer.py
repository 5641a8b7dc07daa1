"""A process that fires triggers: `python -m faultkit.firer <url> <file of tokens> --times 10 --name one`.

It loads everything, waits for a line on its standard input, fires each token several times at once, and says what came
of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

from penstock import App
from penstock.core.errors import PenstockError

AT_ONCE = 20  # triggers


async def notify_all(url: str, tokens: list[str], times: int, name: str) -> dict[str, object]:
    told: Counter[str] = Counter()
    fired: list[str] = []

    async def fire(app: App, token: str, payload: str) -> None:
        try:
            await app.waits.fire(token, payload)
        except PenstockError as problem:
            told[type(problem).__name__] += 1
        else:
            fired.append(payload)

    async with App(url, handlers=[]) as app:
        for start in range(0, len(tokens), AT_ONCE):
            several = list(enumerate(tokens))[start : start + AT_ONCE]
            await asyncio.gather(*(fire(app, t, f"{n} {name}-{k}") for n, t in several for k in range(times)))
    return {"fired": fired, "told": dict(told)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--name", default="one")
    parser.add_argument("--mutant")
    options = parser.parse_args()
    if options.mutant:
        from . import mutants

        mutants.apply(options.mutant)
    print("loaded", flush=True)
    if not sys.stdin.readline():
        return  # nobody needs us
    tokens = options.tokens.read_text().split()
    print(json.dumps(asyncio.run(notify_all(options.url, tokens, options.times, options.name))), flush=True)


if __name__ == "__main__":
    main()
