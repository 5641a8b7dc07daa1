"""A process that fires triggers: `python -m faultkit.trigger_process <url> <file of tokens> --times 10 --name one`.

It imports everything, waits for a line on standard input, fires each token several times at once, and prints the
answers.
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

CONCURRENT_TRIGGERS = 20


async def fire_all(url: str, tokens: list[str], times: int, name: str) -> dict[str, object]:
    """Fire every token `times` times; return the accepted payloads and the number of each error."""
    errors: Counter[str] = Counter()
    fired: list[str] = []

    async def fire(app: App, token: str, payload: str) -> None:
        try:
            await app.waits.fire(token, payload)
        except PenstockError as problem:
            errors[type(problem).__name__] += 1
        else:
            fired.append(payload)

    async with App(url, handlers=[]) as app:
        for start in range(0, len(tokens), CONCURRENT_TRIGGERS):
            batch = list(enumerate(tokens))[start : start + CONCURRENT_TRIGGERS]
            await asyncio.gather(*(fire(app, t, f"{n} {name}-{k}") for n, t in batch for k in range(times)))
    return {"fired": fired, "errors": dict(errors)}


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
        return  # the test ended without needing this process
    tokens = options.tokens.read_text().split()
    print(json.dumps(asyncio.run(fire_all(options.url, tokens, options.times, options.name))), flush=True)


if __name__ == "__main__":
    main()
