"""What the guest says to the host, and what commands say to the guest. Standard library only.

A frame is the sizes of a header in JSON and of a payload, then both. Orders come as frames on standard input, answers
leave as frames on standard output.
"""

import fcntl
import json
import os
import struct
from collections.abc import Iterator
from typing import Any, NoReturn

CHUNK = 1 << 18
FRAME = struct.Struct(">IQ")
"""Bytes of the header, and of the payload behind it."""

Fields = dict[str, Any]  # decoded JSON


def send(header: Fields, payload: bytes = b"") -> None:
    """Send an answer."""
    text = json.dumps(header).encode()
    view = memoryview(FRAME.pack(len(text), len(payload)) + text + payload)
    while view:
        view = view[os.write(1, view) :]


def read_order() -> tuple[Fields, int]:
    """Return an order, and the size of its payload."""
    length, size = FRAME.unpack(_exactly(FRAME.size))
    order: Fields = json.loads(_exactly(length))
    return order, size


def _exactly(size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        part = os.read(0, min(CHUNK, size - len(content)))
        if not part:
            hang_up()
        content += part
    return bytes(content)


def hang_up() -> NoReturn:
    """End the machine."""
    os._exit(0)  # the host has gone, or wants no more


class Payload:
    """What follows the header of an order."""

    def __init__(self, size: int) -> None:
        self._left = size

    def parts(self, size: int) -> Iterator[bytes]:
        """Yield so many bytes of it, in parts."""
        while size > 0:
            part = _exactly(min(size, CHUNK))
            size -= len(part)
            self._left -= len(part)
            yield part

    def all(self) -> Iterator[bytes]:
        """Yield what is left of it."""
        return self.parts(self._left)


class Output:
    """What a command writes: the first and the last bytes of it."""

    def __init__(self, limit: int) -> None:
        self._head_size, self._tail_size = (limit + 1) // 2, limit // 2
        self._head, self._tail, self._size = bytearray(), bytearray(), 0

    def feed(self, data: bytes) -> None:
        """Take in the next bytes."""
        self._size += len(data)
        room = self._head_size - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        if len(self._tail) > 2 * self._tail_size + CHUNK:
            del self._tail[: len(self._tail) - self._tail_size]

    def content(self) -> tuple[bytes, int]:
        """Return the bytes that are left in, and how many are left out."""
        tail = self._tail[max(0, len(self._tail) - self._tail_size) :]
        both = bytes(self._head + tail)
        return both, self._size - len(both)


def read_some(descriptor: int) -> bytes | None:
    """Return the next bytes of a pipe: None if there are none yet, no bytes at the end."""
    try:
        return os.read(descriptor, CHUNK)
    except BlockingIOError:
        return None


def drain(descriptor: int, output: Output) -> None:
    """Take in what a command has written before it ended; one in the background may write for ever."""
    size = fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)
    while size > 0 and (data := read_some(descriptor)):
        output.feed(data)
        size -= len(data)
