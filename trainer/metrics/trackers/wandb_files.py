"""Rows of the `.wandb` files that W&B writes for a run: protocol buffers in the log format of LevelDB."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FILE_HEADER, _BLOCK, _HEADER = 7, 32768, struct.Struct("<IHB")
"""Bytes before the first record, bytes of a block, and the header of a fragment: checksum, size, kind."""
_WHOLE, _FIRST, _LAST = 1, 2, 4


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the logged rows of a file, in order; a row that a kill cut short ends the file."""
    from wandb.proto.wandb_internal_pb2 import Record  # optional

    for data in _records(path.read_bytes()):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(data: bytes) -> Iterator[bytes]:
    place, parts = _FILE_HEADER, list[bytes]()
    while place + _HEADER.size <= len(data):
        rest_of_block = _BLOCK - place % _BLOCK
        if rest_of_block < _HEADER.size:
            place += rest_of_block
            continue
        _, size, kind = _HEADER.unpack_from(data, place)
        start = place + _HEADER.size
        place = start + size
        if not kind or place > len(data):
            return
        parts = [*([] if kind in (_WHOLE, _FIRST) else parts), data[start:place]]
        if kind in (_WHOLE, _LAST):
            yield b"".join(parts)
