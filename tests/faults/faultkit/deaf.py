"""A socket whose kernel hears nothing any more: as if the network, or the machine, were gone without a word.

A proxy that merely keeps replies back will not do: its kernel still acknowledges what comes.
"""

from __future__ import annotations

import ctypes
import struct

SOL_SOCKET = 1
SO_ATTACH_FILTER = 26  # Linux
NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)  # the program "return 0": of each packet, keep no byte


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def deafen(descriptor: int) -> None:
    """Packets to this socket are dropped from now on, before anything acknowledges them."""
    code = ctypes.create_string_buffer(NOTHING, len(NOTHING))
    program = _Program(1, ctypes.cast(code, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setsockopt(descriptor, SOL_SOCKET, SO_ATTACH_FILTER, ctypes.byref(program), ctypes.sizeof(program)):
        number = ctypes.get_errno()
        raise OSError(number, "cannot attach a filter to a socket")
