"""Workers of other programs: BullMQ names the connection of a worker after its queue."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error

_NAME = re.compile(r"(?:^| )name=(\S+)", re.MULTILINE)


def queues_of_clients(clients: str, prefix: str) -> set[str]:
    """Return the queues of the BullMQ workers in a CLIENT LIST: `<prefix>:<queue in base64>`, or more after a colon."""
    found: set[str] = set()
    for name in _NAME.findall(clients):
        encoded = name.removeprefix(f"{prefix}:").partition(":")[0] if name.startswith(f"{prefix}:") else ""
        try:
            queue = b64decode(encoded, validate=True).decode()
        except (Base64Error, UnicodeDecodeError):
            continue  # another program's connection
        if queue:
            found.add(queue)
    return found
