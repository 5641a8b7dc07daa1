"""`python -m penstock.host FD CONFIG`: the child of a worker. Frames go over file descriptor FD, never over stdout."""

import sys

import msgspec

from .handlers import HandlerFinder, HostConfig
from .host import Host
from .limits import die_with_parent, limit_resources
from .wire import Wire


def main() -> None:
    config = msgspec.json.decode(sys.argv[2], type=HostConfig)
    die_with_parent(config.parent)
    limit_resources(config.files, config.memory_mb)
    sys.path[:] = [*sys.path, *(path for path in config.paths if path not in sys.path)]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    lifts = config.lifts_limits
    Host(Wire(int(sys.argv[1]), lifts_limits=lifts), HandlerFinder(config), config.cpu_s, lifts_limits=lifts).run()


if __name__ == "__main__":
    main()
